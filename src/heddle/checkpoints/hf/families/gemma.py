"""Gemma 2 (2024) and Gemma 3, its text model (2025): norms around each part, sliding windows in most layers."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import (
    ACTIVATIONS,
    activation_name,
    blocks_of,
    plan_from_blocks,
    read_rotary,
    write_rotary,
)
from heddle.checkpoints.hf.families.llama import CHANNEL, HEAD_NORMS, MAPS, OUTPUT
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import ConfigError, swap
from heddle.models.networks import TIED, LanguageModelConfig, ModelConfig, sandwich
from heddle.nn.attention import AttentionConfig, DotScoreConfig, ProjectionsConfig, head_width_for
from heddle.nn.channels import GatedFeedForwardConfig, hidden_width
from heddle.nn.ends import FullEmbeddingConfig, SoftmaxHeadConfig
from heddle.nn.layers import FullMaskConfig, NoNormConfig, NormConfig, OffsetRMSNormConfig, SlidingWindowConfig
from heddle.nn.positions import DualRotaryPositionConfig, PositionConfig, RotaryPositionConfig

NEAR, FAR = "sliding_attention", "full_attention"
NORMS = {
    "mixer.norm": "input_layernorm",
    "mixer.join.norm": "post_attention_layernorm",
    "channel.norm": "pre_feedforward_layernorm",
    "channel.join.norm": "post_feedforward_layernorm",
}
IGNORED = frozenset({"hidden_act", "cache_implementation", "_sliding_window_pattern", "sliding_window_pattern"})
DEFAULT_WINDOW = 4096  # the default where no layer has one


def read_gemma2(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Gemma 2."""
    score = DotScoreConfig(scale=_scale(hf), softcap=hf.maybe_number("attn_logit_softcapping"))
    return _model(hf, _attention(hf, score, NoNormConfig()), _kinds(hf, 2), read_rotary(hf))


def read_gemma3(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Gemma 3."""
    hf.require("attn_logit_softcapping", None)
    norm = OffsetRMSNormConfig(eps=hf.number("rms_norm_eps", 1e-6))
    attention = _attention(hf, DotScoreConfig(scale=_scale(hf)), norm)
    every = hf.maybe_integer("sliding_window_pattern") or hf.maybe_integer("_sliding_window_pattern") or 6
    return _model(hf, attention, _kinds(hf, every), _near_and_far(hf))


def _kinds(hf: HfConfig, every: int) -> list[str]:
    """Return the type of each layer; by default, every n-th layer has full attention."""
    layers = hf.integer("num_hidden_layers")
    default = [NEAR if (layer + 1) % every else FAR for layer in range(layers)]
    kinds = hf.choices("layer_types", {NEAR: NEAR, FAR: FAR}, default)
    if len(kinds) != layers:
        raise ConfigError(f"{hf.where}: layer_types", want=f"{layers} of them", got=len(kinds))
    return kinds


def _scale(hf: HfConfig) -> float | None:
    """Return the factor on scores; None: the inverse root of the head width."""
    given = hf.number("query_pre_attn_scalar", 256)
    return None if given == hf.integer("head_dim", 256) else given**-0.5


def _attention(hf: HfConfig, score: DotScoreConfig, norm: NormConfig) -> AttentionConfig:
    if hf.flag("use_bidirectional_attention", None):
        hf.require("use_bidirectional_attention", False)
    biased = hf.flag("attention_bias", False)
    return AttentionConfig(
        heads=hf.integer("num_attention_heads"),
        kv_heads=hf.integer("num_key_value_heads"),
        head_width=hf.integer("head_dim", 256),
        projections=ProjectionsConfig(bias=biased, output_bias=biased, norm=norm),
        score=score,
        dropout=hf.number("attention_dropout", 0.0),
    )


def _near_and_far(hf: HfConfig) -> DualRotaryPositionConfig:
    """Return the rotary embeddings of both layer types; before transformers 5 their keys were not nested."""
    found, length = hf.nested("rope_parameters").data, hf.integer("max_position_embeddings")
    near, far = dict(found.get(NEAR) or {}), dict(found.get(FAR) or hf.nested("rope_scaling").data)
    near.setdefault("rope_theta", hf.number("rope_local_base_freq", 1e4))
    far.setdefault("rope_theta", hf.number("rope_theta", 1e6))

    def read(keys: dict[str, Any], kind: str) -> RotaryPositionConfig:
        whole = {"rope_parameters": keys, "max_position_embeddings": length}
        return read_rotary(HfConfig(whole, f"{hf.where}: {kind}"))

    return DualRotaryPositionConfig(near=read(near, NEAR), far=read(far, FAR))


def _model(hf: HfConfig, attention: AttentionConfig, kinds: list[str], position: PositionConfig) -> LanguageModelConfig:
    norm = OffsetRMSNormConfig(eps=hf.number("rms_norm_eps", 1e-6))
    window = hf.maybe_integer("sliding_window")
    if window is None and NEAR in kinds:
        raise ConfigError(f"{hf.where}: sliding_window", want="a whole number", got=None)
    activation = hf.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
    channel = GatedFeedForwardConfig(hidden=hf.integer("intermediate_size"), activation=activation)
    whole = sandwich(attention, channel, norm=norm)
    near = whole if window is None else swap(FullMaskConfig, lambda _: SlidingWindowConfig(size=window))(whole)
    return LanguageModelConfig(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        context=hf.integer("max_position_embeddings"),
        plan=plan_from_blocks([near if kind == NEAR else whole for kind in kinds]),
        embedding=FullEmbeddingConfig(power=0.5, rounded=True),
        position=position,
        norm=norm,
        head=SoftmaxHeadConfig(softcap=hf.maybe_number("final_logit_softcapping")),
        ties=TIED if hf.flag("tie_word_embeddings", True) else (),
    )


def write_gemma2(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Gemma 2."""
    keys = _base_keys(config)
    position = one(config, RotaryPositionConfig)
    return {**keys, "attn_logit_softcapping": _dot(config).softcap, "rope_parameters": write_rotary(position)}


def write_gemma3(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Gemma 3."""
    keys = _base_keys(config)
    both = one(config, DualRotaryPositionConfig)
    return {**keys, "rope_parameters": {NEAR: write_rotary(both.near), FAR: write_rotary(both.far)}}


def _dot(config: ModelConfig) -> DotScoreConfig:
    return one(one(config, AttentionConfig), DotScoreConfig)


def _base_keys(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that both share."""
    masks = [one(block, AttentionConfig).mask for block in blocks_of(config)]
    config = expect(config, LanguageModelConfig)
    attention, channel, scale = one(config, AttentionConfig), one(config, GatedFeedForwardConfig), _dot(config).scale
    head_width, activation = head_width_for(attention, config.width), channel.activation
    sizes = [mask.size for mask in masks if isinstance(mask, SlidingWindowConfig)]
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": hidden_width(channel, config.width),
        "num_hidden_layers": len(masks),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": head_width,
        "hidden_activation": "gelu_pytorch_tanh" if activation == "gelu_tanh" else activation_name(activation),
        "max_position_embeddings": config.context,
        "rms_norm_eps": one(config, OffsetRMSNormConfig).eps,
        "tie_word_embeddings": bool(config.ties),
        "attention_bias": attention.projections.bias,
        "attention_dropout": attention.dropout,
        "query_pre_attn_scalar": head_width if not scale else round(scale**-2),
        "sliding_window": sizes[0] if sizes else DEFAULT_WINDOW,
        "layer_types": [NEAR if isinstance(mask, SlidingWindowConfig) else FAR for mask in masks],
        "final_logit_softcapping": one(config, SoftmaxHeadConfig).softcap,
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    layers, projections = len(blocks_of(config)), one(config, ProjectionsConfig)
    yield from map_names({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    inner = MAPS | OUTPUT | CHANNEL | NORMS
    if not isinstance(projections.norm, NoNormConfig):
        inner = inner | HEAD_NORMS
    yield from map_names(each_layer(layers, "stack", "model.layers", inner), "weight")
    if projections.bias:
        yield from map_names(each_layer(layers, "stack", "model.layers", MAPS | OUTPUT), "bias")


_DEFAULTS = {"sliding_window": DEFAULT_WINDOW, "num_key_value_heads": 4}
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA2 = Family(
    "gemma2", ("Gemma2ForCausalLM",), read_gemma2, write_gemma2, weight_maps, IGNORED, defaults=_DEFAULTS | _CAPS
)
GEMMA3 = Family(
    "gemma3_text", ("Gemma3ForCausalLM",), read_gemma3, write_gemma3, weight_maps, IGNORED, defaults=_DEFAULTS
)
