"""OLMo 2 (2024): Llama's parts with post-norm inside the residual branch, and QK-norm across all heads."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.llama import CHANNEL, MAPS, OUTPUT, base, write_base
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.nn.attention import ProjectionsConfig
from heddle.nn.layers import NoNormConfig, RMSNormConfig
from heddle.nn.stack import BranchConfig, NormedConfig, RepeatConfig

NORMS = {
    "mixer.join.norm": "post_attention_layernorm",
    "channel.join.norm": "post_feedforward_layernorm",
    "mixer.part.query_across": "self_attn.q_norm",
    "mixer.part.key_across": "self_attn.k_norm",
}


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    norm, biased = RMSNormConfig(eps=hf.number("rms_norm_eps", 1e-5)), hf.flag("attention_bias", False)
    made = base(hf, ProjectionsConfig(bias=biased, output_bias=biased, across=norm))
    after = swap(BranchConfig, lambda b: replace(b, norm=NoNormConfig(), join=NormedConfig(norm=norm)))
    return replace(after(made), norm=norm)


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    none = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))  # the defaults can exceed a small vocabulary
    return write_base(config) | {"attention_bias": one(config, ProjectionsConfig).bias} | none


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    layers = one(config, RepeatConfig).times
    yield from map_names({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    inner = MAPS | OUTPUT | CHANNEL | NORMS
    yield from map_names(each_layer(layers, "stack", "model.layers", inner), "weight")
    biased = MAPS | OUTPUT if one(config, ProjectionsConfig).bias else {}
    yield from map_names(each_layer(layers, "stack", "model.layers", biased), "bias")


FAMILY = Family("olmo2", ("Olmo2ForCausalLM",), read, write, weight_maps)
