"""Corrector: spelling in context. Letters, frequency and a language model weigh what each word was meant to be.

A noisy channel (Kernighan, Church & Gale 1990; Brill & Moore 2000) in which the source is a neural language model: a
word is changed where the odds of another, given all words around it, reach a threshold. Words are settled from left to
right, so that each is read after what was made of those before it; of many texts side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from heddle.core import Config, ConfigError, UsageError, bounded_exp, check_at_least, settings
from heddle.models.networks import LanguageModel, Model
from heddle.tasks.correcting.context_scorer import ContextScorer
from heddle.tasks.correcting.error_model import ErrorModel
from heddle.tasks.correcting.lexicon import Lexicon
from heddle.tasks.correcting.segments import CorrectionSlot, Segment
from heddle.tasks.correcting.suggestions import NoisyChannelWeights, Suggester
from heddle.tasks.correcting.word_layout import find_words, is_word_fragment, split_segments
from heddle.text.normalize import NormalizerConfig
from heddle.text.tokenizers import Tokenizer

GAIN = 16.0  # nats by which context may speak for another word in place of a known one; more is hardly ever seen
SLACK = 2.0  # nats that a first glance may be wrong by, where a known word is concerned


@settings
class CorrectorConfig(Config):
    """When a word is changed: at these odds against leaving it; `most` options of a word are read in context.

    normal: the form in which the language model is given text, where it learnt from text in such a form.
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
    """Another text for a stretch, and how probable it is among all that were weighed."""

    text: str
    probability: float


@dataclass(frozen=True)
class Correction:
    """A stretch of the text as it was, what it became, and at which odds."""

    start: int
    end: int
    before: str
    after: str
    odds: float  # against leaving it as it was
    alternatives: tuple[Alternative, ...]  # all that were weighed, the text as it was among them, best first


@dataclass(frozen=True)
class CorrectedText:
    """A text after correction, and what was changed; offsets are those of the text before."""

    text: str
    changes: tuple[Correction, ...]


@final
class Corrector:
    """Corrects texts with a vocabulary, an error model and, where one is given, a language model."""

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
        """Return each text corrected; all that is no changed word stays as it was to the byte."""
        made: list[list[Segment]] = [[] for _ in texts]
        for piece in self.score_segments(texts):
            made[piece.text_index].append(piece)
        return [_corrected(own) for own in made]

    def score_segments(self, texts: Sequence[str]) -> list[Segment]:
        """Return texts in pieces with all that was weighed: for correcting, and for tuning the weights."""
        pieces = [piece for text_index, text in enumerate(texts) for piece in self._pieces(text_index, text)]
        margin = math.log(self.config.threshold)
        for piece in pieces:
            for slot in piece.slots:  # a first guess, so that each word is read among likely ones
                if not slot.known or self._context_scorer is None:
                    slot.choose(margin)
                    piece.drop_overlaps(slot)
        if self._context_scorer is not None:
            self._prune_suggestions(pieces, self._context_scorer)
            self._choose_in_context(pieces, self._context_scorer, margin)
        return pieces

    def _pieces(self, text_index: int, text: str) -> list[Segment]:
        hopeless = math.log(self.config.threshold) - self.config.weights.context * GAIN
        found = []
        for start, end in split_segments(text):
            stretch = text[start:end]
            spans = [
                span
                for span in find_words(stretch)
                if not is_word_fragment(text, start + span.start, start + span.end, end)
            ]
            slots = []
            for at, span in enumerate(spans):
                options, known = self._suggester.options(stretch, spans, at), self._suggester.words.knows(span.text)
                if known and self._context_scorer is not None:
                    options = [o for o in options if o is options[0] or o.base - options[0].base > hopeless]
                if len(options) > 1:
                    slots.append(CorrectionSlot.of(options, known))
            found.append(Segment(stretch, start, text_index, slots))
        return found

    def _prune_suggestions(self, pieces: Sequence[Segment], reader: ContextScorer) -> None:
        """Leave to each slot its most likely options, and drop known words that nothing speaks against at a glance."""
        floor = math.log(self.config.threshold) - SLACK
        for piece, looks in zip(pieces, reader.score_first_tokens(pieces), strict=True):
            gains, kept = iter(looks), []
            for slot in piece.slots:
                order = list(range(1, len(slot.options)))
                if slot.known:
                    gain = [self.config.weights.context * look for look in next(gains)]
                    rough = [o.base + g for o, g in zip(slot.options, gain, strict=True)]
                    order = sorted((i for i in order if rough[i] - rough[0] > floor), key=lambda i: -rough[i])
                if order:
                    guess, options = slot.option, [slot.options[i] for i in (0, *order[: self.config.most])]
                    kept.append(CorrectionSlot.of(options, slot.known))
                    kept[-1].chosen = options.index(guess) if guess in options else 0
            piece.slots = kept

    def _choose_in_context(self, pieces: Sequence[Segment], reader: ContextScorer, margin: float) -> None:
        """Weigh the options of the first slot of each piece in context, then of the second, and so on."""
        for turn in range(max((len(piece.slots) for piece in pieces), default=0)):
            now = [(piece, piece.slots[turn]) for piece in pieces if turn < len(piece.slots)]
            for (piece, slot), odds in zip(now, reader.score_suggestions(now), strict=True):
                slot.set_context_scores(odds, self.config.weights.context)
                slot.choose(margin)
                piece.drop_overlaps(slot)


def _context_scorer(model: Model, tokenizer: Tokenizer | None, form: NormalizerConfig | None) -> ContextScorer:
    if not isinstance(model, LanguageModel) or tokenizer is None or model.sight != "past":
        raise UsageError("correct: want a language model that reads from left to right, with its tokenizer")
    return ContextScorer(model, tokenizer, form)


def _corrected(pieces: Sequence[Segment]) -> CorrectedText:
    text = "".join(piece.written(0, len(piece.text)) for piece in pieces)
    changes: list[Correction] = []
    for piece in pieces:
        at = 0
        for slot in piece.slots:
            option = slot.option
            if slot.chosen and option.start >= at:
                changes.append(_change(piece, slot))
                at = option.end
    return CorrectedText(text, tuple(changes))


def _change(piece: Segment, slot: CorrectionSlot) -> Correction:
    option, scores = slot.option, slot.scores
    top = max(scores)
    total = math.fsum(math.exp(score - top) for score in scores)
    ranked = sorted(zip(scores, slot.options, strict=True), key=lambda pair: -pair[0])
    alternatives = tuple(Alternative(o.text, math.exp(score - top) / total) for score, o in ranked)
    odds = bounded_exp(scores[slot.chosen] - scores[0])
    start, end = option.start, option.end
    offset = piece.offset
    return Correction(offset + start, offset + end, piece.text[start:end], option.text, odds, alternatives)
