"""Spelling correction by a noisy channel with a neural language model (Kernighan et al. 1990; Brill & Moore 2000).

A word is changed if the odds of another word, given its letters, its frequency and all words around it, reach a
threshold. Words are decided from left to right, so that each is scored after the corrections before it. Many texts are
processed together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from heddle.core import Config, ConfigError, UsageError, bounded_exp, check_at_least, settings
from heddle.models.networks import LanguageModel, Model, require
from heddle.tasks.correcting.context_scorer import ContextScorer
from heddle.tasks.correcting.error_model import ErrorModel
from heddle.tasks.correcting.lexicon import Lexicon
from heddle.tasks.correcting.segments import CorrectionSlot, Segment
from heddle.tasks.correcting.suggestions import NoisyChannelWeights, Suggester
from heddle.tasks.correcting.word_layout import find_words, is_word_fragment, split_segments
from heddle.text.normalize import NormalizerConfig
from heddle.text.tokenizers import Tokenizer

MAX_CONTEXT_GAIN = 16.0  # nats that context may add for another word than a known one; more is hardly ever seen
SLACK = 2.0  # nats by which the score of the first differing token may be wrong, for known words


@settings
class CorrectorConfig(Config):
    """When to change a word.

    threshold: odds of the correction against the word as written. most: suggestions per word that the language model
    scores. normal: how text is normalized for the language model, if it was trained on normalized text.
    """

    threshold: float = 1.0
    most: int = 6
    weights: NoisyChannelWeights = NoisyChannelWeights()
    normal: NormalizerConfig | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold < math.inf:
            raise ConfigError("threshold", want="odds above 0", got=self.threshold)
        check_at_least(1, most=self.most)


@dataclass(frozen=True)
class Alternative:
    """A text that was considered for a span, and its probability among all considered."""

    text: str
    probability: float


@dataclass(frozen=True)
class Correction:
    """A corrected span: where it is, the text before and after, and the odds."""

    start: int
    end: int
    before: str
    after: str
    odds: float  # of the correction against the text as written
    alternatives: tuple[Alternative, ...]  # all considered, the text as written included, best first


@dataclass(frozen=True)
class CorrectedText:
    """A text after correction, and its corrections; offsets refer to the text before."""

    text: str
    changes: tuple[Correction, ...]


@final
class Corrector:
    """Corrects texts with a lexicon, an error model and optionally a language model."""

    def __init__(
        self,
        words: Lexicon,
        errors: ErrorModel | None = None,
        config: CorrectorConfig | None = None,
        model: Model | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.config = CorrectorConfig() if config is None else config
        self._context_scorer = None if model is None else _context_scorer(model, tokenizer, self.config.normal)
        errors = ErrorModel() if errors is None else errors
        self._suggester = Suggester(words, errors, self.config.weights, alone=model is None)

    def run(self, texts: Sequence[str]) -> list[CorrectedText]:
        """Return each text corrected; everything but the corrected words stays the same to the byte."""
        by_text: list[list[Segment]] = [[] for _ in texts]
        for segment in self.score_segments(texts):
            by_text[segment.text_index].append(segment)
        return [_corrected(own) for own in by_text]

    def score_segments(self, texts: Sequence[str]) -> list[Segment]:
        """Return the texts as scored segments: for correcting, and for tuning the weights."""
        segments = [segment for text_index, text in enumerate(texts) for segment in self._segments(text_index, text)]
        margin = math.log(self.config.threshold)
        for segment in segments:
            for slot in segment.slots:  # a first guess, so that each word is scored in a likely context
                if not slot.known or self._context_scorer is None:
                    slot.choose(margin)
                    segment.drop_overlaps(slot)
        if self._context_scorer is not None:
            self._prune_suggestions(segments, self._context_scorer)
            self._choose_in_context(segments, self._context_scorer, margin)
        return segments

    def _segments(self, text_index: int, text: str) -> list[Segment]:
        hopeless = math.log(self.config.threshold) - self.config.weights.context * MAX_CONTEXT_GAIN
        found = []
        for start, end in split_segments(text):
            chunk = text[start:end]
            spans = [s for s in find_words(chunk) if not is_word_fragment(text, start + s.start, start + s.end, end)]
            slots = []
            for at, span in enumerate(spans):
                options, known = self._suggester.suggest(chunk, spans, at), self._suggester.words.knows(span.text)
                if known and self._context_scorer is not None:
                    options = [o for o in options if o is options[0] or o.base - options[0].base > hopeless]
                if len(options) > 1:
                    slots.append(CorrectionSlot.unscored(options, known))
            found.append(Segment(chunk, start, text_index, slots))
        return found

    def _prune_suggestions(self, segments: Sequence[Segment], scorer: ContextScorer) -> None:
        """Keep the most likely suggestions of each slot; drop known words whose suggestions score too low."""
        floor = math.log(self.config.threshold) - SLACK
        for segment, first_token_gains in zip(segments, scorer.score_first_tokens(segments), strict=True):
            gains, kept = iter(first_token_gains), []
            for slot in segment.slots:
                order = list(range(1, len(slot.options)))
                if slot.known:
                    gain = [self.config.weights.context * first_gain for first_gain in next(gains)]
                    rough = [o.base + g for o, g in zip(slot.options, gain, strict=True)]
                    order = sorted((i for i in order if rough[i] - rough[0] > floor), key=lambda i: -rough[i])
                if order:
                    guess, options = slot.option, [slot.options[i] for i in (0, *order[: self.config.most])]
                    kept.append(CorrectionSlot.unscored(options, slot.known))
                    kept[-1].chosen = options.index(guess) if guess in options else 0
            segment.slots = kept

    def _choose_in_context(self, segments: Sequence[Segment], scorer: ContextScorer, margin: float) -> None:
        """Score the first slot of each segment in context and choose, then the second, and so on."""
        for turn in range(max((len(segment.slots) for segment in segments), default=0)):
            now = [(segment, segment.slots[turn]) for segment in segments if turn < len(segment.slots)]
            for (segment, slot), logprobs in zip(now, scorer.score_suggestions(now), strict=True):
                slot.set_context_scores(logprobs, self.config.weights.context)
                slot.choose(margin)
                segment.drop_overlaps(slot)


def _context_scorer(model: Model, tokenizer: Tokenizer | None, form: NormalizerConfig | None) -> ContextScorer:
    refusal = UsageError("correct: want a language model that reads from left to right, with its tokenizer")
    language_model = require(model, LanguageModel, refusal)
    if tokenizer is None or language_model.sight != "past":
        raise refusal
    return ContextScorer(language_model, tokenizer, form)


def _corrected(segments: Sequence[Segment]) -> CorrectedText:
    text = "".join(segment.render(0, len(segment.text)) for segment in segments)
    changes: list[Correction] = []
    for segment in segments:
        at = 0
        for slot in segment.slots:
            option = slot.option
            if slot.chosen and option.start >= at:
                changes.append(_correction(segment, slot))
                at = option.end
    return CorrectedText(text, tuple(changes))


def _correction(segment: Segment, slot: CorrectionSlot) -> Correction:
    option, scores = slot.option, slot.scores
    top = max(scores)
    total = math.fsum(math.exp(score - top) for score in scores)
    ranked = sorted(zip(scores, slot.options, strict=True), key=lambda pair: -pair[0])
    alternatives = tuple(Alternative(o.text, math.exp(score - top) / total) for score, o in ranked)
    odds = bounded_exp(scores[slot.chosen] - scores[0])
    start, end = option.start, option.end
    offset = segment.offset
    return Correction(offset + start, offset + end, segment.text[start:end], option.text, odds, alternatives)
