"""Log-probability and surprisal of a text, by token and by word, under any model.

A language model uses the chain rule; an encoder-decoder uses it given the source; an encoder scores each token while
it is masked (pseudo-log-likelihood, Salazar et al. 2020). The text is the beginning of a document, or follows a
context; the probability that it ends is not counted.

Words are separated by whitespace. The log-probability of a word includes either the whitespace before it, as its tokens
mostly do, or that after it: then the probability that the word before has ended is moved from the first token to that
word (Oh & Schuler 2024; Pimentel & Meister 2024). Either way the words add up to the whole text.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import Config, ConfigError, DamageError, UsageError, bounded_exp, brief, nearest, settings
from heddle.decoding.runtime import StreamingConfig
from heddle.decoding.scoring import Continuation, MaskedText, any_token_loss, nll_long_texts, scoring_windows
from heddle.models.networks import Encoder, EncoderDecoder, LanguageModel, Model, require
from heddle.tasks.scoring.nll import (
    conditional_token_nll,
    mask_id,
    masked_token_nll,
    token_nll,
    with_document_start,
)
from heddle.text.tokenizers import Tokenizer, Word, word_start_ids, words_of

Ids = list[list[int]]


@dataclass(frozen=True)
class ScoringInput:
    """A text to score, the context right before it, and the source for an encoder-decoder."""

    text: str
    context: str = ""
    source: str | None = None


@settings
class ScoringConfig(Config):
    """How texts are scored: the sliding window, what is masked for an encoder, which whitespace belongs to a word."""

    window: int | None = None  # of a language model, in tokens; None: its context
    stride: int | None = None  # None: half a window
    hide: Literal["token", "rest", "word"] = "token"  # masked for an encoder, from the token on
    spaces: Literal["before", "after"] = "before"  # which whitespace belongs to a word
    sinks: int | None = None  # attention sinks: keep so many first tokens and the latest `window`; None: windows

    def __post_init__(self) -> None:
        if self.hide not in ("token", "rest", "word"):
            raise ConfigError("hide", want="token, rest or word", got=self.hide)
        if self.spaces not in ("before", "after"):
            raise ConfigError("spaces", want="before or after", got=self.spaces)
        if self.sinks is not None:
            if self.stride is not None:
                raise ConfigError("stride", want="none with sinks, since each token is read once", got=self.stride)
            if self.window is None:
                raise ConfigError("window", want="a number of tokens beside sinks", got=None)

    @property
    def streaming(self) -> StreamingConfig | None:
        """Return what is kept of a text with attention sinks; None: it is read in windows."""
        if self.sinks is None or self.window is None:
            return None
        return StreamingConfig(window=self.window, sinks=self.sinks)


DEFAULT = ScoringConfig()


class ScoringOptions(TypedDict, total=False):
    """The fields of `ScoringConfig` as keyword arguments."""

    window: int | None
    stride: int | None
    hide: Literal["token", "rest", "word"]
    spaces: Literal["before", "after"]
    sinks: int | None


def scoring_config(options: ScoringOptions) -> ScoringConfig:
    """Return a config from keyword arguments; refuse an unknown one and suggest the nearest."""
    for name in options:
        if name not in ScoringOptions.__annotations__:
            known = ", ".join(("source", "context", *ScoringOptions.__annotations__))
            raise ConfigError(
                name, want=f"one of {known}", got=name, near=nearest(name, ScoringOptions.__annotations__)
            )
    for name, value in options.items():
        if name in ("window", "stride", "sinks") and not isinstance(value, int | None):
            raise ConfigError(name, want="a whole number", got=value)
    return ScoringConfig(**options)


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """A token or a word of a scored text."""

    text: str
    logprob: float  # nats

    @property
    def surprisal(self) -> float:
        """Return the surprisal in bits."""
        return max(0.0, -self.logprob / math.log(2))


@dataclass(frozen=True, eq=False)
class TextScore:
    """The log-probability of a text and what follows from it; for an encoder, the pseudo-log-likelihood."""

    text: str
    ids: NDArray[np.int64] = field(repr=False)
    logprobs: NDArray[np.float64] = field(repr=False)  # nats, of each token
    tokenizer: Tokenizer = field(repr=False)
    breaks: NDArray[np.float64] | None = field(default=None, repr=False)  # log P(a word ended before it)

    def __repr__(self) -> str:
        """Show the text, cut short, and its numbers."""
        figures = (
            f"logprob={self.logprob:.4f}, perplexity={self.perplexity:.4g}, bits_per_byte={self.bits_per_byte:.4f}"
        )
        return f"TextScore({brief(self.text, 60)}, {figures}, tokens={len(self.ids)})"

    @cached_property
    def logprob(self) -> float:
        """Return the log-probability of the whole text, in nats."""
        return math.fsum(self.logprobs.tolist())

    @property
    def surprisal(self) -> float:
        """Return the surprisal of the whole text, in bits."""
        return max(0.0, -self.logprob / math.log(2))

    @property
    def perplexity(self) -> float:
        """Return the perplexity per token."""
        return bounded_exp(-self.logprob / max(1, len(self.ids)))

    @property
    def bits_per_byte(self) -> float:
        """Return the bits per byte of the text; each byte that unknown tokens hide costs eight bits more."""
        lost = self.tokenizer.lost_bytes(self.text) if self.unknown else 0
        return (self.surprisal + 8 * lost) / max(1, len(self.text.encode()))

    @property
    def unknown(self) -> int:
        """Count the unknown tokens."""
        return 0 if self.tokenizer.unknown is None else int((self.ids == self.tokenizer.unknown).sum())

    @cached_property
    def tokens(self) -> tuple[ScoredSpan, ...]:
        """Return the text's tokens."""
        names = {id: self.tokenizer.token(id) for id in set(self.ids.tolist())}
        return tuple(ScoredSpan(names[id], x) for id, x in zip(self.ids.tolist(), self.logprobs.tolist(), strict=True))

    @cached_property
    def words(self) -> tuple[ScoredSpan, ...]:
        """Return the text's words, whose log-probabilities add up to its own."""
        words = words_of(self.text, self.tokenizer.spans(self.text))
        sums = [math.fsum(self.logprobs[word.first : word.last].tolist()) for word in words]
        for number, moved in self._moved(words):
            sums[number] -= moved
            sums[number - 1] += moved
        return tuple(ScoredSpan(word.text, total) for word, total in zip(words, sums, strict=True))

    def _moved(self, words: Sequence[Word]) -> Iterator[tuple[int, float]]:
        """Yield the index of each word but the first, and the log-probability that the word before it has ended."""
        if self.breaks is None:
            return
        for number, word in enumerate(words):
            if number and word.first < word.last:
                yield number, float(self.breaks[word.first])


# --- scoring ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextScorer:
    """A model with its tokenizer and its scoring config."""

    model: Model
    tokenizer: Tokenizer
    config: ScoringConfig = DEFAULT

    @property
    def wants_source(self) -> bool:
        """Tell whether each input must have a source; otherwise it must have none."""
        return self.model.reads_source

    @property
    def _own(self) -> Tokenizer:
        """Return the tokenizer of the scored texts; sources may have another."""
        return self.tokenizer.for_target if self.wants_source else self.tokenizer

    def run(self, inputs: Sequence[ScoringInput]) -> list[TextScore]:
        """Return the score of each text, in order; texts of similar length are batched."""
        texts = [each.text for each in inputs]
        ids = self._own.encode_many(texts)
        after = self._own.encode_many([each.context for each in inputs])
        losses = list(self._losses(inputs, ids, after, None))
        members = self._word_starts()
        breaks = [None] * len(ids) if members is None else list(self._losses(inputs, ids, after, members))
        return [self._scored(*each) for each in zip(texts, ids, losses, breaks, strict=True)]

    def _losses(
        self, inputs: Sequence[ScoringInput], ids: Ids, after: Ids, members: Sequence[int] | None
    ) -> Iterable[Tensor]:
        """Return the NLL of each token, or of the event that any of `members` comes instead."""
        if not self.model.can_generate:
            encoder = require(self.model, Encoder, _refusal(self.model))
            return masked_token_nll(encoder, self.tokenizer, self._masked_texts(inputs, ids, after))
        documents = [Continuation(*each) for each in zip(ids, after, strict=True)]
        if self.model.reads_source:
            translator = require(self.model, EncoderDecoder, _refusal(self.model))
            measure = None if members is None else any_token_loss(translator, members)
            return conditional_token_nll(translator, self.tokenizer, self._sources(inputs), documents, measure)
        model = require(self.model, LanguageModel, _refusal(self.model))
        if any(each.source is not None for each in inputs):
            raise UsageError("score: want no source, since a language model has no encoder")
        token_loss = None if members is None else any_token_loss(model, members)
        if self.config.streaming is not None:
            begin, framed = with_document_start(self.tokenizer, documents)
            return nll_long_texts(model, framed, begin, self.config.streaming, token_loss)
        windows = scoring_windows(model, self.config.window, self.config.stride)
        return token_nll(model, self.tokenizer, documents, windows, token_loss)

    def _sources(self, inputs: Sequence[ScoringInput]) -> list[str]:
        sources = [each.source for each in inputs if each.source is not None]
        if len(sources) < len(inputs):
            raise UsageError("score: an encoder-decoder needs source=[...], one for each text")
        return sources

    def _masked_texts(self, inputs: Sequence[ScoringInput], ids: Ids, after: Ids) -> Iterator[MaskedText]:
        for each, own, before in zip(inputs, ids, after, strict=True):
            if each.source is not None:
                raise UsageError("score: want no source, since an encoder reads one text")
            yield MaskedText(own, before, self._mask_ranges(each.text))

    def _mask_ranges(self, text: str) -> list[tuple[int, int]] | None:
        """Return the range of tokens that is masked for each token; None: the token alone."""
        if self.config.hide == "token":
            return None
        words = words_of(text, self.tokenizer.spans(text))
        whole = self.config.hide == "word"
        return [(word.first if whole else i, word.last) for word in words for i in range(word.first, word.last)]

    def _word_starts(self) -> list[int] | None:
        return word_start_ids(self.tokenizer) if self.config.spaces == "after" else None

    def _scored(self, text: str, ids: list[int], losses: Tensor, breaks: Tensor | None) -> TextScore:
        known, logprobs = np.asarray(ids, np.int64), -losses.double().numpy()
        if not np.isfinite(logprobs).all():
            raise DamageError("log-probabilities are not finite: the weights are damaged or the training diverged")
        return TextScore(text, known, logprobs, self._own, None if breaks is None else -breaks.double().numpy())


def text_scorer(model: Model, tokenizer: Tokenizer, config: ScoringConfig = DEFAULT) -> TextScorer:
    """Return a text scorer; refuse a model or a config that cannot score."""
    windowed = (config.window, config.stride, config.sinks) != (None, None, None)
    if windowed and (model.reads_source or not model.can_generate):
        whole = "source and text" if model.reads_source else "the text"
        raise UsageError(f"score: want no window, since {model.config.noun} reads {whole} whole")
    if not model.can_generate:
        mask_id(tokenizer)
    if config.hide != "token" and model.can_generate:
        raise UsageError(f"hide: want token, since only an encoder scores masked tokens, got {config.hide}")
    if config.spaces == "after":
        _refuse_spaces(model, tokenizer)
    made = TextScorer(model, tokenizer, config)
    made.run([])  # refuses at once a model or windows that cannot score
    return made


def _refusal(model: Model) -> UsageError:
    return UsageError(f"score: want a language model, an encoder-decoder or an encoder, got {type(model).__name__}")


def _refuse_spaces(model: Model, tokenizer: Tokenizer) -> None:
    if not model.can_generate:
        raise UsageError("spaces: want before, since an encoder does not predict from left to right, got after")
    if not any(tokenizer.token(id)[:1] == " " for id in word_start_ids(tokenizer)):
        raise UsageError("spaces: want before, since no token of this tokenizer begins with a space, got after")
