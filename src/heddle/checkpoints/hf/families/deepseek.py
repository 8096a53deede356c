"""DeepSeek-V3 (2024): multi-head latent attention, dense layers first, then grouped experts beside a shared one."""

import math
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
    yarn_mscale,
)
from heddle.checkpoints.hf.families.llama import NORMS, OUTPUT
from heddle.checkpoints.hf.families.mixtral import around, channel
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import Concatenated, InterleavedHeads, WeightMap, map_names
from heddle.core import find, replace
from heddle.models.networks import LanguageModelConfig, ModelConfig, pre_norm
from heddle.models.presets import preset
from heddle.nn.attention import LatentAttentionConfig, LatentWidthsConfig, ProjectionsConfig
from heddle.nn.channels import (
    BiasLoadBalancingConfig,
    ExpertsConfig,
    GatedFeedForwardConfig,
    SigmoidChoiceConfig,
    hidden_width,
)
from heddle.nn.layers import RMSNormConfig
from heddle.nn.positions import NoScalingConfig, RotaryPositionConfig, YarnScalingConfig

SQUEEZED = {"down": "q_a_proj", "norm": "q_a_layernorm", "up": "q_b_proj"}
SHARED = {name: f"{name}_proj" for name in ("gate", "up", "down")}
IGNORED = frozenset(
    {
        "head_dim", "qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers", "output_router_logits",
        "aux_loss_alpha", "seq_aux", "ep_size", "auto_map",
    }
)  # fmt: skip
INNER_EPS = 1e-6  # of the norms inside attention; the config sets only the others


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    for key, value in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1)):
        hf.require(key, value)
    norm = RMSNormConfig(eps=hf.number("rms_norm_eps", 1e-6))
    layers, first = hf.integer("num_hidden_layers"), hf.integer("first_k_dense_replace", 3)
    activation = hf.choice("hidden_act", ACTIVATIONS, "silu")
    attention, expert = _attention(hf), GatedFeedForwardConfig(activation=activation)
    dense = pre_norm(attention, replace(expert, hidden=hf.integer("intermediate_size")), norm=norm)
    sparse = pre_norm(attention, _experts(hf, expert), norm=norm)
    made = preset("llama").config(
        layers=layers,
        width=hf.integer("hidden_size"),
        vocab=hf.integer("vocab_size"),
        context=hf.integer("max_position_embeddings"),
        tied=hf.flag("tie_word_embeddings", False),
    )
    made = expect(made, LanguageModelConfig)
    plan = plan_from_blocks([dense if layer < first else sparse for layer in range(layers)])
    order = "interleaved" if hf.flag("rope_interleave", True) else "halves"
    return replace(made, plan=plan, norm=norm, position=replace(read_rotary(hf), order=order))


def _attention(hf: HfConfig) -> LatentAttentionConfig:
    heads, biased = hf.integer("num_attention_heads"), hf.flag("attention_bias", False)
    if hf.maybe_integer("num_key_value_heads") is not None:
        hf.require("num_key_value_heads", heads)
    key, rotary, value = (hf.integer(f"{name}_head_dim") for name in ("qk_nope", "qk_rope", "v"))
    widths = LatentWidthsConfig(key=key, rotary=rotary, value=value)
    return LatentAttentionConfig(
        heads=heads,
        latent=hf.integer("kv_lora_rank"),
        widths=widths,
        query_latent=hf.maybe_integer("q_lora_rank"),
        projections=ProjectionsConfig(bias=biased, output_bias=biased, norm=RMSNormConfig(eps=INNER_EPS)),
        scale=_scale(hf, widths.key + widths.rotary),
        dropout=hf.number("attention_dropout", 0.0),
    )


def _scale(hf: HfConfig, width: int) -> float | None:
    """Return the factor on scores, which YaRN increases; None: the inverse root of the head width."""
    found = hf.nested("rope_parameters")
    found = found if found.data else hf.nested("rope_scaling")
    weight = found.maybe_number("mscale_all_dim")
    if not weight or isinstance(read_rotary(hf).scaling, NoScalingConfig):
        return None
    return float(width**-0.5 * yarn_mscale(found.number("factor"), weight) ** 2)


def _experts(hf: HfConfig, expert: GatedFeedForwardConfig) -> ExpertsConfig:
    hidden = hf.integer("moe_intermediate_size")
    router = SigmoidChoiceConfig(
        top_k=hf.integer("num_experts_per_tok"),
        scale=hf.number("routed_scaling_factor"),
        normalized=hf.flag("norm_topk_prob", True),
        groups=hf.integer("n_group"),
        top_groups=hf.integer("topk_group"),
    )
    return ExpertsConfig(
        experts=hf.integer("n_routed_experts"),
        expert=replace(expert, hidden=hidden),
        router=router,
        balance=BiasLoadBalancingConfig(),
        shared=replace(expert, hidden=hidden * hf.integer("n_shared_experts")),
    )


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    blocks = blocks_of(config)
    config = expect(config, LanguageModelConfig)
    norm = config.norm
    if not isinstance(norm, RMSNormConfig):
        raise NoCounterpart(f"it has no norm {norm.kind!r}")
    attention, dense = one(config, LatentAttentionConfig), [b for b in blocks if not find(b, ExpertsConfig)]
    experts = one(config, ExpertsConfig)
    channel = one(dense[0] if dense else experts, GatedFeedForwardConfig)
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": hidden_width(channel, config.width),
        "num_hidden_layers": len(blocks),
        "first_k_dense_replace": len(dense),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.heads,
        "kv_lora_rank": attention.latent,
        "q_lora_rank": attention.query_latent,
        "qk_nope_head_dim": attention.widths.key,
        "qk_rope_head_dim": attention.widths.rotary,
        "v_head_dim": attention.widths.value,
        "attention_bias": attention.projections.bias,
        "attention_dropout": attention.dropout,
        "hidden_act": activation_name(channel.activation),
        "max_position_embeddings": config.context,
        "rms_norm_eps": norm.eps,
        "tie_word_embeddings": bool(config.ties),
        "rope_interleave": one(config, RotaryPositionConfig).order == "interleaved",
        "rope_parameters": _rotary(config, attention),
        "num_nextn_predict_layers": 0,
        **_routed(experts, config.width),
    }


def _routed(experts: ExpertsConfig, width: int) -> dict[str, Any]:
    router, hidden = one(experts, SigmoidChoiceConfig), hidden_width(one(experts, GatedFeedForwardConfig), width)
    if not isinstance(experts.shared, GatedFeedForwardConfig):
        raise NoCounterpart("it has an expert that every token uses")
    return {
        "moe_intermediate_size": hidden,
        "n_routed_experts": experts.experts,
        "n_shared_experts": hidden_width(experts.shared, width) // hidden,
        "num_experts_per_tok": router.top_k,
        "n_group": router.groups,
        "topk_group": router.top_groups,
        "norm_topk_prob": router.normalized,
        "routed_scaling_factor": router.scale,
    }


def _rotary(config: ModelConfig, attention: LatentAttentionConfig) -> dict[str, Any]:
    """Return `rope_parameters`, including YaRN's factor on scores."""
    position = one(config, RotaryPositionConfig)
    keys = write_rotary(position)
    if attention.scale is None:
        return keys
    scaling = position.scaling
    if not isinstance(scaling, YarnScalingConfig) or scaling.factor <= 1 or attention.scale <= 0:
        raise NoCounterpart("it scales scores only by the head width and the position scaling")
    sharper = math.sqrt(attention.scale * math.sqrt(attention.widths.key + attention.widths.rotary))
    weight = (sharper - 1) / (yarn_mscale(scaling.factor, 1) - 1)
    return {**keys, "mscale_all_dim": round(weight, 9)}  # as many digits as published configs have


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    yield from around(config, OUTPUT | NORMS)
    attention = one(config, LatentAttentionConfig)
    for layer, block in enumerate(blocks_of(config)):
        path, hf_path = f"stack.{layer}", f"model.layers.{layer}"
        yield from _attention_weight_maps(attention, f"{path}.mixer.part", f"{hf_path}.self_attn")
        yield from channel(block, layer)
        if find(block, ExpertsConfig):
            inner, mlp = f"{path}.channel.part", f"{hf_path}.mlp"
            names = {f"{inner}.shared.{a}": f"{mlp}.shared_experts.{b}" for a, b in SHARED.items()}
            yield from map_names(names, "weight")
            yield WeightMap((f"{inner}.balance.bias",), (f"{mlp}.gate.e_score_correction_bias",))


def _attention_weight_maps(attention: LatentAttentionConfig, path: str, hf_path: str) -> Iterator[WeightMap]:
    if attention.query_latent is None:
        yield from map_names({f"{path}.query.weight": f"{hf_path}.q_proj.weight"})
    else:
        yield from map_names({f"{path}.query.{a}": f"{hf_path}.{b}" for a, b in SQUEEZED.items()}, "weight")
    yield from map_names({f"{path}.latent_norm.weight": f"{hf_path}.kv_a_layernorm.weight"})
    made = (f"{path}.key.weight", f"{path}.value.weight")
    yield WeightMap(made, (f"{hf_path}.kv_b_proj.weight",), InterleavedHeads(attention.heads))
    for kind in ("weight", "bias") if attention.projections.bias else ("weight",):
        left = (f"{path}.latent.{kind}", f"{path}.turned.{kind}")
        yield WeightMap(left, (f"{hf_path}.kv_a_proj_with_mqa.{kind}",), Concatenated())
    if attention.projections.bias:
        yield from map_names({f"{path}.output.bias": f"{hf_path}.o_proj.bias"})
        if attention.query_latent is not None:
            yield from map_names({f"{path}.query.down.bias": f"{hf_path}.q_a_proj.bias"})


_DEFAULTS = {
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "num_key_value_heads": 128,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
}
FAMILY = Family("deepseek_v3", ("DeepseekV3ForCausalLM",), read, write, weight_maps, IGNORED, defaults=_DEFAULTS)
