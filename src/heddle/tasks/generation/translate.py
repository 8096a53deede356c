"""Translate: a line in, a line out, in order; graded by BLEU as sacrebleu counts it (Papineni et al. 2002; Post 2018).

The task is any mapping from text to text that an encoder-decoder learnt from pairs. Of what the model writes for a
line, the best is what a search ranks first, or what other samples agree with most.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from heddle.core import DataError, UsageError
from heddle.decoding.generation import complete
from heddle.decoding.runtime import Request, check_source
from heddle.decoding.sampling import BeamSearch, GenerationConfig
from heddle.decoding.search import Hypothesis, expected_utilities, search
from heddle.models.networks import EncoderDecoder, Model
from heddle.tasks.metrics import Similarity, sacrebleu_for
from heddle.tasks.rescoring import LONGEST, NBestCandidate
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import Tokenizer

AHEAD = 16  # batches gathered before any is translated, so that lines of one length meet


@dataclass(frozen=True)
class BleuScore:
    """A score with the words that say exactly how it was counted."""

    bleu: float
    signature: str


@dataclass(frozen=True)
class Translation:
    """What a line became: candidates, best first; none of a blank line."""

    candidates: tuple[NBestCandidate, ...] = ()

    @property
    def text(self) -> str:
        """Return the best."""
        return self.candidates[0].text if self.candidates else ""


class CandidateRanking(ABC):
    """How the candidates for a line are put in order."""

    @abstractmethod
    def order(self, candidates: Sequence[NBestCandidate]) -> list[NBestCandidate]:
        """Return candidates best first, each different text perhaps once."""


@dataclass(frozen=True)
class SearchOrder(CandidateRanking):
    """As the search ranks them, or as they were drawn."""

    def order(self, candidates: Sequence[NBestCandidate]) -> list[NBestCandidate]:
        return list(candidates)


@dataclass(frozen=True)
class MinimumBayesRisk(CandidateRanking):
    """By how like they are to all others, each of which may be right."""

    similarity: Similarity

    def order(self, candidates: Sequence[NBestCandidate]) -> list[NBestCandidate]:
        expected = expected_utilities([candidate.text for candidate in candidates], self.similarity)
        return [NBestCandidate(text, {"score": utility}) for text, utility in expected.items()]


@dataclass(frozen=True)
class Translator:
    """A model with its tokenizer, how to search, and how many lines to read at once."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    config: GenerationConfig
    batch: int = 32
    ahead: int = AHEAD  # 1: answer after every `batch` lines, for those who wait
    chooser: CandidateRanking = SearchOrder()

    def run(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield a translation for each line, in order; a blank line stays blank."""
        return (found.text for found in self.lists(lines))

    def lists(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Yield all that was found for each line, in order; the first line that cannot be read ends it."""
        numbered = enumerate(lines, 1)
        while gathered := list(islice(numbered, self.batch * self.ahead)):
            yield from self.translate([self._numbered(number, line) for number, line in gathered])

    def _numbered(self, number: int, line: str) -> list[int] | None:
        try:
            return self.source(line)
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None

    def source(self, line: str) -> list[int] | None:
        """Return a line as the encoder reads it, or say why it cannot; None where it is blank."""
        if not line.strip():
            return None
        if len(line) > LONGEST:
            raise UsageError(f"source: want at most {LONGEST:,} characters, got {len(line):,}")
        return list(check_source(self.model, self.tokenizer.source(line)))

    def translate(self, sources: Sequence[list[int] | None]) -> list[Translation]:
        """Translate sources, those of near length side by side; None stays empty."""
        given = {i: source for i, source in enumerate(sources) if source is not None}
        order = sorted(given, key=lambda i: len(given[i]))
        answers = [Translation()] * len(sources)
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            for i, found in zip(chosen, self._found([given[i] for i in chosen]), strict=True):
                answers[i] = Translation(tuple(self.chooser.order(found)))
        return answers

    def _found(self, sources: Sequence[list[int]]) -> list[list[NBestCandidate]]:
        """Return what the model writes for each source."""
        config = with_special_tokens(self.config, self.tokenizer)
        requests = [Request(self.tokenizer.special_tokens.decoder_start, source) for source in sources]
        if isinstance(config.choice, BeamSearch):
            return [[self._ranked(h) for h in best] for best in search(self.model, requests, config)]
        texts = [NBestCandidate(self._text(found.ids)) for found in complete(self.model, requests, config)]
        return [texts[i : i + config.samples] for i in range(0, len(texts), config.samples)]

    def _ranked(self, hypothesis: Hypothesis) -> NBestCandidate:
        return NBestCandidate(self._text(hypothesis.ids), {"score": hypothesis.score, "logprob": hypothesis.logprob})

    def _text(self, ids: Sequence[int]) -> str:
        return " ".join(self.tokenizer.decode(ids).split())


def translator(
    model: Model,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    batch: int = 32,
    ahead: int = AHEAD,
    chooser: CandidateRanking | None = None,
) -> Translator:
    """Return a translator, or say why this model is none."""
    if not isinstance(model, EncoderDecoder):
        kind = (model.config.expand().kind or "").replace("_", " ")
        raise UsageError(f"translate: want an encoder-decoder, trained on pairs; this model is of the kind {kind}")
    if batch < 1:
        raise UsageError(f"batch: want at least 1, got {batch}")
    return Translator(model, tokenizer, config, batch, ahead, chooser or SearchOrder())


def bleu_score(translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> BleuScore:
    """Score translations against one reference each by corpus BLEU, exactly as sacrebleu does."""
    bleu = bleu_metric(lowercase=lowercase)
    if len(translations) != len(references):
        raise DataError(f"references: want {len(translations)}, one for each line, found {len(references)}")
    if not translations:
        raise DataError("references: want one line or more, found none")
    score = bleu.corpus_score(list(translations), [list(references)])
    return BleuScore(float(score.score), str(bleu.get_signature()))


def bleu_metric(*, lowercase: bool = False) -> Any:
    """Return sacrebleu's metric, or say that it is missing; ask before hours of translating."""
    return sacrebleu_for("scoring translations")(lowercase=lowercase)
