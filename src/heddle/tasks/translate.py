"""Translate: a line in, a line out, in order; graded by BLEU as sacrebleu counts it (Papineni et al. 2002; Post 2018).

The task is any mapping from text to text that an encoder-decoder learnt from pairs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from heddle.core import DataError, MissingExtra, UsageError
from heddle.decoding import How, generate, readable_source
from heddle.models import EncoderDecoder, Predictor
from heddle.text import Tokenizer

AHEAD = 16  # batches gathered before any is translated, so that lines of one length meet


@dataclass(frozen=True)
class Grade:
    """A score with the words that say exactly how it was counted."""

    bleu: float
    signature: str


@dataclass(frozen=True)
class Translator:
    """A model with its tokenizer, how to search, and how many lines to read at once."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    how: How
    batch: int = 32
    ahead: int = AHEAD  # 1: answer after every `batch` lines, for those who wait

    def run(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield a translation for each line, in order; a blank line stays blank."""
        waiting = iter(lines)
        number = 1
        while gathered := list(islice(waiting, self.batch * self.ahead)):
            yield from self._some(gathered, number)
            number += len(gathered)

    def _some(self, lines: Sequence[str], first: int) -> list[str]:
        """Translate some lines, those of near length side by side; `first` is the number of the first."""
        sources = {i: self._source(line, first + i) for i, line in enumerate(lines) if line.strip()}
        order = sorted(sources, key=lambda i: len(sources[i]))
        answers = [""] * len(lines)
        how = self.how.at_end(self.tokenizer.end)
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            found = generate(self.model, [[]] * len(chosen), how, [sources[i] for i in chosen])
            for i, ids in zip(chosen, found[:: how.samples], strict=True):
                answers[i] = " ".join(self.tokenizer.decode(ids).split())
        return answers

    def _source(self, line: str, number: int) -> list[int]:
        try:
            return list(readable_source(self.model, [*self.tokenizer.encode(line), self.tokenizer.end]))
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None


def translator(model: Predictor, tokenizer: Tokenizer, how: How, batch: int = 32, ahead: int = AHEAD) -> Translator:
    """Return a translator, or say why this model is none."""
    if not isinstance(model, EncoderDecoder):
        raise UsageError("translate: want an encoder-decoder, trained on pairs; this is a language model")
    if batch < 1:
        raise UsageError(f"batch: want at least 1, got {batch}")
    return Translator(model, tokenizer, how, batch, ahead)


def grade(translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Grade:
    """Score translations against one reference each by corpus BLEU, exactly as sacrebleu does."""
    bleu = metric(lowercase=lowercase)
    if len(translations) != len(references):
        raise DataError(f"references: want {len(translations)}, one for each line, found {len(references)}")
    if not translations:
        raise DataError("references: want one line or more, found none")
    score = bleu.corpus_score(list(translations), [list(references)])
    return Grade(float(score.score), str(bleu.get_signature()))


def metric(*, lowercase: bool = False) -> Any:
    """Return sacrebleu's metric, or say that it is missing; ask before hours of translating."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtra("sacrebleu", "eval", "scoring translations") from None
    return BLEU(lowercase=lowercase)
