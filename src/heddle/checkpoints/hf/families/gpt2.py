"""GPT-2 (Radford et al. 2019): transposed matrices, with query, key and value in one."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import Concatenated, Transposed, WeightMap, each_layer, map_names
from heddle.core import replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.ends import FullEmbeddingConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.stack import RepeatConfig

IGNORED = frozenset(
    {
        "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
        "summary_type", "summary_use_proj",
    }
)  # fmt: skip


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    for key, value in {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }.items():
        hf.require(key, value)
    made = preset("gpt2").config(**sizes(hf))
    made = expect(made, LanguageModelConfig)
    drop = hf.number("attn_pdrop", 0.1)
    made = swap(AttentionConfig, lambda a: replace(a, dropout=drop))(made)
    embedding = FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=hf.number("embd_pdrop", 0.1)))
    made = replace(made, embedding=embedding)
    hidden, activation = hf.maybe_integer("n_inner"), hf.choice("activation_function", ACTIVATIONS, "gelu_new")
    made = swap(FeedForwardConfig, lambda c: replace(c, hidden=hidden, activation=activation))(made)
    return swap(LayerNormConfig, LayerNormConfig(eps=hf.number("layer_norm_epsilon", 1e-5)))(made)


def sizes(hf: HfConfig) -> dict[str, Any]:
    """Return the options of a preset from a config of GPT or GPT-2."""
    return {
        "layers": hf.integer("n_layer"),
        "width": hf.integer("n_embd"),
        "heads": hf.integer("n_head"),
        "vocab": hf.integer("vocab_size"),
        "context": hf.integer("n_positions"),
        "dropout": hf.number("resid_pdrop", 0.1),
    }


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    channel = one(config, FeedForwardConfig)
    return base_keys(config) | {
        "n_inner": channel.hidden,
        "activation_function": activation_name(channel.activation),
        "resid_pdrop": one(config, ElementDropoutConfig).rate,
        "embd_pdrop": one(config, ElementDropoutConfig).rate,
    }


def base_keys(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that GPT and GPT-2 share."""
    config = expect(config, LanguageModelConfig)
    return {
        "vocab_size": config.vocab,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": one(config, RepeatConfig).times,
        "n_head": one(config, AttentionConfig).heads,
        "layer_norm_epsilon": one(config, LayerNormConfig).eps,
        "tie_word_embeddings": True,
        "attn_pdrop": one(config, AttentionConfig).dropout,
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    layers = one(config, RepeatConfig).times
    yield from map_names({"embedding.weight": "transformer.wte.weight", "position.weight": "transformer.wpe.weight"})
    norms = each_layer(layers, "stack", "transformer.h", {"mixer.norm": "ln_1", "channel.norm": "ln_2"})
    yield from map_names({"norm": "transformer.ln_f"} | norms, "weight", "bias")
    yield from maps(layers, "stack")


def maps(layers: int, stack: str) -> Iterator[WeightMap]:
    """Yield the matrices and biases of all layers of GPT or GPT-2, given the path of the stack."""
    names = {"mixer.part.output": "attn.c_proj", "channel.part.up": "mlp.c_fc", "channel.part.down": "mlp.c_proj"}
    inner = each_layer(layers, stack, "transformer.h", names)
    yield from map_names(inner, "weight", transform=Transposed())
    yield from map_names(inner, "bias")
    for i in range(layers):
        for kind in ("weight", "bias"):
            path = tuple(f"{stack}.{i}.mixer.part.{name}.{kind}" for name in ("query", "key", "value"))
            yield WeightMap(path, (f"transformer.h.{i}.attn.c_attn.{kind}",), Concatenated(transposed=kind == "weight"))


FAMILY = Family("gpt2", ("GPT2LMHeadModel",), read, write, weight_maps, IGNORED)
