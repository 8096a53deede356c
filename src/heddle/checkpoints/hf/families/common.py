"""Words: what several families call the same things."""

import math
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.family import NoCounterpart
from heddle.core import ConfigError
from heddle.nn.positions import (
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    RotaryPositionConfig,
    RotaryScalingConfig,
    YarnScalingConfig,
)

# Theirs -> ours; where they have several words for one, the first is the one that we write.
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
    """Return their word for an activation."""
    for hf_name, name in ACTIVATIONS.items():
        if name == activation:
            return hf_name
    raise NoCounterpart(f"it has no activation {activation!r}")


def read_rotary(hf: HfConfig, default: float = 10_000.0, part: float | None = None) -> RotaryPositionConfig:
    """Return rotary positions; they stand in one table since version 5, in two keys before.

    `part` is how much of a head turns where nothing is said; None: their code turns whole heads, whatever is said.
    """
    found = hf.part("rope_parameters")
    old = hf.part("rope_scaling")
    base = found.real("rope_theta", hf.real("rope_theta", default))
    share = found.real("partial_rotary_factor", hf.real("partial_rotary_factor", part or 1.0))
    if part is None and share != 1:
        raise ConfigError(f"{hf.where}: partial_rotary_factor", want="1, for this family turns all of it", got=share)
    return RotaryPositionConfig(base=base, share=share, scaling=_scaling(found if found.data else old, hf))


def _scaling(found: HfConfig, whole: HfConfig) -> RotaryScalingConfig:
    names = {name: name for name in ("default", "linear", "yarn", "llama3")}
    kind = found.word("rope_type", names, found.data.get("type", "default"))
    if kind == "default":
        return NoScalingConfig()
    factor = found.real("factor")
    if kind == "linear":
        return LinearScalingConfig(factor=factor)
    original = found.number("original_max_position_embeddings", whole.number("max_position_embeddings"))
    if kind == "llama3":
        low, high = found.real("low_freq_factor"), found.real("high_freq_factor")
        return Llama3ScalingConfig(factor=factor, original=original, low=low, high=high)
    attention = _attention_factor(found, factor)
    fast, slow = found.real("beta_fast", 32.0), found.real("beta_slow", 1.0)
    whole_pairs = found.flag("truncate", True)
    return YarnScalingConfig(
        factor=factor, original=original, fast=fast, slow=slow, attention=attention, whole=whole_pairs
    )


def _attention_factor(found: HfConfig, factor: float) -> float | None:
    """Return the factor on cosines and sines; None where it follows from the stretch."""
    given, weight, all_weight = (found.maybe_real(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is None and weight and all_weight:
        return yarn_mscale(factor, weight) / yarn_mscale(factor, all_weight)
    return given


def yarn_mscale(factor: float, weight: float) -> float:
    """Return how much sharper attention must be in rows this much longer (Peng et al. 2023; DeepSeek-V2, 2024)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def write_rotary(position: RotaryPositionConfig) -> dict[str, Any]:
    """Return rotary positions as they write them."""
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
