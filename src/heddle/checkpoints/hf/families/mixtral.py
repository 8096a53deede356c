"""Mixtral (Jiang et al. 2024) and Qwen3-MoE (Yang et al. 2025): Llama's and Qwen3's layers as mixture of experts."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import blocks_of, plan_from_blocks, read_rotary
from heddle.checkpoints.hf.families.llama import CHANNEL, HEAD_NORMS, MAPS, NORMS, OUTPUT, base, read_qwen3, write_base
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import ConcatenatedStacks, Stacked, WeightMap, each_layer, map_names
from heddle.core import find, replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.nn.attention import AttentionConfig, ProjectionsConfig
from heddle.nn.channels import (
    ExpertsConfig,
    GatedFeedForwardConfig,
    LoadBalancingLossConfig,
    TokenChoiceConfig,
    hidden_width,
)
from heddle.nn.layers import FullMaskConfig, SlidingWindowConfig
from heddle.nn.stack import BlockConfig, RepeatConfig

ROUTER = "channel.part.router.scores"
IGNORED = frozenset({"layer_types", "max_window_layers", "output_router_logits"})


def read_mixtral(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Mixtral."""
    made = replace(base(hf, ProjectionsConfig()), position=read_rotary(hf, 1e6))
    window = hf.maybe_integer("sliding_window")
    mask = FullMaskConfig() if window is None else SlidingWindowConfig(size=window)
    made = swap(AttentionConfig, lambda a: replace(a, mask=mask))(made)
    top, jitter = hf.integer("num_experts_per_tok"), hf.number("router_jitter_noise", 0.0)
    router = TokenChoiceConfig(top_k=top, jitter=jitter)
    count, balance = hf.integer("num_local_experts"), _balance(hf)
    return swap(
        GatedFeedForwardConfig,
        lambda expert: ExpertsConfig(experts=count, expert=expert, router=router, balance=balance),
    )(made)


def read_qwen3_moe(hf: HfConfig) -> LanguageModelConfig:
    """Convert a config of Qwen3-MoE."""
    made = read_qwen3(hf)
    known = hf.maybe_integer("num_local_experts")  # since transformers 5
    count = hf.maybe_integer("num_experts") if known is None else known
    router = TokenChoiceConfig(top_k=hf.integer("num_experts_per_tok"), normalized=hf.flag("norm_topk_prob", False))
    sparse = ExpertsConfig(
        experts=hf.integer("num_experts") if count is None else count,
        expert=replace(one(made, GatedFeedForwardConfig), hidden=hf.integer("moe_intermediate_size")),
        router=router,
        balance=_balance(hf),
    )
    every, dense = hf.integer("decoder_sparse_step", 1), set(hf.integers("mlp_only_layers"))
    return replace(
        made,
        plan=plan_from_blocks([
            block if (layer + 1) % every or layer in dense else swap(GatedFeedForwardConfig, lambda _: sparse)(block)
            for layer, block in enumerate(blocks_of(made))
        ]),
    )  # fmt: skip


def _balance(hf: HfConfig) -> LoadBalancingLossConfig:
    return LoadBalancingLossConfig(weight=hf.number("router_aux_loss_coef", 0.001))


def write_mixtral(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Mixtral."""
    masks, router = find(config, SlidingWindowConfig), one(config, TokenChoiceConfig)
    more = {"sliding_window": masks[0].size if masks else None, "router_jitter_noise": router.jitter}
    return write_base(config) | _expert_keys(config) | {"num_local_experts": one(config, ExpertsConfig).experts} | more


def write_qwen3_moe(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of Qwen3 with experts."""
    blocks, experts = blocks_of(config), one(config, ExpertsConfig)
    dense = [layer for layer, block in enumerate(blocks) if not find(block, ExpertsConfig)]
    first = blocks[dense[0] if dense else 0]
    keys = write_base(replace(config, plan=RepeatConfig(body=first, times=len(blocks))))
    assert isinstance(experts.expert, GatedFeedForwardConfig)
    return keys | _expert_keys(config) | {
        "attention_bias": one(config, ProjectionsConfig).bias,
        "use_sliding_window": False,
        "num_experts": experts.experts,
        "moe_intermediate_size": hidden_width(experts.expert, keys["hidden_size"]),
        "norm_topk_prob": one(config, TokenChoiceConfig).normalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
    }  # fmt: skip


def _expert_keys(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of experts that both share."""
    losses = find(config, LoadBalancingLossConfig)
    more = {"router_aux_loss_coef": losses[0].weight} if losses else {}
    return {"num_experts_per_tok": one(config, TokenChoiceConfig).top_k, **more}


# --- weights ----------------------------------------------------------------------------------------------------------


def mixtral_weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    yield from around(config, MAPS | OUTPUT | NORMS)
    for layer, block in enumerate(blocks_of(config)):
        path, hf_path = f"stack.{layer}", f"model.layers.{layer}"
        router, old, new = f"{path}.{ROUTER}.weight", f"{hf_path}.block_sparse_moe", f"{hf_path}.mlp"
        yield WeightMap((router,), (f"{old}.gate.weight",), other=WeightMap((router,), (f"{new}.gate.weight",)))
        each = [[f"{old}.experts.{e}.w{n}.weight" for e in range(_count(block))] for n in (1, 3, 2)]
        yield from bank(f"{path}.channel.part.bank", each, f"{new}.experts")


def qwen3_moe_weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    yield from around(config, MAPS | OUTPUT | NORMS | HEAD_NORMS)
    layers = blocks_of(config)
    if one(config, ProjectionsConfig).bias:
        yield from map_names(each_layer(len(layers), "stack", "model.layers", MAPS | OUTPUT), "bias")
    for layer, block in enumerate(layers):
        yield from channel(block, layer)


def around(config: ModelConfig, inner: Mapping[str, str]) -> Iterator[WeightMap]:
    """Yield all weight maps but those of the feed-forward parts, given the names within a layer."""
    config = expect(config, LanguageModelConfig)
    yield from map_names({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    yield from map_names(each_layer(len(blocks_of(config)), "stack", "model.layers", inner), "weight")


def channel(block: BlockConfig, layer: int) -> Iterator[WeightMap]:
    """Yield the weight maps of one layer's feed-forward part: a dense one, or a router and its experts."""
    path, hf_path = f"stack.{layer}", f"model.layers.{layer}"
    if not find(block, ExpertsConfig):
        yield from map_names({f"{path}.{a}": f"{hf_path}.{b}" for a, b in CHANNEL.items()}, "weight")
        return
    yield from map_names({f"{path}.{ROUTER}.weight": f"{hf_path}.mlp.gate.weight"})
    names = ("gate_proj", "up_proj", "down_proj")
    each = [[f"{hf_path}.mlp.experts.{e}.{name}.weight" for e in range(_count(block))] for name in names]
    yield from bank(f"{path}.channel.part.bank", each, f"{hf_path}.mlp.experts")


def bank(path: str, each: list[list[str]], stacks: str) -> Iterator[WeightMap]:
    """Yield the weight maps of a layer's experts: separate gate, up and down matrices, or two stacks."""
    gate, up, down = each
    both, last = (f"{path}.gate.weight", f"{path}.up.weight"), (f"{path}.down.weight",)
    yield WeightMap(
        both, (*gate, *up), Stacked(), other=WeightMap(both, (f"{stacks}.gate_up_proj",), ConcatenatedStacks())
    )
    yield WeightMap(last, tuple(down), Stacked(), other=WeightMap(last, (f"{stacks}.down_proj",)))


def _count(block: BlockConfig) -> int:
    return one(block, ExpertsConfig).experts


MIXTRAL = Family(
    "mixtral",
    ("MixtralForCausalLM",),
    read_mixtral,
    write_mixtral,
    mixtral_weight_maps,
    IGNORED,
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "num_experts_per_tok": 2},
)
QWEN3_MOE = Family(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM",),
    read_qwen3_moe,
    write_qwen3_moe,
    qwen3_moe_weight_maps,
    IGNORED,
    defaults={"num_key_value_heads": 4, "num_experts_per_tok": 8},
)
