"""Apertus (2025): Llama's attention with normed queries and keys, and a feed-forward without a gate.

Its own activation, xIELU, has weights and is not known here; with squared ReLU (`relu2`) it is Heddle's `first`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import read_rotary
from heddle.checkpoints.hf.families.llama import HEAD_NORMS, MAPS, OUTPUT, base, write_base
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.nn.attention import ProjectionsConfig
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig, hidden_width
from heddle.nn.layers import RMSNormConfig
from heddle.nn.stack import RepeatConfig

LAYER = {
    **MAPS,
    **OUTPUT,
    **HEAD_NORMS,
    "mixer.norm": "attention_layernorm",
    "channel.norm": "feedforward_layernorm",
    "channel.part.up": "mlp.up_proj",
    "channel.part.down": "mlp.down_proj",
}
ROPE = {
    "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
DEFAULTS = {"hidden_act": "xielu", "rms_norm_eps": 1e-5, "rope_parameters": ROPE}


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    norm, biased = RMSNormConfig(eps=hf.number("rms_norm_eps")), hf.flag("attention_bias", False)
    made = base(hf, ProjectionsConfig(bias=biased, output_bias=biased, norm=norm))
    plain = swap(GatedFeedForwardConfig, lambda c: FeedForwardConfig(hidden=c.hidden, activation=c.activation))
    return replace(plain(made), position=read_rotary(hf, 12e6))


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    channel = one(config, FeedForwardConfig)
    gated = GatedFeedForwardConfig(hidden=hidden_width(channel, config.expand().width), activation=channel.activation)
    keys = write_base(swap(FeedForwardConfig, lambda _: gated)(config)) | {
        "attention_bias": one(config, ProjectionsConfig).bias
    }
    none = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))  # the defaults can exceed a small vocabulary
    return keys | none


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    layers = one(config, RepeatConfig).times
    yield from map_names({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    yield from map_names(each_layer(layers, "stack", "model.layers", LAYER), "weight")
    biased = MAPS | OUTPUT if one(config, ProjectionsConfig).bias else {}
    yield from map_names(each_layer(layers, "stack", "model.layers", biased), "bias")


FAMILY = Family("apertus", ("ApertusForCausalLM",), read, write, weight_maps, defaults=DEFAULTS)
