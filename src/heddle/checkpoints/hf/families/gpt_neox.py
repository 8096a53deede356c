"""GPT-NeoX (Black et al. 2022; Pythia, Biderman et al. 2023): parallel attention and feed-forward, partly rotary."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name, read_rotary, write_rotary
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import InterleavedHeads, WeightMap, each_layer, map_names
from heddle.core import find
from heddle.models.networks import TIED, LanguageModelConfig, ModelConfig, pre_norm
from heddle.nn.attention import AttentionConfig, ProjectionsConfig
from heddle.nn.channels import FeedForwardConfig, hidden_width
from heddle.nn.ends import FullEmbeddingConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig, NoNormConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.stack import RepeatConfig, SumConfig

IGNORED = frozenset({"classifier_dropout", "is_decoder"})
SHARE = 0.25  # of each head that is rotated, by default


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    drop, norm = hf.number("hidden_dropout", 0.0), LayerNormConfig(eps=hf.number("layer_norm_eps", 1e-5))
    biased = hf.flag("attention_bias", True)
    attention = AttentionConfig(
        heads=hf.integer("num_attention_heads"),
        projections=ProjectionsConfig(bias=biased, output_bias=biased),
        dropout=hf.number("attention_dropout", 0.0),
    )
    hidden, activation = hf.integer("intermediate_size"), hf.choice("hidden_act", ACTIVATIONS, "gelu")
    channel = FeedForwardConfig(hidden=hidden, activation=activation, bias=True)
    if hf.flag("use_parallel_residual", True):
        both = SumConfig(parts=(attention, channel), norms=(norm, norm))
        block = pre_norm(both, norm=NoNormConfig(), dropout=drop)
    else:
        block = pre_norm(attention, channel, norm=norm, dropout=drop)
    base, share = hf.number("rotary_emb_base", 10_000.0), hf.number("rotary_pct", SHARE)
    return LanguageModelConfig(
        vocab=hf.integer("vocab_size"),
        width=hf.integer("hidden_size"),
        context=hf.integer("max_position_embeddings"),
        plan=RepeatConfig(body=block, times=hf.integer("num_hidden_layers")),
        embedding=FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=drop)),
        position=read_rotary(hf, base, share),
        norm=norm,
        ties=TIED if hf.flag("tie_word_embeddings", False) else (),
    )


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    config = expect(config, LanguageModelConfig)
    attention, channel = one(config, AttentionConfig), one(config, FeedForwardConfig)
    position = one(config, RotaryPositionConfig)
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": hidden_width(channel, config.width),
        "num_hidden_layers": one(config, RepeatConfig).times,
        "num_attention_heads": attention.heads,
        "hidden_act": activation_name(channel.activation),
        "max_position_embeddings": config.context,
        "layer_norm_eps": one(config, LayerNormConfig).eps,
        "tie_word_embeddings": bool(config.ties),
        "attention_bias": attention.projections.bias,
        "attention_dropout": attention.dropout,
        "hidden_dropout": one(config, ElementDropoutConfig).rate,
        "use_parallel_residual": bool(find(config, SumConfig)),
        "rope_parameters": {**write_rotary(position), "partial_rotary_factor": position.share},
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    layers, attention = one(config, RepeatConfig).times, one(config, AttentionConfig)
    is_parallel = bool(find(config, SumConfig))
    mixer, channel = ("sum.part.mixer", "sum.part.channel") if is_parallel else ("mixer.part", "channel.part")
    first, second = (f"{mixer}_norm", f"{channel}_norm") if is_parallel else ("mixer.norm", "channel.norm")
    yield from map_names({"embedding.weight": "gpt_neox.embed_in.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "embed_out.weight"})
    inner = {
        first: "input_layernorm",
        second: "post_attention_layernorm",
        f"{channel}.up": "mlp.dense_h_to_4h",
        f"{channel}.down": "mlp.dense_4h_to_h",
    }
    names = each_layer(layers, "stack", "gpt_neox.layers", inner)
    yield from map_names({"norm": "gpt_neox.final_layer_norm"} | names, "weight", "bias")
    kinds = ("weight", "bias") if attention.projections.bias else ("weight",)
    outputs = each_layer(layers, "stack", "gpt_neox.layers", {f"{mixer}.output": "attention.dense"})
    yield from map_names(outputs, *kinds)
    for i in range(layers):
        for kind in kinds:
            path = tuple(f"stack.{i}.{mixer}.{name}.{kind}" for name in ("query", "key", "value"))
            hf_path = f"gpt_neox.layers.{i}.attention.query_key_value.{kind}"
            yield WeightMap(path, (hf_path,), InterleavedHeads(attention.heads))


FAMILY = Family("gpt_neox", ("GPTNeoXForCausalLM",), read, write, weight_maps, IGNORED)
