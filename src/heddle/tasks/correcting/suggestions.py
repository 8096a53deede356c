"""Options: what a written word may stand for, each with what its own letters and frequency say for it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from heddle.core import Config, ConfigError, check_at_least, replace, settings
from heddle.tasks.correcting.error_model import ErrorModel
from heddle.tasks.correcting.lexicon import POSSESSIVE, Lexicon, plain
from heddle.tasks.correcting.neighbours import NeighbourIndex
from heddle.tasks.correcting.word_layout import WordSpan, begins_sentence, match_case

ROUGH = 36  # near words that the error model is asked of
FEW = 12  # of them that are kept, before anything of the context is known
UNKNOWN = 10.0  # nats against an unknown word that stands alone
SHORTEST = 2  # letters of a word that may be taken for another
CACHE = 1 << 16


@settings
class NoisyChannelWeights(Config):
    """How much each witness counts, in a sum of log-probabilities; tuned on text with known errors.

    rate: how many of all words are wrong. known: nats for a word that is known, for errors seldom make one; unknown:
    nats against one that is not (below 0: for it, since frequency and context speak against it already); name: nats
    for it where a capital marks a name.
    """

    rate: float = 0.05
    context: float = 0.39
    frequency: float = 0.63
    errors: float = 0.81
    known: float = 1.0
    unknown: float = -3.94
    name: float = 2.86
    space: float = -7.0  # log-probability of a space too few or too many

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError("rate", want="above 0 and below 1", got=self.rate)
        check_at_least(0, context=self.context, frequency=self.frequency, errors=self.errors)


@dataclass(frozen=True)
class Suggestion:
    """A text that may be meant in place of a stretch, and the score of it but for its context."""

    text: str
    start: int
    end: int
    base: float
    errors: float = 0.0  # log-probability of writing it as it was written
    frequency: float = 0.0  # and of the word by itself


@dataclass(frozen=True)
class WordCandidate:
    """A word that may be meant, as the vocabulary has it, and how probably it is written as it was."""

    word: str
    errors: float
    frequency: float

    @property
    def mark(self) -> float:
        """Return how likely it is where nothing of the context is known."""
        return self.errors + self.frequency


@final
class Suggester:
    """Lists what a word may stand for; the first is always the word as it is written."""

    def __init__(self, words: Lexicon, errors: ErrorModel, weights: NoisyChannelWeights, alone: bool) -> None:
        # without context, letters and frequency are all there is, and an unknown word near a known one is an error
        self.weights = replace(weights, frequency=1.0, errors=1.0, unknown=UNKNOWN) if alone else weights
        self.words, self.errors = words, errors
        self._nearby = NeighbourIndex(words)
        self._cached = lru_cache(maxsize=CACHE)(self._variants)

    def options(self, text: str, spans: Sequence[WordSpan], at: int) -> list[Suggestion]:
        """Return what the word at a place may stand for, as it is written first, then the likeliest."""
        span = spans[at]
        known = self.words.knows(span.text)
        if len(span.text) < SHORTEST:
            return [Suggestion(span.text, span.start, span.end, 0.0)]
        weights, frequency = self.weights, self.words.logprob(span.text)
        stay = math.log1p(-weights.rate) + weights.frequency * frequency
        if known:
            stay += weights.known
        else:
            capital = span.text[:1].isupper() and not begins_sentence(text, span.start)
            stay += weights.name * capital - weights.unknown
        found = [(v, span) for v in self._cached(plain(span.text), known)]
        if not known:
            found = sorted([*found, *self._joined(text, spans, at)], key=lambda pair: -pair[0].mark)
        written = Suggestion(span.text, span.start, span.end, stay, 0.0, frequency)
        return [written, *(self._option(v, whole) for v, whole in found)]

    def _option(self, variant: WordCandidate, span: WordSpan) -> Suggestion:
        weights = self.weights
        score = weights.errors * variant.errors + weights.frequency * variant.frequency + math.log(weights.rate)
        text = match_case(variant.word, span.text)
        return Suggestion(text, span.start, span.end, score, variant.errors, variant.frequency)

    def _variants(self, written: str, known: bool) -> list[WordCandidate]:
        """Return the known words near a written one; those near a known word are few, for most words are right."""
        ending = ""
        if not known and (match := POSSESSIVE.search(written)):
            written, ending = written[: match.start()], match[0]
        near = self._nearby.near(written, ROUGH // 3 if known else ROUGH, edits=1 if known else 2)
        found = [
            WordCandidate(n.word + ending, self.errors.logprob(written, n.word), self.words.logprob(n.word))
            for n in near
        ]
        if not known and not ending:
            found += self._split_word(written)
        found.sort(key=lambda v: -v.mark)
        return found[: FEW // 3 if known else FEW]

    def _split_word(self, written: str) -> Iterator[WordCandidate]:
        """Yield a word as two known ones, the best two: a space was left out."""
        halves = [(written[:i], written[i:]) for i in range(1, len(written))]
        known = [(a, b) for a, b in halves if a in self.words and b in self.words and min(len(a), len(b)) > (a != "a")]
        if known:
            # the rarer half counts: the other comes with it
            marks = [min(self.words.logprob(first), self.words.logprob(second)) for first, second in known]
            best = marks.index(max(marks))
            yield WordCandidate(" ".join(known[best]), self.weights.space, marks[best])

    def _joined(self, text: str, spans: Sequence[WordSpan], at: int) -> Iterator[tuple[WordCandidate, WordSpan]]:
        """Yield a word as one with its neighbour, where that is a known word: a space was put in."""
        for left, right in ((at - 1, at), (at, at + 1)):
            if left >= 0 and right < len(spans) and text[spans[left].end : spans[right].start] == " ":
                joined = plain(spans[left].text + spans[right].text)
                if joined in self.words:
                    whole = WordSpan(spans[left].start, spans[right].end, text[spans[left].start : spans[right].end])
                    yield WordCandidate(joined, self.weights.space, self.words.logprob(joined)), whole
