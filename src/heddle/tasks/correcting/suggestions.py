"""Spelling suggestions for a written word, scored by the error model and by word frequency."""

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

SCORED = 36  # neighbours that the error model scores
MAX_SUGGESTIONS = 12  # of these, the suggestions that are kept for the context to decide
UNKNOWN = 10.0  # nats against an unknown word, without a language model
MIN_LETTERS = 2  # letters of a word that may be corrected
CACHE = 1 << 16


@settings
class NoisyChannelWeights(Config):
    """Weights of the log-linear noisy channel, a weighted sum of log-probabilities; tuned on text with known errors.

    rate: share of words that are misspelt. known: nats in favour of a known word, since errors seldom produce one.
    unknown: nats against an unknown word (below 0: in its favour, since frequency and context already count against
    it). name: nats in favour of an unknown word that a capital logprobs as a name.
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
    """A text that may be meant by a span, and its score without context."""

    text: str
    start: int
    end: int
    base: float
    errors: float = 0.0  # log-probability of the misspelling, given this text
    frequency: float = 0.0  # log-probability of the word by itself


@dataclass(frozen=True)
class WordCandidate:
    """A word of the lexicon that may be meant, with the log-probability of its misspelling and of itself."""

    word: str
    errors: float
    frequency: float

    @property
    def score(self) -> float:
        """Return the unweighted log-probability, without context."""
        return self.errors + self.frequency


@final
class Suggester:
    """Lists suggestions for a word; the first is always the word as written."""

    def __init__(self, words: Lexicon, errors: ErrorModel, weights: NoisyChannelWeights, alone: bool) -> None:
        # without a language model, letters and frequency decide: an unknown word neighbours a known one is an error
        self.weights = replace(weights, frequency=1.0, errors=1.0, unknown=UNKNOWN) if alone else weights
        self.words, self.errors = words, errors
        self._neighbours = NeighbourIndex(words)
        self._cached = lru_cache(maxsize=CACHE)(self._candidates)

    def suggest(self, text: str, spans: Sequence[WordSpan], at: int) -> list[Suggestion]:
        """Return the suggestions for one of the words of a text: as written first, then the most likely."""
        span = spans[at]
        known = self.words.knows(span.text)
        if len(span.text) < MIN_LETTERS:
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
            found = sorted([*found, *self._joined(text, spans, at)], key=lambda pair: -pair[0].score)
        written = Suggestion(span.text, span.start, span.end, stay, 0.0, frequency)
        return [written, *(self._suggestion(v, whole) for v, whole in found)]

    def _suggestion(self, candidate: WordCandidate, span: WordSpan) -> Suggestion:
        weights = self.weights
        score = weights.errors * candidate.errors + weights.frequency * candidate.frequency + math.log(weights.rate)
        text = match_case(candidate.word, span.text)
        return Suggestion(text, span.start, span.end, score, candidate.errors, candidate.frequency)

    def _candidates(self, written: str, known: bool) -> list[WordCandidate]:
        """Return the known words near a written one; fewer for a known word, since most words are right."""
        ending = ""
        if not known and (match := POSSESSIVE.search(written)):
            written, ending = written[: match.start()], match[0]
        neighbours = self._neighbours.find(written, SCORED // 3 if known else SCORED, edits=1 if known else 2)
        found = [
            WordCandidate(n.word + ending, self.errors.logprob(written, n.word), self.words.logprob(n.word))
            for n in neighbours
        ]
        if not known and not ending:
            found += self._split_word(written)
        found.sort(key=lambda v: -v.score)
        return found[: MAX_SUGGESTIONS // 3 if known else MAX_SUGGESTIONS]

    def _split_word(self, written: str) -> Iterator[WordCandidate]:
        """Yield the best split into two known words: a space was left out."""
        halves = [(written[:i], written[i:]) for i in range(1, len(written))]
        known = [(a, b) for a, b in halves if a in self.words and b in self.words and min(len(a), len(b)) > (a != "a")]
        if known:
            # the rarer half counts
            logprobs = [min(self.words.logprob(first), self.words.logprob(second)) for first, second in known]
            best = logprobs.index(max(logprobs))
            yield WordCandidate(" ".join(known[best]), self.weights.space, logprobs[best])

    def _joined(self, text: str, spans: Sequence[WordSpan], at: int) -> Iterator[tuple[WordCandidate, WordSpan]]:
        """Yield the word joined with its neighbour, if that is a known word: a space was put in."""
        for left, right in ((at - 1, at), (at, at + 1)):
            if left >= 0 and right < len(spans) and text[spans[left].end : spans[right].start] == " ":
                joined = plain(spans[left].text + spans[right].text)
                if joined in self.words:
                    whole = WordSpan(spans[left].start, spans[right].end, text[spans[left].start : spans[right].end])
                    yield WordCandidate(joined, self.weights.space, self.words.logprob(joined)), whole
