"""T5 (Raffel et al. 2020) and T5 1.1 (Shazeer 2020): one family, with a plain or a gated feed-forward part."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.family import Family, expect, one
from heddle.checkpoints.hf.weight_map import Transposed, WeightMap, each_layer, map_names
from heddle.core import find, replace, swap
from heddle.models.networks import EncoderDecoderConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig, head_width_for
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig, hidden_width
from heddle.nn.ends import SoftmaxHeadConfig
from heddle.nn.layers import ElementDropoutConfig, RMSNormConfig
from heddle.nn.positions import T5PositionConfig
from heddle.nn.stack import RepeatConfig

MAPS = {"query": "q", "key": "k", "value": "v", "output": "o"}
IGNORED = frozenset(
    {
        "initializer_factor", "dense_act_fn", "is_gated_act", "classifier_dropout", "is_decoder",
        "output_past",
    }
)  # fmt: skip
CONTEXT = 512  # the length that the models were trained at; relative positions set no limit


def read(hf: HfConfig) -> EncoderDecoderConfig:
    """Convert a Hugging Face config to a model config."""
    hf.require("is_encoder_decoder", True)
    gated, activation = _feed_forward(hf)
    tied = hf.flag("tie_word_embeddings", True)
    layers = hf.integer("num_layers")
    made = preset("t5-base").config(
        layers=layers,
        width=hf.integer("d_model"),
        heads=hf.integer("num_heads"),
        head_width=hf.integer("d_kv"),
        hidden=hf.integer("d_ff"),
        vocab=hf.integer("vocab_size"),
        context=hf.integer("n_positions", CONTEXT),
        dropout=hf.number("dropout_rate", 0.1),
    )
    made = expect(made, EncoderDecoderConfig)
    buckets = hf.integer("relative_attention_num_buckets", 32)
    far = hf.integer("relative_attention_max_distance", 128)
    made = swap(T5PositionConfig, T5PositionConfig(buckets=buckets, farthest=far))(made)
    made = swap(RMSNormConfig, RMSNormConfig(eps=hf.number("layer_norm_epsilon", 1e-6)))(made)
    made = swap(FeedForwardConfig, lambda c: gated(hidden=c.hidden, activation=activation))(made)
    times = hf.maybe_integer("num_decoder_layers") or layers
    made = replace(made, decoder=swap(RepeatConfig, lambda r: replace(r, times=times))(made.decoder))
    scaled = hf.flag("scale_decoder_outputs", tied)
    head = replace(made.head, power=-0.5 if scaled else 0.0)
    return replace(made, head=head, ties=made.ties if tied else made.ties[:1])


FeedForwardKind = tuple[type[FeedForwardConfig] | type[GatedFeedForwardConfig], str]


def _feed_forward(hf: HfConfig) -> FeedForwardKind:
    known: dict[str, FeedForwardKind] = {name: (FeedForwardConfig, found) for name, found in ACTIVATIONS.items()}
    known |= {f"gated-{name}": (GatedFeedForwardConfig, activation) for name, activation in ACTIVATIONS.items()}
    known["gated-gelu"] = (GatedFeedForwardConfig, "gelu_tanh")  # an exception in transformers
    return hf.choice("feed_forward_proj", known, "relu")


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    config = expect(config, EncoderDecoderConfig)
    gated = find(config, GatedFeedForwardConfig)
    channel = gated[0] if gated else one(config, FeedForwardConfig)
    word = activation_name(channel.activation)
    if isinstance(channel, GatedFeedForwardConfig):
        word = "gated-gelu" if channel.activation == "gelu_tanh" else f"gated-{word}"
    tied = len(config.ties) > 1
    return base_keys(config, hidden_width(channel, config.width)) | {
        "num_layers": one(config.encoder, RepeatConfig).times,
        "num_decoder_layers": one(config.decoder, RepeatConfig).times,
        "feed_forward_proj": word,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": one(config, SoftmaxHeadConfig).power == -0.5,
    }


def base_keys(config: EncoderDecoderConfig, hidden: int) -> dict[str, Any]:
    """Return the keys that T5 and Switch share."""
    attention, position = one(config, AttentionConfig), one(config, T5PositionConfig)
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.vocab,
        "n_positions": config.context,
        "d_model": config.width,
        "d_kv": head_width_for(attention, config.width),
        "d_ff": hidden,
        "num_heads": attention.heads,
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.farthest,
        "dropout_rate": one(config, ElementDropoutConfig).rate,
        "layer_norm_epsilon": one(config, RMSNormConfig).eps,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    config = expect(config, EncoderDecoderConfig)
    yield from map_names({"encoder.embedding.weight": "shared.weight"})
    if len(config.ties) < 2:
        yield from map_names({"head.weight": "lm_head.weight"})
    heads = one(config, AttentionConfig).heads
    gated = bool(find(config, GatedFeedForwardConfig))
    for side, tower in (("encoder", config.encoder), ("decoder", config.decoder)):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield from map_names({f"{side}.position.heads_{heads}": bias}, transform=Transposed())
        yield from map_names({f"{side}.norm.weight": f"{side}.final_layer_norm.weight"})
        names = _names(crossed=side == "decoder", gated=gated)
        every = each_layer(one(tower, RepeatConfig).times, f"{side}.stack.1", f"{side}.block", names)
        yield from map_names(every, "weight")


def _names(crossed: bool, gated: bool) -> dict[str, str]:
    names = {"mixer.norm": "layer.0.layer_norm"}
    names |= {f"mixer.part.{a}": f"layer.0.SelfAttention.{b}" for a, b in MAPS.items()}
    if crossed:
        names |= {"cross.norm": "layer.1.layer_norm"}
        names |= {f"cross.part.{a}": f"layer.1.EncDecAttention.{b}" for a, b in MAPS.items()}
    last = f"layer.{2 if crossed else 1}"
    inner = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    names |= {f"channel.part.{a}": f"{last}.DenseReluDense.{b}" for a, b in (inner | {"down": "wo"}).items()}
    return names | {"channel.norm": f"{last}.layer_norm"}


FAMILY = Family(
    "t5", ("T5ForConditionalGeneration",), read, write, weight_maps, IGNORED, config_type=EncoderDecoderConfig
)
