"""OPT (Zhang et al. 2022): GPT-3's architecture with ReLU; the 350M model has post-norm and a factorized embedding."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import Transposed, WeightMap, each_layer, map_names
from heddle.core import find
from heddle.models.networks import TIED, LanguageModelConfig, ModelConfig, post_norm, pre_norm
from heddle.nn.attention import AttentionConfig, ProjectionsConfig
from heddle.nn.channels import FeedForwardConfig, IdentityConfig, hidden_width
from heddle.nn.ends import (
    EmbeddingConfig,
    FactorizedEmbeddingConfig,
    FactorizedHeadConfig,
    FullEmbeddingConfig,
    HeadConfig,
    SoftmaxHeadConfig,
)
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig, NoNormConfig
from heddle.nn.positions import LearnedPositionConfig
from heddle.nn.stack import RepeatConfig

MAPS = {
    "mixer.part.query": "self_attn.q_proj",
    "mixer.part.key": "self_attn.k_proj",
    "mixer.part.value": "self_attn.v_proj",
    "mixer.part.output": "self_attn.out_proj",
}
CHANNEL = {"channel.part.up": "fc1", "channel.part.down": "fc2"}
NORM = LayerNormConfig()
IGNORED = frozenset({"layerdrop", "init_std", "activation_dropout", "prefix"})


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    hf.require("layer_norm_elementwise_affine", True)
    biased, drop = hf.flag("enable_bias", True), hf.number("dropout", 0.1)
    attention = AttentionConfig(
        heads=hf.integer("num_attention_heads"),
        projections=ProjectionsConfig(bias=biased, output_bias=biased),
        dropout=hf.number("attention_dropout", 0.0),
    )
    activation = hf.choice("activation_function", ACTIVATIONS, "relu")
    channel = FeedForwardConfig(hidden=hf.integer("ffn_dim"), activation=activation, bias=biased)
    before = hf.flag("do_layer_norm_before", True)
    place = pre_norm if before else post_norm
    last = not hf.flag("_remove_final_layer_norm", False) and before
    width = hf.integer("hidden_size")
    inner = hf.maybe_integer("word_embed_proj_dim")
    embedding, head = _ends(width, width if inner is None else inner)
    return LanguageModelConfig(
        vocab=hf.integer("vocab_size"),
        width=width,
        context=hf.integer("max_position_embeddings"),
        plan=RepeatConfig(
            body=place(attention, channel, norm=NORM, dropout=drop), times=hf.integer("num_hidden_layers")
        ),
        embedding=embedding,
        position=LearnedPositionConfig(first=2),
        norm=NORM if last else NoNormConfig(),
        head=head,
        ties=TIED if hf.flag("tie_word_embeddings", True) else (),
    )


def _ends(width: int, inner: int) -> tuple[EmbeddingConfig, HeadConfig]:
    """Return embedding and head, with projections where the embedding is narrower than the layers."""
    if inner == width:
        return FullEmbeddingConfig(), SoftmaxHeadConfig()
    return FactorizedEmbeddingConfig(inner=inner), FactorizedHeadConfig(inner=inner)


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    config = expect(config, LanguageModelConfig)
    attention, channel = one(config, AttentionConfig), one(config, FeedForwardConfig)
    narrow, before = find(config, FactorizedEmbeddingConfig), not find(config, IdentityConfig)
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "word_embed_proj_dim": narrow[0].inner if narrow else config.width,
        "ffn_dim": hidden_width(channel, config.width),
        "num_hidden_layers": one(config, RepeatConfig).times,
        "num_attention_heads": attention.heads,
        "activation_function": activation_name(channel.activation),
        "max_position_embeddings": config.context,
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and isinstance(config.norm, NoNormConfig),
        "enable_bias": attention.projections.bias,
        "tie_word_embeddings": bool(config.ties),
        "attention_dropout": attention.dropout,
        "dropout": one(config, ElementDropoutConfig).rate,
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    before = not find(config, IdentityConfig)
    yield from map_names({"embedding.weight": "model.decoder.embed_tokens.weight"})
    yield from map_names({"position.weight": "model.decoder.embed_positions.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    if find(config, FactorizedEmbeddingConfig):
        yield from map_names({"embedding.map.weight": "model.decoder.project_in.weight"})
        yield from map_names({"head.map.weight": "model.decoder.project_out.weight"}, transform=Transposed())
    first, second = ("mixer.norm", "channel.norm") if before else ("norm.norm", "norm_2.norm")
    norms = {first: "self_attn_layer_norm", second: "final_layer_norm"}
    names = each_layer(one(config, RepeatConfig).times, "stack", "model.decoder.layers", norms)
    if not isinstance(config.norm, NoNormConfig):
        names["norm"] = "model.decoder.final_layer_norm"
    yield from map_names(names, "weight", "bias")
    maps = each_layer(one(config, RepeatConfig).times, "stack", "model.decoder.layers", MAPS | CHANNEL)
    biased = one(config, ProjectionsConfig).bias
    yield from map_names(maps, *(("weight", "bias") if biased else ("weight",)))


FAMILY = Family("opt", ("OPTForCausalLM",), read, write, weight_maps, IGNORED)
