"""What several Hugging Face families share: activations, rotary embeddings and their scaling, stacks of blocks."""

import math
from collections.abc import Sequence
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.family import NoCounterpart, expect
from heddle.core import ConfigError
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.nn.positions import (
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    RotaryPositionConfig,
    RotaryScalingConfig,
    YarnScalingConfig,
)
from heddle.nn.stack import BlockConfig, ChainConfig, PlanConfig, RepeatConfig

# Hugging Face name -> Heddle name; of several names, the first is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
    "tanh": "tanh",
    "relu2": "relu_squared",
}


def activation_name(activation: str) -> str:
    """Return Hugging Face's name for an activation."""
    for hf_name, name in ACTIVATIONS.items():
        if name == activation:
            return hf_name
    raise NoCounterpart(f"it has no activation {activation!r}")


def read_rotary(hf: HfConfig, default: float = 10_000.0, part: float | None = None) -> RotaryPositionConfig:
    """Return the rotary embedding; transformers 5 has one table for it, older configs two keys.

    `part` is the default share of a head that is rotated; None: this family always rotates whole heads.
    """
    found = hf.nested("rope_parameters")
    old = hf.nested("rope_scaling")
    base = found.number("rope_theta", hf.number("rope_theta", default))
    share = found.number("partial_rotary_factor", hf.number("partial_rotary_factor", part or 1.0))
    if part is None and share != 1:
        raise ConfigError(f"{hf.where}: partial_rotary_factor", want="1, the whole head", got=share)
    return RotaryPositionConfig(base=base, share=share, scaling=_scaling(found if found.data else old, hf))


def _scaling(found: HfConfig, whole: HfConfig) -> RotaryScalingConfig:
    names = {name: name for name in ("default", "linear", "yarn", "llama3")}
    kind = found.choice("rope_type", names, found.data.get("type", "default"))
    if kind == "default":
        return NoScalingConfig()
    factor = found.number("factor")
    if kind == "linear":
        return LinearScalingConfig(factor=factor)
    original = found.integer("original_max_position_embeddings", whole.integer("max_position_embeddings"))
    if kind == "llama3":
        low, high = found.number("low_freq_factor"), found.number("high_freq_factor")
        return Llama3ScalingConfig(factor=factor, original=original, low=low, high=high)
    attention = _attention_factor(found, factor)
    fast, slow = found.number("beta_fast", 32.0), found.number("beta_slow", 1.0)
    whole_pairs = found.flag("truncate", True)
    return YarnScalingConfig(
        factor=factor, original=original, fast=fast, slow=slow, attention=attention, whole=whole_pairs
    )


def _attention_factor(found: HfConfig, factor: float) -> float | None:
    """Return YaRN's attention factor; None where it follows from the scaling factor."""
    given, weight, all_weight = (found.maybe_number(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is None and weight and all_weight:
        return yarn_mscale(factor, weight) / yarn_mscale(factor, all_weight)
    return given


def yarn_mscale(factor: float, weight: float) -> float:
    """Return YaRN's mscale, the attention temperature for a longer context (Peng et al. 2023; DeepSeek-V2, 2024)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def write_rotary(position: RotaryPositionConfig) -> dict[str, Any]:
    """Return a rotary embedding as Hugging Face's `rope_parameters`."""
    keys: dict[str, Any] = {"rope_theta": position.base}
    if position.share != 1:
        keys["partial_rotary_factor"] = position.share
    match position.scaling:
        case NoScalingConfig():
            return keys | {"rope_type": "default"}
        case LinearScalingConfig(factor=factor):
            return keys | {"rope_type": "linear", "factor": factor}
        case Llama3ScalingConfig(factor=factor, original=original, low=low, high=high):
            more = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
            return keys | {"rope_type": "llama3", "factor": factor} | more
        case YarnScalingConfig() as yarn:
            more = {"beta_fast": yarn.fast, "beta_slow": yarn.slow, "truncate": yarn.whole}
            if yarn.attention is not None:
                more["attention_factor"] = yarn.attention
            more["original_max_position_embeddings"] = yarn.original
            return keys | {"rope_type": "yarn", "factor": yarn.factor} | more
        case other:
            raise NoCounterpart(f"it has no rotary scaling {other.kind!r}")


def plan_from_blocks(blocks: Sequence[BlockConfig]) -> PlanConfig:
    """Return blocks as a plan: a repeat where all are equal, else a chain, with the same names of weights."""
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
    raise NoCounterpart("its layers form one stack")
