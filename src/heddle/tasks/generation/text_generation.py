"""Write: texts that a model continues, or that an encoder-decoder answers; whole, or piece by piece as they come."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from heddle.core import ConfigError, UsageError, brief
from heddle.decoding.generation import Completion, StepOutput, StopCriterion, follow, max_new_tokens
from heddle.decoding.runtime import FinishReason, Request, decodes_with_kv_cache
from heddle.decoding.sampling import (
    BeamSearch,
    GenerationConfig,
    GenerationOptions,
    GreedySearch,
    MultinomialSampling,
    generation_config,
)
from heddle.decoding.speculative import Draft, speculate
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, Model
from heddle.tasks.generation.stop_strings import StopStringConstraint, StopStrings, check_stop_strings
from heddle.tasks.generation.text_constraints import ConstraintCompiler, TextConstraints
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import TextStream, Tokenizer

UNCONSTRAINED = TextConstraints()
Show = Callable[[int, str], None]  # (row, new text)
RULES = ("regex", "schema", "grammar", "require", "forbid")  # words of rules, which are said apart


@dataclass(frozen=True)
class GeneratedText:
    """A text that was generated: its words, its ids and why it ended."""

    text: str
    completion: Completion


@dataclass(frozen=True)
class TextChunk:
    """The next piece of a row's text, which may be empty: characters come whole; and why the row ended if it did."""

    row: int
    text: str
    step: StepOutput

    @property
    def reason(self) -> FinishReason | None:
        """Return why the row ended; None: it goes on."""
        return self.step.reason


@dataclass(frozen=True)
class TextGenerator:
    """A model that writes, with its tokenizer."""

    model: AutoregressiveModel
    tokenizer: Tokenizer
    draft: Draft | None = None  # what guesses ahead, which changes the speed alone

    def requests(
        self, texts: Sequence[str], config: GenerationConfig, rules: TextConstraints | None = None
    ) -> list[Request]:
        """Return what to ask for, to continue each text as the beginning of a document; or as a source, to answer it.

        With rules, the new text of each obeys them.
        """
        if isinstance(self.model, EncoderDecoder):
            plain = [
                Request(self.tokenizer.special_tokens.decoder_start, self.tokenizer.source(text)) for text in texts
            ]
        else:
            plain = [Request(self.tokenizer.opened(text)) for text in texts]
        if rules is None or rules == UNCONSTRAINED:
            return plain
        if not isinstance(rules, TextConstraints):
            raise UsageError(f"rules: want what heddle.rules(...) makes, got {brief(rules)}")
        ruling = _constraint_compiler(self.tokenizer).read(rules)
        return [
            replace(each, constraint=ruling.begin(each.ids, max_new_tokens(self.model, each, config))) for each in plain
        ]

    def generation_config(self, options: GenerationOptions) -> GenerationConfig:
        """Compose wishes, among which a bias may name tokens by their text; refuse what this model cannot do."""
        for name in RULES:
            if name in options:
                raise UsageError(f"{name}: want it among the rules: rules=heddle.rules({name}=...)")
        words: dict[str, Any] = {**options}
        if isinstance(words.get("bias"), Mapping):
            words["bias"] = {self._id(token): value for token, value in words["bias"].items()}
        config = generation_config(cast(GenerationOptions, words))
        self._refuse(config)
        return config

    def _refuse(self, config: GenerationConfig) -> None:
        """Refuse wishes that would change nothing, or that no row could meet."""
        if self.draft is not None and not isinstance(config.choice, MultinomialSampling | GreedySearch):
            raise UsageError(f"draft: want tokens that are drawn or the best, to guess them, got {config.choice.kind}")
        if config.cache.kind != "full" and not decodes_with_kv_cache(self.model):
            raise ConfigError("cache", want="full, for this model keeps no cache", got=config.cache.kind)
        if isinstance(self.model, EncoderDecoder):
            return
        if config.stretch is not None:
            raise ConfigError("stretch", want="none, for a language model has no source to count", got=config.stretch)
        if isinstance(config.choice, BeamSearch) and config.choice.coverage:
            raise ConfigError("coverage", want="0, for a language model has no source", got=config.choice.coverage)

    def _id(self, token: int | str) -> int:
        if not isinstance(token, str):
            return token
        ids = self.tokenizer.encode(token)
        if len(ids) != 1:
            raise ConfigError("bias", want=f"texts of one token, not {len(ids)}; a guide forbids phrases", got=token)
        return ids[0]

    def follow(
        self, requests: Sequence[Request], config: GenerationConfig, stop: StopStrings = ()
    ) -> Iterator[TextChunk]:
        """Yield what each row writes as soon as it is certain; a row with several samples is several rows."""
        stops = check_stop_strings(stop)
        beams = isinstance(config.choice, BeamSearch)
        if beams and stops:
            requests = [
                replace(r, constraint=StopStringConstraint(TextStream(self.tokenizer, r.ids, stops), r.constraint))
                for r in requests
            ]
        streams = [TextStream(self.tokenizer, r.ids, stops) for r in requests for _ in range(config.samples)]
        fresh: dict[int, str] = {}

        def should_stop(row: int, id: int) -> bool:
            fresh[row] = streams[row].push(id)
            return streams[row].stopped

        with closing(self._steps(requests, config, None if beams else should_stop)) as steps:
            for step in steps:
                if beams and step.id is not None:
                    should_stop(step.row, step.id)
                text = fresh.pop(step.row, "")
                yield TextChunk(step.row, text if step.reason is None else text + streams[step.row].flush(), step)

    def _steps(
        self, requests: Sequence[Request], config: GenerationConfig, should_stop: StopCriterion | None
    ) -> Generator[StepOutput, None, None]:
        config = with_special_tokens(config, self.tokenizer)
        if self.draft is None:
            return follow(self.model, requests, config, should_stop)
        return speculate(self.model, requests, config, self.draft, should_stop)

    def generate(
        self, requests: Sequence[Request], config: GenerationConfig, stop: StopStrings = (), show: Show | None = None
    ) -> list[GeneratedText]:
        """Write all, and say why each ended; `show` is given every piece of text as soon as it is certain."""
        rows: list[list[TextChunk]] = [[] for _ in range(len(requests) * config.samples)]
        for told in self.follow(requests, config, stop):
            rows[told.row].append(told)
            if show is not None and told.text:
                show(told.row, told.text)
        return [GeneratedText("".join(t.text for t in row), Completion.of([t.step for t in row])) for row in rows]


def text_generator(model: Model, tokenizer: Tokenizer, draft: Draft | None = None) -> TextGenerator:
    """Return a writer, or say why this model is none."""
    if not isinstance(model, AutoregressiveModel):
        raise UsageError("want a model that writes; an encoder reads whole texts, to score and to embed them")
    return TextGenerator(model, tokenizer, draft)


@lru_cache(maxsize=4)
def _constraint_compiler(tokenizer: Tokenizer) -> ConstraintCompiler:
    """Return a tokenizer made ready for rules, which takes a while for a large vocabulary."""
    return ConstraintCompiler(tokenizer)
