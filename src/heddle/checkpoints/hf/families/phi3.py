"""Phi-3 (Abdin et al. 2024): Llama's parts, with query, key and value in one matrix, and gate and up in another."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.llama import NORMS, OUTPUT, base, write_base
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import Concatenated, WeightMap, each_layer, map_names
from heddle.core import ConfigError, find, replace, swap
from heddle.models.networks import LanguageModelConfig, ModelConfig
from heddle.nn.attention import AttentionConfig, ProjectionsConfig
from heddle.nn.ends import FullEmbeddingConfig
from heddle.nn.layers import ElementDropoutConfig, FullMaskConfig, MaskConfig, SlidingWindowConfig
from heddle.nn.positions import NoScalingConfig, RotaryPositionConfig, RotaryScalingConfig
from heddle.nn.stack import RepeatConfig

IGNORED = frozenset({"auto_map", "interpolate_factor", "layer_types", "original_max_position_embeddings"})


def read(hf: HfConfig) -> LanguageModelConfig:
    """Convert a Hugging Face config to a model config."""
    for key in ("attention_bias", "lm_head_bias"):
        hf.require(key, False)
    window = hf.maybe_integer("sliding_window")
    mask: MaskConfig = FullMaskConfig() if window is None else SlidingWindowConfig(size=window)
    made = base(hf, ProjectionsConfig(), part=1.0)
    scaling = one(made, RotaryScalingConfig)
    if not isinstance(scaling, NoScalingConfig):  # Phi-3 calls LongRoPE yarn
        raise ConfigError(f"{hf.where}: rope_parameters: rope_type", want="default", got=scaling.kind)
    made = swap(AttentionConfig, lambda a: replace(a, mask=mask))(made)
    made = swap(ElementDropoutConfig, ElementDropoutConfig(rate=hf.number("resid_pdrop", 0.0)))(made)
    drop = ElementDropoutConfig(rate=hf.number("embd_pdrop", 0.0))
    return replace(made, embedding=FullEmbeddingConfig(dropout=drop))


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    keys, drops = write_base(config), find(config, ElementDropoutConfig)
    if not isinstance(one(config, RotaryPositionConfig).scaling, NoScalingConfig):
        raise NoCounterpart("it scales its rotary embedding by LongRoPE only")
    windows = find(config, SlidingWindowConfig)
    return keys | {
        "sliding_window": windows[0].size if windows else None,
        "original_max_position_embeddings": keys["max_position_embeddings"],
        "resid_pdrop": drops[0].rate,
        "embd_pdrop": drops[-1].rate,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),  # the defaults can exceed a small vocabulary
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, LanguageModelConfig)
    layers = one(config, RepeatConfig).times
    yield from map_names({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"})
    if not config.ties:
        yield from map_names({"head.weight": "lm_head.weight"})
    inner = OUTPUT | NORMS | {"channel.part.down": "mlp.down_proj"}
    yield from map_names(each_layer(layers, "stack", "model.layers", inner), "weight")
    for i in range(layers):
        maps = tuple(f"stack.{i}.mixer.part.{name}.weight" for name in ("query", "key", "value"))
        yield WeightMap(maps, (f"model.layers.{i}.self_attn.qkv_proj.weight",), Concatenated())
        halves = tuple(f"stack.{i}.channel.part.{name}.weight" for name in ("gate", "up"))
        yield WeightMap(halves, (f"model.layers.{i}.mlp.gate_up_proj.weight",), Concatenated())


FAMILY = Family("phi3", ("Phi3ForCausalLM",), read, write, weight_maps, IGNORED, defaults={"rms_norm_eps": 1e-5})
