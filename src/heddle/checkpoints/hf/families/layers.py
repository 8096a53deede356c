"""Layers: a stack as a list of blocks, for families whose layers are not all alike."""

from collections.abc import Sequence

from heddle.checkpoints.hf.family import NoCounterpart, expect
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.nn.stack import BlockConfig, ChainConfig, PlanConfig, RepeatConfig


def plan_from_blocks(blocks: Sequence[BlockConfig]) -> PlanConfig:
    """Return blocks in order as a plan: a repeat where all are alike. Either way, the names of weights are the same."""
    if all(block == blocks[0] for block in blocks):
        return RepeatConfig(body=blocks[0], times=len(blocks))
    return ChainConfig(bodies=tuple(blocks))


def blocks_of(config: ModelConfig) -> list[BlockConfig]:
    """Return the blocks of a language model in order."""
    config = expect(config, LanguageModelConfig)
    match config.plan:
        case RepeatConfig(body=BlockConfig() as body, times=times):
            return [body] * times
        case ChainConfig(bodies=bodies):
            blocks = [body for body in bodies if isinstance(body, BlockConfig)]
            if len(blocks) == len(bodies):
                return blocks
    raise NoCounterpart("its layers stand in one row")
