"""Translation with an encoder-decoder, line by line, by beam search or minimum Bayes risk; BLEU by sacrebleu.

The task is any mapping from text to text that the model learned from pairs. BLEU is that of Papineni et al. (2002), as
sacrebleu computes it (Post 2018).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from heddle.core import DataError, UsageError
from heddle.decoding import GenerationOptions
from heddle.decoding.generation import Completion, GenerationConfig, GenerationJob
from heddle.decoding.runtime import Request, Source, check_source
from heddle.decoding.search import expected_utilities
from heddle.models.networks import EncoderDecoder, Model, require
from heddle.tasks.generation.model_settings import TaskSettings, translation_settings_of
from heddle.tasks.metrics import Similarity, sacrebleu_for
from heddle.tasks.rescoring import MAX_CHARACTERS, NBestCandidate
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import Tokenizer

BEAMS: Mapping[str, Any] = {"beams": 4, "length_penalty": 1.0}
LIMITS: Mapping[str, Any] = {"max_tokens": 512, "max_length_ratio": 2.0}  # of a model without a length of its own
AHEAD = 16  # batches read before any is translated, so that lines of similar length share a batch


@dataclass(frozen=True)
class BleuScore:
    """Corpus BLEU with the signature that says exactly how it was computed."""

    bleu: float
    signature: str


@dataclass(frozen=True)
class Translation:
    """The candidates for a line, best first; none for a blank line."""

    candidates: tuple[NBestCandidate, ...] = ()

    @property
    def text(self) -> str:
        """Return the best candidate."""
        return self.candidates[0].text if self.candidates else ""


class CandidateRanking(ABC):
    """How the candidates for a line are ranked."""

    @abstractmethod
    def order(self, candidates: Sequence[NBestCandidate]) -> list[NBestCandidate]:
        """Return the candidates, best first; duplicates may be merged."""


@dataclass(frozen=True)
class SearchOrder(CandidateRanking):
    """Keep the order of the search, or of sampling."""

    def order(self, candidates: Sequence[NBestCandidate]) -> list[NBestCandidate]:
        return list(candidates)


@dataclass(frozen=True)
class MinimumBayesRisk(CandidateRanking):
    """Minimum Bayes risk (MBR): rank by the expected similarity to all other samples."""

    similarity: Similarity

    def order(self, candidates: Sequence[NBestCandidate]) -> list[NBestCandidate]:
        expected = expected_utilities([candidate.text for candidate in candidates], self.similarity)
        return [NBestCandidate(text, {"score": utility}) for text, utility in expected.items()]


@dataclass(frozen=True)
class Translator:
    """A model with its tokenizer, the generation config, and how many lines are translated at once."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    config: GenerationConfig
    batch: int = 32
    ahead: int = AHEAD  # 1: translate after every `batch` lines, for interactive use
    ranking: CandidateRanking = SearchOrder()
    prefix: str = ""  # the text that the model wants before each line, such as T5's

    def run(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield a translation for each line, in order; a blank line stays blank."""
        return (found.text for found in self.translations(lines))

    def translations(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Yield the candidates for each line, in order; the first line that cannot be read raises."""
        numbered = enumerate(lines, 1)
        while gathered := list(islice(numbered, self.batch * self.ahead)):
            yield from self.translate([self._numbered(number, line) for number, line in gathered])

    def _numbered(self, number: int, line: str) -> list[int] | None:
        try:
            return self.source(line)
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None

    def source(self, line: str) -> list[int] | None:
        """Return the ids of a line for the encoder, or refuse it; None for a blank line."""
        if not line.strip():
            return None
        if len(line) > MAX_CHARACTERS:
            raise UsageError(f"source: want at most {MAX_CHARACTERS:,} characters, got {len(line):,}")
        return list(check_source(self.model, self.tokenizer.source(self.prefix + line)))

    def translate(self, sources: Sequence[Source | None]) -> list[Translation]:
        """Translate sources, batched by length; None stays empty."""
        given = {i: source for i, source in enumerate(sources) if source is not None}
        order = sorted(given, key=lambda i: len(given[i]))
        answers = [Translation()] * len(sources)
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            for i, found in zip(chosen, self._candidates([given[i] for i in chosen]), strict=True):
                answers[i] = Translation(tuple(self.ranking.order(found)))
        return answers

    def _candidates(self, sources: Sequence[Source]) -> list[list[NBestCandidate]]:
        """Return the candidates that the model generates for each source."""
        config = with_special_tokens(self.config, self.tokenizer)
        requests = [Request(self.tokenizer.special_tokens.decoder_start, source) for source in sources]
        found = config.strategy.complete(GenerationJob(self.model, requests, config))
        return [[self._candidate(completion) for completion in each] for each in found]

    def _candidate(self, found: Completion) -> NBestCandidate:
        scores = {"score": found.score, "logprob": found.logprob}  # of a search; samples have none
        known = {name: value for name, value in scores.items() if value is not None}
        return NBestCandidate(self.text(found.ids), known)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of the ids of a candidate."""
        return " ".join(self.tokenizer.decode(ids).split())


def translator(
    model: Model,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    batch: int = 32,
    ahead: int = AHEAD,
    ranking: CandidateRanking | None = None,
) -> Translator:
    """Return a translator; refuse a model that is not an encoder-decoder."""
    refusal = UsageError(f"translate: want an encoder-decoder, trained on pairs; this model is {model.config.noun}")
    if batch < 1:
        raise UsageError(f"batch: want at least 1, got {batch}")
    return Translator(
        require(model, EncoderDecoder, refusal), tokenizer, config, batch, ahead, ranking or SearchOrder()
    )


def length_limits(own: TaskSettings) -> Mapping[str, Any]:
    """Return the limits of a translation's length where a model has none of its own."""
    return {} if "max_tokens" in own.options else LIMITS


def own_translator(
    model: Model, tokenizer: Tokenizer, settings: Mapping[str, Any], options: GenerationOptions, task: str | None = None
) -> Translator:
    """Return a translator by the model's own settings, of one of its tasks; options that are given come first."""
    own = translation_settings_of(settings, tokenizer, task)
    config = own.generation_config(options, {**BEAMS, **length_limits(own)})
    return replace(translator(model, tokenizer, config), prefix=own.prefix)


def bleu_score(translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> BleuScore:
    """Return corpus BLEU of translations against one reference each, exactly as sacrebleu does."""
    bleu = bleu_metric(lowercase=lowercase)
    if len(translations) != len(references):
        raise DataError(f"references: want {len(translations)}, one for each line, found {len(references)}")
    if not translations:
        raise DataError("references: want one line or more, found none")
    score = bleu.corpus_score(list(translations), [list(references)])
    return BleuScore(float(score.score), str(bleu.get_signature()))


def bleu_metric(*, lowercase: bool = False) -> Any:
    """Return sacrebleu's BLEU metric; call it before translating, to learn early if it is not installed."""
    return sacrebleu_for("scoring translations")(lowercase=lowercase)
