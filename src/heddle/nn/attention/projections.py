"""Projections: queries, keys and values by heads, and the way back; what attention of every form shares."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from torch import Tensor

from heddle.core import Config, ConfigError, check_at_least, check_share, settings
from heddle.core.shapes import Float, Stream
from heddle.nn.attention.inputs import AttentionInputs, Scores
from heddle.nn.attention.scores import ScoreConfig
from heddle.nn.base import Context, Linear, Role, Stateful
from heddle.nn.layers import NoNormConfig, NormConfig

PerHead = Float[Tensor, "batch _ length _"]  # heads, and the width of each


@settings
class ProjectionsConfig(Config):
    """How queries, keys, values and the output are projected."""

    bias: bool = False  # on queries, keys and values
    output_bias: bool = False
    norm: NormConfig = NoNormConfig()  # of each head's query and key (Henry et al. 2020)
    across: NormConfig = NoNormConfig()  # of all heads' queries at once, and of their keys (OLMo 2, 2024)


@runtime_checkable
class HasHeads(Protocol):
    """The fields that say how a width is divided among heads."""

    @property
    def heads(self) -> int: ...
    @property
    def head_width(self) -> int | None: ...


@runtime_checkable
class HasProjections(HasHeads, Protocol):
    """The fields that describe heads."""

    @property
    def kv_heads(self) -> int | None: ...
    @property
    def projections(self) -> ProjectionsConfig: ...
    @property
    def score(self) -> ScoreConfig: ...
    @property
    def dropout(self) -> float: ...


def check_heads(config: HasProjections) -> None:
    """Refuse heads that cannot be."""
    check_at_least(1, heads=config.heads, head_width=config.head_width)
    check_share(dropout=config.dropout)
    kv_heads = config.heads if config.kv_heads is None else config.kv_heads
    if kv_heads < 1 or config.heads % kv_heads:
        raise ConfigError("kv_heads", want=f"a divisor of heads = {config.heads}", got=kv_heads)


def head_width_for(config: HasHeads, width: int) -> int:
    """Return each head's width in a stream of this width."""
    if config.head_width is not None:
        return config.head_width
    if width % config.heads:
        raise ConfigError("heads", want=f"a divisor of the width {width}", got=config.heads)
    return width // config.heads


class AttentionPart(Stateful, ABC):
    """Attention of any form: a meeting of queries with keys, looked into by `weights`."""

    @abstractmethod
    def attention_inputs(self, x: Stream, ctx: Context) -> AttentionInputs:
        """Return who asks, who answers and what lies between them, without a state."""

    @abstractmethod
    def attention_weights(self, x: Stream, ctx: Context) -> Scores:
        """Return how much each query takes from each key, [batch, heads, query, key]."""


class MultiHeadAttention(AttentionPart, ABC):
    """output(heads of values mixed by weights): the maps around a score. The names of its pieces are a promise."""

    def build_projections(self, width: int, source: int, config: HasProjections) -> None:
        """Build the maps, from a stream of one width that asks and one of another that answers."""
        self.heads, self.head_width = config.heads, head_width_for(config, width)
        self.kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        self.dropout, how = config.dropout, config.projections
        self.query = Linear(width, self.heads * self.head_width, bias=how.bias)
        self.key = Linear(source, self.kv_heads * self.head_width, bias=how.bias)
        self.value = Linear(source, self.kv_heads * self.head_width, bias=how.bias)
        self.output = Linear(self.heads * self.head_width, width, bias=how.output_bias, role=Role.INTO_STREAM)
        self.query_norm = how.norm.build(self.head_width)
        self.key_norm = how.norm.build(self.head_width)
        self.query_across = how.across.build(self.heads * self.head_width)
        self.key_across = how.across.build(self.kv_heads * self.head_width)
        self.score = config.score.build(self.heads, self.head_width)
        self.query.init_scale = self.score.query_init_scale()

    def split_query(self, query: Stream) -> PerHead:
        """Return projected queries by heads, normed."""
        heads = self.query_across(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.query_norm(heads)  # type: ignore[no-any-return]

    def split_key_value(self, key: Stream, value: Stream) -> tuple[PerHead, PerHead]:
        """Return projected keys and values by heads, normed."""
        heads = (self.kv_heads, -1)
        key = self.key_norm(self.key_across(key).unflatten(-1, heads).transpose(1, 2))
        return key, value.unflatten(-1, heads).transpose(1, 2)

    def attend(self, inputs: AttentionInputs) -> Stream:
        """Return what the heads together add to the stream."""
        heads = self.score.attend(inputs, self.dropout if self.training else 0.0)
        return self.output(heads.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def attention_weights(self, x: Stream, ctx: Context) -> Scores:
        """Return how much each query takes from each key; with the values it gives what the fast path gives."""
        return self.score.attention_weights(self.attention_inputs(x, ctx))

    def pair_flops(self) -> int:
        """Count what one query costs for each key that it meets."""
        return self.heads * (self.score.flops() + 2 * self.head_width)
