"""Attention projections: their config, the checks of heads, and the interface of all attention."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from torch import Tensor

from heddle.core import Config, ConfigError, check_at_least, check_share, settings
from heddle.core.shapes import Float, Stream
from heddle.nn.attention.backends import AttentionInputs, Scores
from heddle.nn.attention.scores import Score, ScoreConfig
from heddle.nn.base import Context, Stateful
from heddle.nn.layers import NoNormConfig, NormConfig

PerHead = Float[Tensor, "batch _ length _"]  # heads and head width


@settings
class ProjectionsConfig(Config):
    """How queries, keys, values and the output are projected.

    bias: whether queries, keys and values have a bias.
    output_bias: whether the output has a bias.
    norm: QK norm of each head's query and key (Henry et al. 2020).
    across: norm of all heads' queries at once, and of their keys (OLMo 2, 2024).
    """

    bias: bool = False
    output_bias: bool = False
    norm: NormConfig = NoNormConfig()
    across: NormConfig = NoNormConfig()


@runtime_checkable
class HasHeads(Protocol):
    """Config fields that divide a width among heads."""

    @property
    def heads(self) -> int: ...
    @property
    def head_width(self) -> int | None: ...


@runtime_checkable
class HasProjections(HasHeads, Protocol):
    """Config fields of multi-head attention."""

    @property
    def kv_heads(self) -> int | None: ...
    @property
    def projections(self) -> ProjectionsConfig: ...
    @property
    def score(self) -> ScoreConfig: ...
    @property
    def dropout(self) -> float: ...


def check_heads(config: HasProjections) -> None:
    """Refuse numbers of heads that do not fit."""
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
    """Attention of any form, whose inputs and weights can be inspected."""

    score: Score
    dropout: float  # attention dropout: rate on the softmax weights

    @abstractmethod
    def attention_inputs(self, x: Stream, ctx: Context) -> AttentionInputs:
        """Return queries, keys and values with mask and bias, without a state."""

    def attention_weights(self, x: Stream, ctx: Context) -> Scores:
        """Return the attention weights, [batch, heads, query, key]."""
        return self.score.attention_weights(self.attention_inputs(x, ctx))
