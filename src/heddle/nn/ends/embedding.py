"""Embeddings: token id -> vector (Bengio et al. 2003): full, factorized (ALBERT), with segments (BERT)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, Positive, Share, UsageError, check_at_least, part
from heddle.core.shapes import Ids, Stream
from heddle.nn.base import Context, InitialValues, Linear, Module, Place, Role
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig, NoNormConfig, NormConfig
from heddle.nn.positions import NoPositionConfig, PositionConfig

Images = Float[Tensor, "batch channels rows columns"]


class EmbeddingConfig(Config, ABC):
    """How inputs, mostly token ids, become vectors.

    reads: what the inputs are: ids of tokens, frames of features, images.
    """

    reads: ClassVar[Literal["ids", "frames", "images", "video"]] = "ids"

    @abstractmethod
    def build(self, vocab: int | None, width: int, place: Place) -> "Embedding":
        """Build the embedding; a vocab of None means that the inputs are not ids."""

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one frame, or of a whole image; None: the inputs are ids, or images of any size."""
        return None


class Embedding(Module, ABC):
    """A module `(inputs, ctx) -> x`."""

    @abstractmethod
    def forward(self, inputs: Ids | Images, ctx: Context) -> Stream:
        """Return a vector for each id, or for each patch of an image."""

    def length(self, inputs: Ids | Images) -> int:
        """Return how many vectors a row has."""
        return inputs.shape[1]

    def real_lengths(self, inputs: Tensor, lengths: Int[Tensor, " batch"] | None) -> Int[Tensor, " batch"] | None:
        """Return how many vectors of each row are not padding, from how many inputs are not; None: all."""
        return lengths

    def place_names(self, inputs: Tensor) -> tuple[str, ...]:
        """Return a name for each vector of a row: where in the source it is; here its number."""
        return tuple(map(str, range(self.length(inputs))))

    def check_input(self, source: Tensor) -> None:
        """Refuse one source, given as features, that this embedding cannot read."""
        raise UsageError("source: want ids of tokens, because the model reads text, got features")


class EmbeddingTable(Module, ABC):
    """An embedding table in another form than a matrix of floats, such as a quantized one."""

    @abstractmethod
    def rows(self, ids: Ids) -> Stream:
        """Return the row of each id."""


def require_vocab(vocab: int | None) -> int:
    """Return the size of the vocabulary; refuse None."""
    if vocab is None:
        raise ConfigError("vocab", want="the number of token ids", got=None)
    return vocab


@part("full")
class FullEmbeddingConfig(EmbeddingConfig):
    """One vector of the stream's width for each id.

    scale: factor of the vectors.
    power: vectors are also multiplied by width^power: 0.5 in the Transformer of 2017.
    rounded: whether that factor is rounded to the dtype of the weights, as in Gemma.
    dropout: dropout of the embedded tokens.
    word_dropout: embedding dropout: rate at which training drops whole words (Merity et al. 2017).
    """

    old_fields = {"words": "word_dropout"}

    scale: float = 1.0
    power: float = 0.0
    rounded: bool = False
    dropout: DropoutConfig = ElementDropoutConfig()
    word_dropout: Share = 0.0

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return FullEmbedding(require_vocab(vocab), width, self)


class FullEmbedding(Embedding):
    """dropout(weight[ids] * scale)."""

    roles = {"weight": Role.EMBEDDING}

    def __init__(self, vocab: int, width: int, config: FullEmbeddingConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.scale, self.rounded = config.scale * width**config.power, config.rounded
        self.word_dropout = config.word_dropout
        self.dropout = config.dropout.build()
        self.table: EmbeddingTable | None = None  # replaces the weight, if quantized

    def forward(self, inputs: Ids, ctx: Context) -> Stream:
        x = F.embedding(inputs, self.weight) if self.table is None else self.table.rows(inputs).to(self.weight.dtype)
        if self.word_dropout and self.training:
            x = x * F.dropout(x.new_ones(len(self.weight), 1), self.word_dropout)[inputs]
        if self.scale != 1.0:
            x = x * (x.new_full((), self.scale) if self.rounded else self.scale)
        return self.dropout(x)  # type: ignore[no-any-return]


# --- two factors ------------------------------------------------------------------------------------------------------


def factor_initial_values(inner: int, deviation: float | None) -> Mapping[str, InitialValues]:
    """Return initial values of either factor, such that the product has this deviation; None: the initializer's."""
    return {} if deviation is None else {"weight": InitialValues(scale=math.sqrt(deviation) * inner**-0.25)}


class FactorProjection(Module):
    """Projection from an inner width to the stream's; a tied head uses its transpose, by `back`."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, inner: int, width: int, deviation: float | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, inner))
        self.initial_values = factor_initial_values(inner, deviation)

    def forward(self, x: Float[Tensor, "... inner"]) -> Float[Tensor, "... width"]:
        return F.linear(x, self.weight.to(x.dtype))

    def back(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... inner"]:
        """Project from the stream's width to the inner one, by the transposed matrix."""
        return x @ self.weight.to(x.dtype)


@part("factorized")
class FactorizedEmbeddingConfig(EmbeddingConfig):
    """Factorized embedding: a narrow table and a projection to the stream's width (ALBERT, Lan et al. 2020).

    inner: width of the narrow table.
    deviation: standard deviation of the initial vectors; None: the initializer's, for each factor.
    dropout: dropout of the embedded tokens.
    """

    inner: Positive = 128
    deviation: float | None = None
    dropout: DropoutConfig = ElementDropoutConfig()

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return FactorizedEmbedding(require_vocab(vocab), width, self)


class FactorizedEmbedding(Embedding):
    """dropout(map · weight[ids])."""

    roles = {"weight": Role.EMBEDDING}

    def __init__(self, vocab: int, width: int, config: FactorizedEmbeddingConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, config.inner))
        self.map = FactorProjection(config.inner, width, config.deviation)
        self.initial_values = factor_initial_values(config.inner, config.deviation)
        self.dropout = config.dropout.build()

    def forward(self, inputs: Ids, ctx: Context) -> Stream:
        return self.dropout(self.map(F.embedding(inputs, self.weight)))  # type: ignore[no-any-return]


# --- more than the token ----------------------------------------------------------------------------------------------


@part("segmented")
class SegmentedEmbeddingConfig(EmbeddingConfig):
    """Segment embedding: add a vector for the text that a token belongs to, first or second (Devlin et al. 2018).

    tokens: the embedding of the tokens themselves.
    segments: how many texts a row may have.
    """

    tokens: EmbeddingConfig = FullEmbeddingConfig()
    segments: Positive = 2

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return SegmentedEmbedding(vocab, width, self, place)


class SegmentedEmbedding(Embedding):
    """tokens(ids) + segments[ctx.segments]."""

    def __init__(self, vocab: int | None, width: int, config: SegmentedEmbeddingConfig, place: Place) -> None:
        super().__init__()
        self.tokens = config.tokens.build(vocab, width, place)
        self.segments = FullEmbedding(config.segments, width, FullEmbeddingConfig())

    def forward(self, inputs: Ids | Images, ctx: Context) -> Stream:
        x = self.tokens(inputs, ctx)
        own = self.segments.weight[0] if ctx.segments is None else self.segments(ctx.segments, ctx)
        return x + own.to(x.dtype)  # type: ignore[no-any-return]

    def length(self, inputs: Ids | Images) -> int:
        return self.tokens.length(inputs)


@part("narrow")
class NarrowEmbeddingConfig(EmbeddingConfig):
    """ALBERT's embedding: table, positions and norm in a narrow width, then a projection (Lan et al. 2020).

    inner: the narrow width.
    table: the embedding of the tokens.
    position: positions that are added in the narrow width.
    norm: norm in the narrow width.
    dropout: dropout of the embedded tokens.
    """

    inner: int = 128
    table: EmbeddingConfig = FullEmbeddingConfig()
    position: PositionConfig = NoPositionConfig()
    norm: NormConfig = NoNormConfig()
    dropout: DropoutConfig = ElementDropoutConfig()

    def __post_init__(self) -> None:
        check_at_least(1, inner=self.inner)
        if self.position.provides != "stream":
            raise ConfigError("position", want="one that is added to the stream", got=self.position.kind)

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return NarrowEmbedding(vocab, width, self, place)


class NarrowEmbedding(Embedding):
    """map(dropout(norm(table(ids) + positions)))."""

    def __init__(self, vocab: int | None, width: int, config: NarrowEmbeddingConfig, place: Place) -> None:
        super().__init__()
        self.table = config.table.build(vocab, config.inner, place)
        self.position = config.position.build(config.inner, place)
        self.norm, self.dropout = config.norm.build(config.inner), config.dropout.build()
        self.map = Linear(config.inner, width, bias=True)

    def forward(self, inputs: Ids | Images, ctx: Context) -> Stream:
        x = self.table(inputs, ctx)
        self.position.reserve(x.shape[1] if ctx.state is None else ctx.state.capacity)
        x, _ = self.position(x, ctx)
        return self.map(self.dropout(self.norm(x)))  # type: ignore[no-any-return]

    def length(self, inputs: Ids | Images) -> int:
        return self.table.length(inputs)
