"""Llama (Touvron et al. 2023; Dubey et al. 2024), and families with the same names: Mistral, Qwen2, Qwen3."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name, read_rotary, write_rotary
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import find, replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig, ProjectionsConfig
from heddle.nn.channels import GatedFeedForwardConfig, hidden_width
from heddle.nn.layers import FullMaskConfig, NoNormConfig, NormConfig, RMSNormConfig, SlidingWindowConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.stack import RepeatConfig

MAPS = {
    "mixer.part.query": "self_attn.q_proj",
    "mixer.part.key": "self_attn.k_proj",
    "mixer.part.value": "self_attn.v_proj",
}
OUTPUT = {"mixer.part.output": "self_attn.o_proj"}
CHANNEL = {f"channel.part.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
NORMS = {"mixer.norm": "input_layernorm", "channel.norm": "post_attention_layernorm"}
HEAD_NORMS = {"mixer.part.query_norm": "self_attn.q_norm", "mixer.part.key_norm": "self_attn.k_norm"}
IGNORED = frozenset({"layer_types", "max_window_layers"})


def base(hf: HfConfig, projections: ProjectionsConfig, part: float | None = None) -> LanguageModelConfig:
    """Return what these families share; `part` as for `read_rotary`."""
    eps = hf.number("rms_norm_eps", 1e-6)
    made = preset("llama").config(
        layers=hf.integer("num_hidden_layers"),
        width=hf.integer("hidden_size"),
        heads=hf.integer("num_attention_heads"),
        kv_heads=hf.maybe_integer("num_key_value_heads"),
        hidden=hf.integer("intermediate_size"),
        vocab=hf.integer("vocab_size"),
        context=hf.integer("max_position_embeddings"),
        eps=eps,
        tied=hf.flag("tie_word_embeddings", False),
    )
    made = expect(made, LanguageModelConfig)
    drop = hf.number("attention_dropout", 0.0)
    head_width, activation = hf.maybe_integer("head_dim"), hf.choice("hidden_act", ACTIVATIONS, "silu")
    made = swap(AttentionConfig, lambda a: replace(a, head_width=head_width, projections=projections, dropout=drop))(
        made
    )
    made = swap(GatedFeedForwardConfig, lambda c: replace(c, activation=activation))(made)
    return replace(made, position=read_rotary(hf, part=part))


def read_llama(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Llama."""
    biased = hf.flag("attention_bias", False)
    made = base(hf, ProjectionsConfig(bias=biased, output_bias=biased))
    bias = hf.flag("mlp_bias", False)
    return swap(GatedFeedForwardConfig, lambda c: replace(c, bias=bias))(made)


def read_mistral(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Mistral."""
    window = hf.maybe_integer("sliding_window")
    mask = FullMaskConfig() if window is None else SlidingWindowConfig(size=window)
    return swap(AttentionConfig, lambda a: replace(a, mask=mask))(base(hf, ProjectionsConfig()))


def read_qwen2(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Qwen2: Llama's parts, with biases of query, key and value."""
    hf.require("use_sliding_window", False)  # then the window has no effect
    hf.maybe_integer("sliding_window")
    return base(hf, ProjectionsConfig(bias=True))


def read_qwen3(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Qwen3."""
    hf.require("use_sliding_window", False)  # then the window has no effect
    hf.maybe_integer("sliding_window")
    biased = hf.flag("attention_bias", False)
    norm = RMSNormConfig(eps=hf.number("rms_norm_eps", 1e-6))
    return base(hf, ProjectionsConfig(bias=biased, output_bias=biased, norm=norm))


def write_base(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that these families share."""
    config = expect(config, LanguageModelConfig)
    attention, channel = one(config, AttentionConfig), one(config, GatedFeedForwardConfig)
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": hidden_width(channel, config.width),
        "num_hidden_layers": one(config, RepeatConfig).times,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_width or config.width // attention.heads,
        "hidden_act": activation_name(channel.activation),
        "max_position_embeddings": config.context,
        "rms_norm_eps": one(config, RMSNormConfig).eps,
        "tie_word_embeddings": bool(config.ties),
        "attention_dropout": attention.dropout,
        "rope_parameters": write_rotary(one(config, RotaryPositionConfig)),
    }


def write_llama(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Llama."""
    projections = one(config, ProjectionsConfig)
    more = {"attention_bias": projections.bias, "mlp_bias": one(config, GatedFeedForwardConfig).bias}
    return write_base(config) | more


def write_mistral(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Mistral."""
    windows = find(config, SlidingWindowConfig)
    return write_base(config) | {"sliding_window": windows[0].size if windows else None}


def write_qwen2(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Qwen2."""
    return write_base(config) | {"use_sliding_window": False}


def write_qwen3(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Qwen3."""
    more = {"attention_bias": one(config, ProjectionsConfig).bias, "use_sliding_window": False}
    return write_base(config) | more


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    layers, projections = one(config, RepeatConfig).times, one(config, ProjectionsConfig)
    yield from map_names({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    inner = MAPS | OUTPUT | CHANNEL | NORMS
    norm: NormConfig = projections.norm
    if not isinstance(norm, NoNormConfig):
        inner = inner | HEAD_NORMS
    yield from map_names(each_layer(layers, "stack", "model.layers", inner), "weight")
    biased = MAPS if projections.bias else {}
    biased = biased | (OUTPUT if projections.output_bias else {})
    biased = biased | (CHANNEL if one(config, GatedFeedForwardConfig).bias else {})
    yield from map_names(each_layer(layers, "stack", "model.layers", biased), "bias")


LLAMA = Family("llama", ("LlamaForCausalLM",), read_llama, write_llama, weight_maps, IGNORED)
MISTRAL = Family(
    "mistral",
    ("MistralForCausalLM",),
    read_mistral,
    write_mistral,
    weight_maps,
    IGNORED,
    defaults={"sliding_window": 4096, "num_key_value_heads": 8},
)
QWEN2 = Family(
    "qwen2",
    ("Qwen2ForCausalLM",),
    read_qwen2,
    write_qwen2,
    weight_maps,
    IGNORED,
    defaults={"num_key_value_heads": 32},
)
QWEN3 = Family(
    "qwen3",
    ("Qwen3ForCausalLM",),
    read_qwen3,
    write_qwen3,
    weight_maps,
    IGNORED,
    defaults={"num_key_value_heads": 32, "head_dim": 128},
)
