"""Score: how probable a text is, token by token and word by word, to any model.

A language model goes by the chain rule, an encoder-decoder by the chain rule given the source, and an encoder by how
well it tells each token that is hidden from it (Salazar et al. 2020). The text is a beginning of a document, or of what
follows a context; that it ends is not counted.

A word is what whitespace separates. Its odds may hold the whitespace before it, as its tokens mostly do, or that after
it: then what its first token says of the word before it having ended goes to that word (Oh & Schuler 2024; Pimentel &
Meister 2024). Either way the words of a text add up to the text.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import Config, ConfigError, DamageError, UsageError, bounded_exp, nearest, settings
from heddle.decoding.scoring import Continuation, MaskedText, any_token_loss, scoring_windows
from heddle.models.networks import Encoder, EncoderDecoder, LanguageModel, Model
from heddle.tasks.scoring.nll import conditional_token_nll, mask_id, masked_token_nll, token_nll
from heddle.text.tokenizers import Tokenizer, Word, word_start_ids, words_of

Ids = list[list[int]]


@dataclass(frozen=True)
class ScoringInput:
    """A text to score, what stands right before it, and the source that an encoder-decoder is given."""

    text: str
    context: str = ""
    source: str | None = None


@settings
class ScoringConfig(Config):
    """How texts are read: through which windows, what is hidden from an encoder, which spaces a word holds."""

    window: int | None = None  # of a language model, in tokens; None: its context
    stride: int | None = None  # None: half a window
    hide: Literal["token", "rest", "word"] = "token"  # from an encoder: a token alone, with the rest of its word, all
    spaces: Literal["before", "after"] = "before"  # which a word's odds hold

    def __post_init__(self) -> None:
        if self.hide not in ("token", "rest", "word"):
            raise ConfigError("hide", want="token, rest or word", got=self.hide)
        if self.spaces not in ("before", "after"):
            raise ConfigError("spaces", want="before or after", got=self.spaces)


PLAIN = ScoringConfig()


class ScoringOptions(TypedDict, total=False):
    """The words of `Reading`, for callers of the library."""

    window: int | None
    stride: int | None
    hide: Literal["token", "rest", "word"]
    spaces: Literal["before", "after"]


def scoring_config(words: ScoringOptions) -> ScoringConfig:
    """Compose words into a config; an unknown one is named with the nearest."""
    for name in words:
        if name not in ScoringOptions.__annotations__:
            known = ", ".join(("source", "context", *ScoringOptions.__annotations__))
            raise ConfigError(
                name, want=f"one of {known}", got=name, near=nearest(name, ScoringOptions.__annotations__)
            )
    for name, value in words.items():
        if name in ("window", "stride") and not isinstance(value, int | None):
            raise ConfigError(name, want="a whole number", got=value)
    return ScoringConfig(**words)


# --- what is found ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A token or a word of a scored text."""

    text: str
    logprob: float  # nats

    @property
    def surprisal(self) -> float:
        """Return how unexpected it was, in bits."""
        return max(0.0, -self.logprob / math.log(2))


@dataclass(frozen=True, eq=False)
class TextScore:
    """How probable a text is; of an encoder, its pseudo-log-likelihood and what follows from that."""

    text: str
    ids: NDArray[np.int64] = field(repr=False)
    logprobs: NDArray[np.float64] = field(repr=False)  # nats, of each token
    tokenizer: Tokenizer = field(repr=False)
    breaks: NDArray[np.float64] | None = field(default=None, repr=False)  # log-odds that a word ended before a token

    @cached_property
    def logprob(self) -> float:
        """Return the log-probability of the whole text, in nats."""
        return math.fsum(self.logprobs.tolist())

    @property
    def surprisal(self) -> float:
        """Return how unexpected the whole text is, in bits."""
        return max(0.0, -self.logprob / math.log(2))

    @property
    def perplexity(self) -> float:
        """Return the perplexity per token."""
        return bounded_exp(-self.logprob / max(1, len(self.ids)))

    @property
    def bits_per_byte(self) -> float:
        """Return the bits that each byte of the text would take to code."""
        return self.surprisal / max(1, len(self.text.encode()))

    @property
    def unknown(self) -> int:
        """Count the tokens that stand for what the tokenizer cannot spell."""
        return 0 if self.tokenizer.unknown is None else int((self.ids == self.tokenizer.unknown).sum())

    @cached_property
    def tokens(self) -> tuple[Piece, ...]:
        """Return the text's tokens."""
        names = {id: self.tokenizer.token(id) for id in set(self.ids.tolist())}
        return tuple(Piece(names[id], x) for id, x in zip(self.ids.tolist(), self.logprobs.tolist(), strict=True))

    @cached_property
    def words(self) -> tuple[Piece, ...]:
        """Return the text's words, whose log-probabilities add up to its own."""
        words = words_of(self.text, self.tokenizer.spans(self.text))
        sums = [math.fsum(self.logprobs[word.first : word.last].tolist()) for word in words]
        for number, moved in self._moved(words):
            sums[number] -= moved
            sums[number - 1] += moved
        return tuple(Piece(word.text, total) for word, total in zip(words, sums, strict=True))

    def _moved(self, words: Sequence[Word]) -> Iterator[tuple[int, float]]:
        """Yield the number of each word but the first, and what its first token says of the one before having ended."""
        if self.breaks is None:
            return
        for number, word in enumerate(words):
            if number and word.first < word.last:
                yield number, float(self.breaks[word.first])


# --- scoring ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextScorer:
    """A model with its tokenizer, and how it reads."""

    model: Model
    tokenizer: Tokenizer
    reading: ScoringConfig = PLAIN

    @property
    def wants_source(self) -> bool:
        """Tell whether each passage must have a source; else it must have none."""
        return isinstance(self.model, EncoderDecoder)

    @property
    def _own(self) -> Tokenizer:
        """Return what cuts the texts that are scored; sources may be cut otherwise."""
        return self.tokenizer.for_target if self.wants_source else self.tokenizer

    def run(self, passages: Sequence[ScoringInput]) -> list[TextScore]:
        """Return how probable each text is, in order; those of near length are read side by side."""
        texts = [passage.text for passage in passages]
        ids = self._own.encode_many(texts)
        after = self._own.encode_many([passage.context for passage in passages])
        losses = list(self._losses(passages, ids, after, None))
        members = self._spaced()
        broken = [None] * len(ids) if members is None else list(self._losses(passages, ids, after, members))
        return [self._scored(*each) for each in zip(texts, ids, losses, broken, strict=True)]

    def _losses(
        self, passages: Sequence[ScoringInput], ids: Ids, after: Ids, members: Sequence[int] | None
    ) -> Iterable[Tensor]:
        """Return what each token costs, or what it costs that one of some comes."""
        model = self.model
        if isinstance(model, Encoder):
            return masked_token_nll(model, self.tokenizer, self._hidings(passages, ids, after))
        documents = [Continuation(*each) for each in zip(ids, after, strict=True)]
        if isinstance(model, EncoderDecoder):
            measure = None if members is None else any_token_loss(model, members)
            return conditional_token_nll(model, self.tokenizer, self._sources(passages), documents, measure)
        assert isinstance(model, LanguageModel)
        if any(passage.source is not None for passage in passages):
            raise UsageError("score: want no source, for a language model has no encoder to read it")
        windows = scoring_windows(model, self.reading.window, self.reading.stride)
        return token_nll(
            model, self.tokenizer, documents, windows, None if members is None else any_token_loss(model, members)
        )

    def _sources(self, passages: Sequence[ScoringInput]) -> list[str]:
        sources = [passage.source for passage in passages if passage.source is not None]
        if len(sources) < len(passages):
            raise UsageError("score: want source=[...], one for each text, for an encoder-decoder")
        return sources

    def _hidings(self, passages: Sequence[ScoringInput], ids: Ids, after: Ids) -> Iterator[MaskedText]:
        for passage, own, before in zip(passages, ids, after, strict=True):
            if passage.source is not None:
                raise UsageError("score: want no source, for an encoder reads one text")
            yield MaskedText(own, before, self._hidden(passage.text))

    def _hidden(self, text: str) -> list[tuple[int, int]] | None:
        """Return which tokens are hidden with each; None: it alone."""
        if self.reading.hide == "token":
            return None
        words = words_of(text, self.tokenizer.spans(text))
        whole = self.reading.hide == "word"
        return [(word.first if whole else i, word.last) for word in words for i in range(word.first, word.last)]

    def _spaced(self) -> list[int] | None:
        return word_start_ids(self.tokenizer) if self.reading.spaces == "after" else None

    def _scored(self, text: str, ids: list[int], losses: Tensor, broken: Tensor | None) -> TextScore:
        known, logprobs = np.asarray(ids, np.int64), -losses.double().numpy()
        if not np.isfinite(logprobs).all():
            raise DamageError("the model's odds are not numbers: its weights are damaged or its training diverged")
        return TextScore(text, known, logprobs, self._own, None if broken is None else -broken.double().numpy())


def text_scorer(model: Model, tokenizer: Tokenizer, reading: ScoringConfig = PLAIN) -> TextScorer:
    """Return a scorer, or say why this model cannot read in this way."""
    if not isinstance(model, LanguageModel | EncoderDecoder | Encoder):
        raise UsageError(f"score: want a language model, an encoder-decoder or an encoder, got {type(model).__name__}")
    windowed = reading.window is not None or reading.stride is not None
    if windowed and not isinstance(model, LanguageModel):
        kind, whole = (
            ("an encoder", "the text") if isinstance(model, Encoder) else ("an encoder-decoder", "source and text")
        )
        raise UsageError(f"score: want no window, for {kind} reads {whole} whole")
    if isinstance(model, Encoder):
        mask_id(tokenizer)
    if reading.hide != "token" and not isinstance(model, Encoder):
        raise UsageError(f"hide: want token, for nothing is hidden from this kind of model, got {reading.hide}")
    if reading.spaces == "after":
        _refuse_spaces(model, tokenizer)
    made = TextScorer(model, tokenizer, reading)
    made.run([])  # says at once what is wrong with the model or the windows
    return made


def _refuse_spaces(model: Model, tokenizer: Tokenizer) -> None:
    if isinstance(model, Encoder):
        raise UsageError("spaces: want before, for an encoder tells no token from those before it alone, got after")
    if not any(tokenizer.token(id)[:1] == " " for id in word_start_ids(tokenizer)):
        raise UsageError("spaces: want before, for no token of this tokenizer begins with a space, got after")
