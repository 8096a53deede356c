"""Blocks: pre-norm, post-norm, sandwich, parallel and macaron layers, each as an order of branches."""

from heddle.nn.attention import ProjectionsConfig
from heddle.nn.base import ChannelConfig, PartConfig
from heddle.nn.channels import IdentityConfig
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig, NormConfig
from heddle.nn.stack import (
    BlockConfig,
    BranchConfig,
    ChainConfig,
    EntryConfig,
    JoinConfig,
    NormedConfig,
    RepeatConfig,
    ReplaceConfig,
    ResidualConfig,
    SumConfig,
)

BIASED = ProjectionsConfig(bias=True, output_bias=True)
ADD = ResidualConfig()
HALF = ResidualConfig(factor=0.5)


def pre_norm(*parts: PartConfig, norm: NormConfig, dropout: float = 0.0, join: JoinConfig = ADD) -> BlockConfig:
    """Return a pre-norm block: x + part(norm(x)) for each part."""
    drop = ElementDropoutConfig(rate=dropout)
    return BlockConfig(branches=tuple(BranchConfig(part=p, norm=norm, dropout=drop, join=join) for p in parts))


def post_norm(*parts: PartConfig, norm: NormConfig, dropout: float = 0.0, join: JoinConfig = ADD) -> BlockConfig:
    """Return a post-norm block: norm(x + part(x)) for each part (Vaswani et al. 2017)."""
    drop = ElementDropoutConfig(rate=dropout)
    after = BranchConfig(part=IdentityConfig(), norm=norm, join=ReplaceConfig())
    pairs = ((BranchConfig(part=p, dropout=drop, join=join), after) for p in parts)
    return BlockConfig(branches=tuple(branch for pair in pairs for branch in pair))


def sandwich(*parts: PartConfig, norm: NormConfig, dropout: float = 0.0) -> BlockConfig:
    """Return a sandwich block: a norm before and another after each part (Ding et al. 2021)."""
    return pre_norm(*parts, norm=norm, dropout=dropout, join=NormedConfig(norm=norm))


def parallel(*parts: PartConfig, norm: NormConfig, dropout: float = 0.0) -> BlockConfig:
    """Return a parallel block: the sum of all parts of the same normed stream (Wang & Komatsuzaki 2021)."""
    return pre_norm(SumConfig(parts=parts), norm=norm, dropout=dropout)


def macaron(mixer: PartConfig, channel: ChannelConfig, *, norm: NormConfig, dropout: float = 0.0) -> BlockConfig:
    """Return a macaron block: half a feed-forward before the mixer and half after it (Lu et al. 2019)."""
    drop: DropoutConfig = ElementDropoutConfig(rate=dropout)
    halves = BranchConfig(part=channel, norm=norm, dropout=drop, join=HALF)
    return BlockConfig(branches=(halves, BranchConfig(part=mixer, norm=norm, dropout=drop), halves))


def with_entry(block: BlockConfig, layers: int, dropout: float, norm: NormConfig | None = None) -> ChainConfig:
    """Return layers after dropout, and a norm if given, of the embedded stream."""
    drop = ElementDropoutConfig(rate=dropout)
    entry = EntryConfig(dropout=drop) if norm is None else EntryConfig(norm=norm, dropout=drop)
    return ChainConfig(bodies=(entry, RepeatConfig(body=block, times=layers)))
