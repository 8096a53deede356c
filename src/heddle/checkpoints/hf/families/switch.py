"""Switch Transformer (Fedus et al. 2021): T5's layers, some of them a mixture of experts with top-1 routing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.families.t5 import CONTEXT, MAPS, base_keys
from heddle.checkpoints.hf.families.t5 import IGNORED as LIKE_T5
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import IDENTITY, Duplicated, Scaled, Stacked, Transposed, WeightMap, map_names
from heddle.core import ConfigError, find, replace, swap
from heddle.models.networks import EncoderDecoderConfig, ModelConfig, TowerConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig, DotScoreConfig, head_width_for
from heddle.nn.channels import (
    DroplessConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LoadBalancingLossConfig,
    PerDocumentCapacityConfig,
    TokenChoiceConfig,
    hidden_width,
)
from heddle.nn.layers import ElementDropoutConfig, RMSNormConfig
from heddle.nn.positions import T5PositionConfig
from heddle.nn.stack import BlockConfig, ChainConfig

SIDES, SHARED = ("encoder", "decoder"), "shared.weight"
PLAIN = DotScoreConfig(scale=1.0)  # the query weights include the factor on scores
IGNORED = LIKE_T5 | {
    "add_cross_attention", "add_router_probs", "batch_prioritized_routing", "feed_forward_proj",
    "router_ignore_padding_tokens",
}  # fmt: skip


def read(hf: HfConfig) -> EncoderDecoderConfig:
    """Convert a Hugging Face config to a model config."""
    for key, value in {
        "is_encoder_decoder": True,
        "router_bias": False,
        "router_dtype": "float32",
        "router_type": "tokens_masked",
    }.items():
        hf.require(key, value)
    made = preset("switch-base-8").config(
        layers=2,  # one dense, one with experts
        width=hf.integer("d_model"),
        heads=hf.integer("num_heads"),
        hidden=hf.integer("d_ff"),
        experts=hf.integer("num_experts", 8),
        vocab=hf.integer("vocab_size"),
        context=hf.integer("n_positions", CONTEXT),
    )
    made = expect(made, EncoderDecoderConfig)
    made = _inner(hf, made)
    layers = hf.integer("num_layers")
    depths = (layers, layers if (found := hf.maybe_integer("num_decoder_layers")) is None else found)
    towers = (_layered(hf, made, side, depth) for side, depth in zip(SIDES, depths, strict=True))
    tied = hf.flag("tie_word_embeddings", True)
    head = replace(made.head, power=-0.5 if tied else 0.0)
    return replace(made, **dict(zip(SIDES, towers, strict=True)), head=head, ties=made.ties if tied else ())


def _inner(hf: HfConfig, made: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Return a model with the layers' hyperparameters of a config."""
    drop, wide = hf.number("dropout_rate", 0.1), hf.integer("d_kv")
    activation, eps = hf.choice("dense_act_fn", ACTIVATIONS, "relu"), hf.number("layer_norm_epsilon", 1e-6)
    buckets = hf.integer("relative_attention_num_buckets", 32)
    far = hf.integer("relative_attention_max_distance", 128)
    for edit in (
        swap(AttentionConfig, lambda a: replace(a, head_width=wide, score=PLAIN, dropout=drop)),
        swap(CrossAttentionConfig, lambda a: replace(a, head_width=wide, score=PLAIN, dropout=drop)),
        swap(FeedForwardConfig, lambda c: replace(c, activation=activation)),
        swap(ExpertsConfig, _routed(hf, made.context)),
        swap(ElementDropoutConfig, ElementDropoutConfig(rate=drop)),
        swap(T5PositionConfig, T5PositionConfig(buckets=buckets, farthest=far)),
        swap(RMSNormConfig, RMSNormConfig(eps=eps)),
    ):
        made = edit(made)
    return made


def _routed(hf: HfConfig, context: int) -> Callable[[ExpertsConfig], ExpertsConfig]:
    """Return an edit that sets routing, capacity and losses; a capacity of a whole row drops no token."""
    most = hf.integer("expert_capacity", 64)
    if most < 1:
        raise ConfigError(f"{hf.where}: expert_capacity", want="at least 1", got=most)
    capacity = DroplessConfig() if most >= context else PerDocumentCapacityConfig(max_capacity=most)
    jitter, z_loss = hf.number("router_jitter_noise", 0.01), hf.number("router_z_loss_coef", 0.001)
    router = TokenChoiceConfig(top_k=1, normalized=False, jitter=jitter)
    balance = LoadBalancingLossConfig(weight=hf.number("router_aux_loss_coef", 0.001))
    return lambda experts: replace(experts, router=router, capacity=capacity, balance=balance, z_loss=z_loss)


def _layered(hf: HfConfig, made: EncoderDecoderConfig, side: str, depth: int) -> TowerConfig:
    """Return a tower with all its layers, given one with two: a dense one and one with experts."""
    tower = _tower(made, side)
    dense, sparse = _blocks(tower)
    count, step = hf.integer(f"num_sparse_{side}_layers", 3), hf.maybe_integer(f"{side}_sparse_step")
    there = _sparse(depth, _step(depth, count) if step is None else step)
    return replace(tower, plan=ChainConfig(bodies=tuple(sparse if routed else dense for routed in there)))


def _step(depth: int, count: int) -> int:
    """Return the distance between layers with experts, as transformers computes it from their number."""
    return depth // count if count > 0 else depth


def _sparse(depth: int, step: int) -> list[bool]:
    """Tell for each layer whether it has experts: the second one, and then one in every `step`."""
    return [step == 1 or (step > 1 and layer % step == 1) for layer in range(depth)]


# --- write ------------------------------------------------------------------------------------------------------------


def as_stored(config: ModelConfig) -> ModelConfig:
    """Return a config without a factor on scores: the weight maps move it into the query weights."""
    return swap(DotScoreConfig, lambda score: replace(score, scale=1.0))(config)


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to Hugging Face's keys; dropless experts get the capacity of a whole row."""
    config = expect(config, EncoderDecoderConfig)
    channel = one(config, FeedForwardConfig)
    keys = base_keys(config, hidden_width(channel, config.width)) | {
        "dense_act_fn": activation_name(channel.activation),
        "tie_word_embeddings": bool(config.ties),
    }
    for side, name in zip(SIDES, ("num_layers", "num_decoder_layers"), strict=True):
        blocks = _blocks(_tower(config, side))
        keys |= {name: len(blocks), f"num_sparse_{side}_layers": _count(blocks)}
    return keys | _expert_keys(config)


def _expert_keys(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Return the keys of experts, if there are any."""
    if not find(config, ExpertsConfig):
        return {}
    experts, losses = one(config, ExpertsConfig), find(config, LoadBalancingLossConfig)
    capacity = experts.capacity
    places = capacity.max_capacity if isinstance(capacity, PerDocumentCapacityConfig) else config.context
    return {
        "num_experts": experts.experts,
        "expert_capacity": places,
        "router_jitter_noise": one(config, TokenChoiceConfig).jitter,
        "router_z_loss_coef": experts.z_loss,
        "router_aux_loss_coef": losses[0].weight if losses else 0.0,
    }


def _count(blocks: Sequence[BlockConfig]) -> int:
    """Return the number of sparse layers from which transformers derives these positions."""
    there = [bool(find(block, ExpertsConfig)) for block in blocks]
    for count in sorted(range(len(there) + 2), key=lambda count: abs(count - sum(there))):
        if _sparse(len(there), _step(len(there), count)) == there:
            return count
    raise NoCounterpart("it has experts in all layers, or in every n-th layer from the second on")


def _tower(config: EncoderDecoderConfig, side: str) -> TowerConfig:
    return config.encoder if side == "encoder" else config.decoder


def _blocks(tower: TowerConfig) -> list[BlockConfig]:
    bodies = tower.plan.bodies if isinstance(tower.plan, ChainConfig) else ()
    blocks = [body for body in bodies if isinstance(body, BlockConfig)]
    if not blocks or len(blocks) < len(bodies):
        raise NoCounterpart("its layers form one chain")
    return blocks


# --- weights ----------------------------------------------------------------------------------------------------------


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, EncoderDecoderConfig)
    yield from _tables(config)
    heads = one(config, AttentionConfig).heads
    for side in SIDES:
        tower = _tower(config, side)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield from map_names({f"{side}.position.heads_{heads}": bias}, transform=Transposed())
        yield from map_names({f"{side}.norm.weight": f"{side}.final_layer_norm.weight"})
        for layer, block in enumerate(_blocks(tower)):
            yield from _layer(block, config.width, f"{side}.stack.{layer}", f"{side}.block.{layer}.layer")


def _tables(config: EncoderDecoderConfig) -> Iterator[WeightMap]:
    """Yield the embeddings: one tied, or three and an unused one; older files may share one even if untied."""
    if config.ties:
        yield from map_names({"encoder.embedding.weight": SHARED})
        return
    yield from map_names({"head.weight": "lm_head.weight"})
    for side, more in (("encoder", (SHARED,)), ("decoder", ())):
        path, hf_path = (f"{side}.embedding.weight",), (f"{side}.embed_tokens.weight", *more)
        yield WeightMap(path, hf_path, Duplicated(len(hf_path)), other=WeightMap(path, (SHARED,)))


def _layer(block: BlockConfig, width: int, path: str, hf_path: str) -> Iterator[WeightMap]:
    """Yield the weight maps of one layer, given its path on both sides."""
    slots = {"mixer": "SelfAttention", "cross": "EncDecAttention", "channel": "mlp"}
    names = [(branch.part.slot, slots[branch.part.slot]) for branch in block.branches]
    for number, (branch, (slot, name)) in enumerate(zip(block.branches, names, strict=True)):
        here, there = f"{path}.{slot}.part", f"{hf_path}.{number}.{name}"
        yield from map_names({f"{path}.{slot}.norm.weight": f"{hf_path}.{number}.layer_norm.weight"})
        match branch.part:
            case AttentionConfig() | CrossAttentionConfig() as part:
                factor = _factor(part, width)
                for a, b in MAPS.items():
                    scaled = Scaled(factor) if factor != 1 and a == "query" else IDENTITY
                    yield from map_names({f"{here}.{a}": f"{there}.{b}"}, "weight", transform=scaled)
            case ExpertsConfig(experts=count):
                yield from map_names({f"{here}.router.scores.weight": f"{there}.router.classifier.weight"})
                for a, b in (("up", "wi"), ("down", "wo")):
                    each = tuple(f"{there}.experts.expert_{e}.{b}.weight" for e in range(count))
                    yield WeightMap((f"{here}.bank.{a}.weight",), each, Stacked())
            case _:
                yield from map_names({f"{here}.up": f"{there}.wi", f"{here}.down": f"{there}.wo"}, "weight")


def _factor(part: AttentionConfig | CrossAttentionConfig, width: int) -> float:
    """Return the factor on scores."""
    scale = part.score.scale if isinstance(part.score, DotScoreConfig) else 1.0
    return head_width_for(part, width) ** -0.5 if scale is None else scale


_CLASSES, _TYPE = ("SwitchTransformersForConditionalGeneration",), EncoderDecoderConfig
FAMILY = Family(
    "switch_transformers",
    _CLASSES,
    read,
    write,
    weight_maps,
    IGNORED,
    config_type=_TYPE,
    as_stored=as_stored,
    defaults={"num_decoder_layers": 12},
)
