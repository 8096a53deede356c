"""Text generation from prompts with a language model or an encoder-decoder, whole or streamed."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from heddle.core import ConfigError, UsageError, brief
from heddle.decoding import GenerationOptions, generation_config
from heddle.decoding.generation import Completion, GenerationConfig, StepOutput, StopCriterion, follow, max_new_tokens
from heddle.decoding.runtime import FinishReason, PrefixCache, Request, decodes_with_kv_cache
from heddle.decoding.speculative import Draft, draft_chooser, speculate
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.tasks.generation.stop_strings import StopStringConstraint, StopStrings, check_stop_strings
from heddle.tasks.generation.text_constraints import ConstraintCompiler, TextConstraints
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import TextStream, Tokenizer

UNCONSTRAINED = TextConstraints()
Show = Callable[[int, str], None]  # called with (row, new text)
CONSTRAINTS = ("regex", "schema", "grammar", "require", "forbid")  # options of `heddle.rules`, not of generation


@dataclass(frozen=True)
class GeneratedText:
    """A generated text with its ids, its log-probabilities and why it ended."""

    text: str
    completion: Completion


@dataclass(frozen=True)
class TextChunk:
    """The next chunk of a row's text, never half a character and perhaps empty, and why the row ended if it did."""

    row: int
    text: str
    step: StepOutput

    @property
    def reason(self) -> FinishReason | None:
        """Return why the row ended; None: it has not ended."""
        return self.step.reason


@dataclass(frozen=True)
class TextGenerator:
    """An autoregressive model with its tokenizer, perhaps a draft for speculative decoding, and a cache of prompts."""

    model: AutoregressiveModel
    tokenizer: Tokenizer
    draft: Draft | None = None  # for speculative decoding, which changes only the speed
    prefix_cache: PrefixCache | None = None  # of what prompts begin with; changes only the speed, without a draft

    def requests(
        self, texts: Sequence[str], config: GenerationConfig, rules: TextConstraints | None = None
    ) -> list[Request]:
        """Return a request for each text: a prompt to continue, or the source of an encoder-decoder.

        The new text of each obeys the constraints, if there are any.
        """
        if self.model.reads_source:
            start = self.tokenizer.special_tokens.decoder_start
            plain = [Request(start, self.tokenizer.source(text)) for text in texts]
        else:
            plain = [Request(self.tokenizer.encode_prompt(text)) for text in texts]
        if rules is None or rules == UNCONSTRAINED:
            return plain
        if not isinstance(rules, TextConstraints):
            raise UsageError(f"rules: want the result of heddle.rules(...), got {brief(rules)}")
        constraints = _constraint_compiler(self.tokenizer).compile(rules)
        return [
            replace(each, constraint=constraints.begin(each.ids, max_new_tokens(self.model, each, config)))
            for each in plain
        ]

    def generation_config(self, options: GenerationOptions) -> GenerationConfig:
        """Return a config from options; a bias may name tokens by their text. Refuse what this model cannot do."""
        for name in CONSTRAINTS:
            if name in options:
                raise UsageError(f"{name}: pass it as rules=heddle.rules({name}=...)")
        given: dict[str, Any] = {**options}
        if isinstance(given.get("bias"), Mapping):
            given["bias"] = {self._id(token): value for token, value in given["bias"].items()}
        config = generation_config(cast(GenerationOptions, given))
        self._refuse(config)
        return config

    def _refuse(self, config: GenerationConfig) -> None:
        """Refuse options that would have no effect, or that this model does not support."""
        if self.draft is not None:
            draft_chooser(config)
        if config.cache.kind != "full" and not decodes_with_kv_cache(self.model):
            raise ConfigError("cache", want="full, since this model has no KV cache", got=config.cache.kind)
        if config.max_length_ratio is not None and not self.model.reads_source:
            raise ConfigError("max_length_ratio", "not used by a language model, which has no source")
        config.strategy.check_source(self.model.reads_source)

    def _id(self, token: int | str) -> int:
        if not isinstance(token, str):
            return token
        ids = self.tokenizer.encode(token)
        if len(ids) != 1:
            want = f"texts of one token, not {len(ids)}; heddle.rules(forbid=...) bans phrases"
            raise ConfigError("bias", want=want, got=token)
        return ids[0]

    def stream(
        self, requests: Sequence[Request], config: GenerationConfig, stop: StopStrings = ()
    ) -> Iterator[TextChunk]:
        """Stream the text of each row; each sample of a request is a row of its own."""
        stops = check_stop_strings(stop)
        streams_tokens = config.strategy.streams  # else a stop string ends each sequence of a search by itself
        if not streams_tokens and stops:
            requests = [
                replace(r, constraint=StopStringConstraint(TextStream(self.tokenizer, r.ids, stops), r.constraint))
                for r in requests
            ]
        streams = [TextStream(self.tokenizer, r.ids, stops) for r in requests for _ in range(config.samples)]
        new_text: dict[int, str] = {}

        def should_stop(row: int, id: int) -> bool:
            new_text[row] = streams[row].push(id)
            return streams[row].stopped

        with closing(self._steps(requests, config, should_stop if streams_tokens else None)) as steps:
            for step in steps:
                if not streams_tokens and step.id is not None:
                    should_stop(step.row, step.id)
                text = new_text.pop(step.row, "")
                yield TextChunk(step.row, text if step.reason is None else text + streams[step.row].flush(), step)

    def _steps(
        self, requests: Sequence[Request], config: GenerationConfig, should_stop: StopCriterion | None
    ) -> Generator[StepOutput, None, None]:
        config = with_special_tokens(config, self.tokenizer)
        if self.draft is None:
            return follow(self.model, requests, config, should_stop, self.prefix_cache)
        return speculate(self.model, requests, config, self.draft, should_stop)

    def generate(
        self, requests: Sequence[Request], config: GenerationConfig, stop: StopStrings = (), show: Show | None = None
    ) -> list[GeneratedText]:
        """Generate all rows; `show` is called with every chunk of text as soon as it is certain."""
        rows: list[list[TextChunk]] = [[] for _ in range(len(requests) * config.samples)]
        for chunk in self.stream(requests, config, stop):
            rows[chunk.row].append(chunk)
            if show is not None and chunk.text:
                show(chunk.row, chunk.text)
        return [
            GeneratedText("".join(t.text for t in row), Completion.from_steps([t.step for t in row])) for row in rows
        ]


def text_generator(model: Model, tokenizer: Tokenizer, draft: Draft | None = None) -> TextGenerator:
    """Return a text generator; refuse a model that is not autoregressive."""
    refusal = UsageError("want an autoregressive model; an encoder only scores and embeds texts")
    return TextGenerator(require(model, AutoregressiveModel, refusal), tokenizer, draft)


@lru_cache(maxsize=4)
def _constraint_compiler(tokenizer: Tokenizer) -> ConstraintCompiler:
    """Return the constraint compiler of a tokenizer, which takes a while for a large vocabulary."""
    return ConstraintCompiler(tokenizer)
