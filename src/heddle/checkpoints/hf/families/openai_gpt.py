"""GPT (Radford et al. 2018): GPT-2's matrices in post-norm layers."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families import gpt2
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.stack import BranchConfig, EntryConfig, RepeatConfig

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "swish", "swish": "swish"}  # `gelu`: the tanh form
IGNORED = gpt2.IGNORED | {"is_decoder", "n_ctx", "n_special", "predict_special_tokens", "pruned_heads"}
UNUSED = frozenset({"position_ids", "transformer.position_ids"})


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    hf.require("tie_word_embeddings", True)
    made = preset("gpt").config(**gpt2.sizes(hf))
    made = expect(made, LanguageModelConfig)
    activation, eps = hf.choice("afn", ACTIVATIONS, "gelu"), hf.number("layer_norm_epsilon", 1e-5)
    scores, entry = hf.number("attn_pdrop", 0.1), ElementDropoutConfig(rate=hf.number("embd_pdrop", 0.1))
    for edit in (
        swap(AttentionConfig, lambda a: replace(a, dropout=scores)),
        swap(EntryConfig, lambda e: replace(e, dropout=entry)),
        swap(FeedForwardConfig, lambda c: replace(c, activation=activation)),
        swap(LayerNormConfig, LayerNormConfig(eps=eps)),
    ):
        made = edit(made)
    return made


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to Hugging Face's keys; the feed-forward part is always four times as wide there."""
    keys, activation = gpt2.base_keys(config), one(config, FeedForwardConfig).activation
    names = [hf_name for hf_name, name in ACTIVATIONS.items() if name == activation]
    if not names:
        raise NoCounterpart(f"it has no activation {activation!r}")
    return keys | {
        "afn": names[0],
        "resid_pdrop": one(one(config, BranchConfig), ElementDropoutConfig).rate,
        "embd_pdrop": one(one(config, EntryConfig), ElementDropoutConfig).rate,
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    layers, stack = one(config, RepeatConfig).times, "stack.1"
    tables = {"embedding": "transformer.tokens_embed", "position": "transformer.positions_embed"}
    yield from map_names(tables, "weight")
    norms = each_layer(layers, stack, "transformer.h", {"norm.norm": "ln_1", "norm_2.norm": "ln_2"})
    yield from map_names(norms, "weight", "bias")
    yield from gpt2.maps(layers, stack)


FAMILY = Family("openai-gpt", ("OpenAIGPTLMHeadModel",), read, write, weight_maps, IGNORED, UNUSED)
