"""Branched attention, the Weighted Transformer (Ahmed et al. 2017): a feed-forward per head, then a weighted sum."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.core import Config, ConfigError, part
from heddle.core.shapes import Stream
from heddle.nn.attention.attention import Attention, AttentionConfig
from heddle.nn.attention.cross import CrossAttention, CrossAttentionConfig
from heddle.nn.base import Context, CrossConfig, InitialValues, MixerConfig, Module, Part, Place, Role, upcast
from heddle.nn.channels import FeedForwardConfig, FeedForwardFamily


class BranchWeightsConfig(Config, ABC):
    """How positive weights of the branches are made to sum to one."""

    @abstractmethod
    def build(self, count: int) -> "BranchWeights":
        """Build the module."""


class BranchWeights(Module, ABC):
    """A module `() -> weights` of the branches."""

    roles = {"weight": Role.BIAS}

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count))

    @abstractmethod
    def forward(self) -> Float[Tensor, " count"]:
        """Return numbers that sum to one."""


@part("softmax")
class SoftmaxBranchWeightsConfig(BranchWeightsConfig):
    """By a softmax: equal at first, and never zero, so that no branch is lost."""

    def build(self, count: int) -> BranchWeights:
        return SoftmaxBranchWeights(count)


class SoftmaxBranchWeights(BranchWeights):
    """softmax(weight)."""

    def forward(self) -> Float[Tensor, " count"]:
        return upcast(self.weight).softmax(0)


@part("clipped")
class ClippedBranchWeightsConfig(BranchWeightsConfig):
    """Clip at zero and divide by the sum; weights begin as uniform numbers.

    Narang et al. clip the weights themselves after each update. Here it is part of the forward, with the same value for
    the same weights, and gradients pass through it.

    least: added to each weight, so that the sum is never zero.
    """

    least: float = 1e-4

    def __post_init__(self) -> None:
        if self.least <= 0:
            raise ConfigError("least", want="more than 0", got=self.least)

    def build(self, count: int) -> BranchWeights:
        return ClippedBranchWeights(count, self.least)


class ClippedBranchWeights(BranchWeights):
    """(max(weight, 0) + least) / sum."""

    initial_values = {"weight": InitialValues(mean=0.5, scale=0.5, distribution="uniform")}

    def __init__(self, count: int, least: float) -> None:
        super().__init__(count)
        self.least = least

    def forward(self) -> Float[Tensor, " count"]:
        clipped = upcast(self.weight).clamp(min=0) + self.least
        return clipped / clipped.sum()


class Branches(Module):
    """sum over heads of alpha * channel(kappa * output(head)), one channel for all: replaces the output projection."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, width: int, heads: int, inner: int, channel: Part, shares: BranchWeightsConfig) -> None:
        super().__init__()
        self.heads = self.repeats = heads
        self.width = width
        self.weight = nn.Parameter(torch.empty(width, inner))
        self.kappa, self.alpha = shares.build(heads), shares.build(heads)
        self.channel = channel

    def forward(self, x: Float[Tensor, "batch length inner"]) -> Stream:
        heads = x.unflatten(-1, (self.heads, -1))
        slices = self.weight.to(x.dtype).unflatten(1, (self.heads, -1))
        branches = torch.einsum("blhd,whd->bhlw", heads, slices) * self.per_head(self.kappa, x)
        outputs: Tensor = self.channel(branches.flatten(0, 1), Context()).unflatten(0, (-1, self.heads))
        return (outputs * self.per_head(self.alpha, x)).sum(1)

    def per_head(self, weights: nn.Module, like: Tensor) -> Float[Tensor, "heads 1 1"]:
        """Return the branch weights in the shape that multiplies branches."""
        return weights().to(like.dtype)[:, None, None]  # type: ignore[no-any-return]

    def mixing_flops(self, length: int) -> int:
        return 4 * self.heads * self.width


def _branch(
    attention: Attention | CrossAttention,
    width: int,
    channel: FeedForwardFamily,
    shares: BranchWeightsConfig,
    place: Place,
) -> Attention | CrossAttention:
    """Replace an attention's output projection by branches."""
    module = channel.build(width, place.child("output").child("channel"))
    module.slot = channel.slot  # for initializers that tell channels from mixers
    inner = attention.heads * attention.head_width
    attention.add_module("output", Branches(width, attention.heads, inner, module, shares))
    return attention


def _check(attention: AttentionConfig | CrossAttentionConfig) -> None:
    if attention.projections.output_bias:
        field = "attention.projections.output_bias"
        raise ConfigError(field, want="false, because branches have no output projection", got=True)


@part("branched_attention")
class BranchedAttentionConfig(MixerConfig):
    """Self-attention whose heads pass one feed-forward each on its own, and are summed by learned weights.

    attention: the attention whose heads become branches.
    channel: the feed-forward network that each head passes.
    shares: how the learned weights of the branches are normalized.
    """

    attention: AttentionConfig
    channel: FeedForwardFamily = FeedForwardConfig(bias=True)
    shares: BranchWeightsConfig = SoftmaxBranchWeightsConfig()

    def __post_init__(self) -> None:
        _check(self.attention)

    def build(self, width: int, place: Place) -> Part:
        return _branch(self.attention.build(width, place), width, self.channel, self.shares, place)


@part("branched_cross_attention")
class BranchedCrossAttentionConfig(CrossConfig):
    """Cross-attention whose heads pass one feed-forward each on its own, and are summed by learned weights.

    attention: the cross-attention whose heads become branches.
    channel: the feed-forward network that each head passes.
    shares: how the learned weights of the branches are normalized.
    """

    attention: CrossAttentionConfig
    channel: FeedForwardFamily = FeedForwardConfig(bias=True)
    shares: BranchWeightsConfig = SoftmaxBranchWeightsConfig()

    def __post_init__(self) -> None:
        _check(self.attention)

    def build(self, width: int, place: Place) -> Part:
        return _branch(self.attention.build(width, place), width, self.channel, self.shares, place)
