"""Chat: a conversation with a language model, turn by turn, that reuses the KV cache of the turns before."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from heddle.checkpoints import Source
from heddle.core import UsageError, replace
from heddle.decoding.generation import GenerationConfig, follow
from heddle.decoding.runtime import FinishReason, PrefixCache, Request, check_prompt, fits_context
from heddle.models.networks import LanguageModel, Model, require
from heddle.tasks.scoring import with_special_tokens
from heddle.text.chat import TEMPLATE, Chat
from heddle.text.tokenizers import TextStream

Turn = dict[str, object]


@dataclass
class Conversation:
    """The turns so far, and how the model generates an answer.

    If a prompt leaves no space for an answer in the context, the oldest turns are dropped, question and answer
    together; the system message stays.
    """

    model: LanguageModel
    chat: Chat
    config: GenerationConfig
    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    forgotten: int = 0  # turns that were dropped
    reason: FinishReason | None = None  # why the last answer ended; None: it was interrupted

    def __post_init__(self) -> None:
        if not self.config.strategy.streams or self.config.samples > 1:
            raise UsageError("chat: beams and samples are not supported, because answers are streamed")
        config = with_special_tokens(self.config, self.chat.tokenizer)
        self._config = replace(config, stop=tuple(dict.fromkeys((*config.stop, *self.chat.stops.ids))))
        self._prefixes = PrefixCache(self.model)  # the prompt of a turn begins with that of the turn before

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()
        self.forgotten = 0

    def say(self, text: str) -> Iterator[str]:
        """Stream the answer to a text; an interrupted answer is kept as far as it got."""
        prompt = self._prompt(text)
        self.turns.append(_turn("user", text))
        chunks: list[str] = []
        try:
            for chunk in self._answer(prompt):
                fresh = chunk if chunks else chunk.lstrip()
                if fresh:
                    chunks.append(fresh)
                    yield fresh
        finally:
            self.turns.append(_turn("assistant", "".join(chunks).rstrip()))

    def _answer(self, prompt: list[int]) -> Iterator[str]:
        stream = TextStream(self.chat.tokenizer, prompt, self.chat.stops.texts)
        fresh: list[str] = []

        def should_stop(row: int, id: int) -> bool:
            fresh.append(stream.push(id))
            return stream.stopped

        self.reason = None
        with closing(follow(self.model, [Request(prompt)], self._config, should_stop, self._prefixes)) as steps:
            for step in steps:
                self.reason = step.reason
                yield "".join(fresh) if step.reason is None else "".join(fresh) + stream.flush()
                fresh.clear()

    def _prompt(self, text: str) -> list[int]:
        """Return the ids of the prompt, without the oldest turns if necessary; refuse a turn that is too long alone."""
        system = [] if self.system is None else [_turn("system", self.system)]
        reserved = min(self.config.max_tokens, self.model.context // 4)  # for the answer
        for drop in range(0, len(self.turns) + 1, 2):
            ids = self.chat.ids([*system, *self.turns[drop:], _turn("user", text)])
            if fits_context(self.model, len(ids) + reserved):
                break
        else:
            check_prompt(self.model, ids)  # too long even without an answer: raises
        del self.turns[:drop]
        self.forgotten += drop
        return ids


def _turn(role: str, text: str) -> Turn:
    return {"role": role, "content": text}


def conversation(model: Model, chat: Chat, config: GenerationConfig, system: str | None = None) -> Conversation:
    """Begin a conversation; refuse a model that is not a language model."""
    return Conversation(require(model, LanguageModel, UsageError("chat: want a language model")), chat, config, system)


def chat_template(source: Source) -> str:
    """Return the chat template of a model; refuse a model without one."""
    found = source.template()
    if found is None:
        raise UsageError(f"{source.path}: has no {TEMPLATE}; choose one, such as --template plain")
    return found
