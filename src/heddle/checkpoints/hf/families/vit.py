"""Vision Transformer (Dosovitskiy et al. 2021): patches by convolution, and a class token."""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.families.encoder_family import (
    ROW,
    EncoderClass,
    EncoderFamily,
    OutputParts,
    encoder_of,
    size_keys,
    stack_of,
    with_details,
)
from heddle.checkpoints.hf.family import expect, one
from heddle.checkpoints.hf.weight_map import Unflattened, Unsqueezed, WeightMap, each_layer, map_names
from heddle.core import ConfigError, find, replace, swap
from heddle.models.networks import EncoderConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import ProjectionsConfig
from heddle.nn.outputs import DenseFirstTokenConfig
from heddle.nn.sources import PatchEmbeddingConfig
from heddle.nn.stack import RepeatConfig

MAPS = {
    "mixer.part.query": "attention.attention.query",
    "mixer.part.key": "attention.attention.key",
    "mixer.part.value": "attention.attention.value",
}
LAYER = {
    "mixer.norm": "layernorm_before",
    "mixer.part.output": "attention.output.dense",
    "channel.norm": "layernorm_after",
    "channel.part.up": "intermediate.dense",
    "channel.part.down": "output.dense",
}
ENCODER = EncoderFamily(
    "vit",
    {
        "ViTModel": EncoderClass((), {"pooling.dense": "pooler.dense"}),
        "ViTForImageClassification": EncoderClass((ROW,), {"outputs.sequence_class.classes": "classifier"}),
    },
)


def read(hf: HfConfig) -> EncoderConfig:
    """Convert a Hugging Face config to a model config."""
    side, patch = hf.integer("image_size", 224), hf.integer("patch_size", 16)
    if patch < 1 or side < patch or side % patch:
        raise ConfigError(f"{hf.where}: image_size", want=f"a multiple of patch_size, {patch}", got=side)
    made = preset("vit-base-16").config(
        layers=hf.integer("num_hidden_layers"),
        width=hf.integer("hidden_size"),
        heads=hf.integer("num_attention_heads"),
        hidden=hf.integer("intermediate_size"),
        side=side,
        patch=patch,
        dropout=hf.number("hidden_dropout_prob", 0.0),
    )
    made = expect(made, EncoderConfig)
    drop, eps = hf.number("attention_probs_dropout_prob", 0.0), hf.number("layer_norm_eps", 1e-12)
    made = with_details(made, hf.choice("hidden_act", ACTIVATIONS, "gelu"), drop, eps)
    made = replace(made, embedding=PatchEmbeddingConfig(size=patch, channels=hf.integer("num_channels", 3)))
    made = swap(ProjectionsConfig, ProjectionsConfig(bias=hf.flag("qkv_bias", True), output_bias=True))(made)
    headless = ENCODER.class_in(hf) == "ViTModel"
    if headless and hf.maybe_integer("pooler_output_size") not in (None, made.width):
        raise ConfigError(f"{hf.where}: pooler_output_size", want=f"{made.width}, the width", got="another")
    pooling = DenseFirstTokenConfig(activation=hf.choice("pooler_act", ACTIVATIONS, "tanh") if headless else "tanh")
    return ENCODER.with_outputs(made, hf, OutputParts(pooling=pooling))


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    encoder = encoder_of(config)
    patches = one(encoder, PatchEmbeddingConfig)
    keys = {
        **ENCODER.class_keys(encoder),
        **size_keys(encoder),
        "num_hidden_layers": one(encoder.plan, RepeatConfig).times,
        "image_size": isqrt(max(encoder.context - 1, 0)) * patches.size,
        "patch_size": patches.size,
        "num_channels": patches.channels,
        "qkv_bias": one(encoder.plan, ProjectionsConfig).bias,
        "encoder_stride": patches.size,
    }
    for pooler in find(encoder, DenseFirstTokenConfig):
        keys["pooler_act"] = activation_name(pooler.activation)
    return keys


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    encoder = encoder_of(config)
    prefix, patches = ENCODER.prefix_for(encoder), one(encoder, PatchEmbeddingConfig)
    entrance = f"{prefix}embeddings"
    first = {"embedding.first": f"{entrance}.cls_token", "position.weight": f"{entrance}.position_embeddings"}
    yield from map_names(first, transform=Unsqueezed())
    squares = f"{entrance}.patch_embeddings.projection"
    kernel = Unflattened((patches.channels, patches.size, patches.size))
    yield from map_names({"embedding.map.weight": f"{squares}.weight"}, transform=kernel)
    yield from map_names({"embedding.map.bias": f"{squares}.bias"})
    layers, within = one(encoder.plan, RepeatConfig).times, f"{prefix}encoder.layer"
    maps = each_layer(layers, stack_of(encoder), within, MAPS)
    names = {"norm": f"{prefix}layernorm"} | each_layer(layers, stack_of(encoder), within, LAYER)
    yield from map_names(names, "weight", "bias")
    biased = one(encoder.plan, ProjectionsConfig).bias
    yield from map_names(maps, *(("weight", "bias") if biased else ("weight",)))
    yield from ENCODER.weight_maps(encoder)


MORE = frozenset({"encoder_stride", "pooler_act", "pooler_output_size"})
FAMILY = ENCODER.family(read, write, weight_maps, MORE)
