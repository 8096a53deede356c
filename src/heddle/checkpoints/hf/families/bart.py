"""BART (Lewis et al. 2020), and families with the same names: Marian (2018) and Pegasus (Zhang et al. 2020).

BART's classes are those of an encoder whose decoder reads the same row: both see the text, and the last vector counts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.families.encoder_family import (
    ROW,
    ROWS,
    OutputParts,
    classifier_dropout,
    label_keys,
    output_for,
)
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import (
    IDENTITY,
    Reordered,
    SinusoidalTable,
    Transform,
    Unsqueezed,
    WeightMap,
    Zeros,
    each_layer,
    map_names,
)
from heddle.core import find, replace, swap
from heddle.models.networks import (
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
    NetworkConfig,
    RereadingDecoderConfig,
    TieConfig,
    TowerConfig,
)
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig, ProjectionsConfig
from heddle.nn.channels import FeedForwardConfig, IdentityConfig, hidden_width
from heddle.nn.ends import FullEmbeddingConfig, SoftmaxHeadConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.outputs import DenseLastTokenConfig
from heddle.nn.positions import LearnedPositionConfig, SinusoidalPositionConfig
from heddle.nn.stack import BlockConfig, RepeatConfig

MAPS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
CLASSES = "BartForSequenceClassification"
HEAD = {"pooling.dense": "classification_head.dense", "outputs.sequence_class.classes": "classification_head.out_proj"}
TABLES = TieConfig(share="decoder.embedding.weight", of="embedding.weight")
IGNORED = frozenset(
    {
        "init_std", "classifier_dropout", "is_decoder", "encoder_layerdrop", "decoder_layerdrop", "activation_dropout",
        "decoder_vocab_size", "share_encoder_decoder_embeddings", "num_hidden_layers", "classif_dropout",
        "normalize_embedding", "normalize_before", "add_final_layer_norm", "add_bias_logits",
        "static_position_embeddings",
        "gradient_checkpointing", "length_penalty", "early_stopping", "no_repeat_ngram_size", "extra_pos_embeddings",
    }
)  # fmt: skip


def read_as(name: str, hf: HfConfig) -> EncoderDecoderConfig:
    """Convert a Hugging Face config, as a change of one of Heddle's presets."""
    for key in ("is_encoder_decoder", "tie_word_embeddings"):
        hf.require(key, True)
    made = preset(name).config(
        layers=1,
        width=hf.integer("d_model"),
        heads=1,
        vocab=hf.integer("vocab_size"),
        context=hf.integer("max_position_embeddings", 1024),
        dropout=hf.number("dropout", 0.1),
    )
    made = expect(made, EncoderDecoderConfig)
    activation = hf.choice("activation_function", ACTIVATIONS, "gelu")
    power = 0.5 if hf.flag("scale_embedding", False) else 0.0
    drop = hf.number("attention_dropout", 0.0)

    def tower(config: TowerConfig, side: str) -> TowerConfig:
        heads, hidden = hf.integer(f"{side}_attention_heads"), hf.integer(f"{side}_ffn_dim")
        times = hf.integer(f"{side}_layers")
        for edit in (
            swap(AttentionConfig, lambda a: replace(a, heads=heads, dropout=drop)),
            swap(CrossAttentionConfig, lambda a: replace(a, heads=heads, dropout=drop)),
            swap(FeedForwardConfig, lambda c: replace(c, hidden=hidden, activation=activation)),
            swap(RepeatConfig, lambda r: replace(r, times=times)),
            swap(FullEmbeddingConfig, lambda e: replace(e, power=power)),
        ):
            config = edit(config)
        return config

    return replace(made, encoder=tower(made.encoder, "encoder"), decoder=tower(made.decoder, "decoder"))


def read_bart(hf: HfConfig) -> ModelConfig:
    """Convert a config of BART."""
    found = hf.data.get("architectures")
    made = read_as("bart-base", hf)
    return read_classes(hf, made) if found == [CLASSES] else made


def read_classes(hf: HfConfig, made: EncoderDecoderConfig) -> EncoderConfig:
    """Turn a BART into one for classes, with BART's head."""
    rate, encoder = hf.number("classifier_dropout", 0.0), made.encoder
    return EncoderConfig(
        vocab=made.vocab,
        width=made.width,
        context=made.context,
        plan=encoder.plan,
        embedding=encoder.embedding,
        position=encoder.position,
        norm=encoder.norm,
        pooling=DenseLastTokenConfig(dropout=rate),
        outputs=(output_for(ROW, hf, OutputParts(rates={ROW: rate})),),
        rereading=RereadingDecoderConfig(tower=made.decoder, start=hf.integer("decoder_start_token_id", 2)),
        ties=(TABLES,),
    )


def read_marian(hf: HfConfig) -> EncoderDecoderConfig:
    """Convert a config of Marian."""
    hf.require("share_encoder_decoder_embeddings", True)
    return read_as("marian", hf)


def read_pegasus(hf: HfConfig) -> EncoderDecoderConfig:
    """Convert a config of Pegasus: Marian's parts with pre-norm, and a final norm."""
    made = read_as("marian", hf)
    return replace(made, encoder=norms_first(made.encoder), decoder=norms_first(made.decoder))


def norms_first(tower: TowerConfig) -> TowerConfig:
    """Turn a post-norm tower into a pre-norm one with a final norm."""

    def moved(block: BlockConfig) -> BlockConfig:
        parts = [branch for branch in block.branches if not isinstance(branch.part, IdentityConfig)]
        return BlockConfig(branches=tuple(replace(branch, norm=LayerNormConfig()) for branch in parts))

    return replace(swap(BlockConfig, moved)(tower), norm=LayerNormConfig())


def write_bart(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    if expect(config, NetworkConfig).reads_source:
        return _size_keys(expect(config, EncoderDecoderConfig))
    return _class_keys(expect(config, EncoderConfig))


def _class_keys(config: EncoderConfig) -> Mapping[str, Any]:
    """Return the keys of a BART for classes."""
    if config.rereading is None:
        raise NoCounterpart("it has no decoder that reads the row after the encoder")
    if len(config.outputs) != 1 or not isinstance(config.outputs[0], ROWS) or config.ties != (TABLES,):
        raise NoCounterpart("its output is not one of classes, with one table of embeddings")
    keys = {"architectures": [CLASSES], "decoder_start_token_id": config.rereading.start}
    return {**_size_keys(config), **keys, "classifier_dropout": classifier_dropout(config), **label_keys(config)}


def _size_keys(config: EncoderDecoderConfig | EncoderConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "is_encoder_decoder": True,
        "vocab_size": config.vocab,
        "d_model": config.width,
        "max_position_embeddings": config.context,
        "activation_function": activation_name(one(config, FeedForwardConfig).activation),
        "scale_embedding": one(config, FullEmbeddingConfig).power == 0.5,
        "dropout": one(config, ElementDropoutConfig).rate,
        "attention_dropout": one(config, AttentionConfig).dropout,
        "tie_word_embeddings": True,
    }
    for side, _, tower in _towers(config):
        keys |= {
            f"{side}_layers": one(tower, RepeatConfig).times,
            f"{side}_attention_heads": one(tower, AttentionConfig).heads,
            f"{side}_ffn_dim": hidden_width(one(tower, FeedForwardConfig), config.width),
        }
    return keys


def write_marian(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    keys = _size_keys(expect(config, EncoderDecoderConfig))
    last = keys["vocab_size"] - 1  # the padding token, which also starts the decoder
    more = {"decoder_vocab_size": keys["vocab_size"], "pad_token_id": last, "decoder_start_token_id": last}
    return {**keys, **more, "share_encoder_decoder_embeddings": True}


def as_stored(config: ModelConfig) -> ModelConfig:
    """Return what Marian and Pegasus store for a model: zeros for biases that it lacks, sines before cosines.

    Sinusoidal positions whose sines and cosines alternate are the same model with the features in another order.
    """
    for edit in (
        swap(ProjectionsConfig, lambda p: replace(p, bias=True, output_bias=True)),
        swap(SinusoidalPositionConfig, lambda p: replace(p, order="halves")),
        swap(SoftmaxHeadConfig, lambda h: replace(h, bias=True)),
    ):
        config = edit(config)
    return config


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    network = expect(config, NetworkConfig)
    if not network.reads_source:
        yield from map_names(HEAD, "weight", "bias")
    elif one(config, SoftmaxHeadConfig).bias:
        yield WeightMap(("head.bias",), ("final_logits_bias",), Unsqueezed())
    else:
        yield WeightMap((), ("final_logits_bias",), Zeros((1, expect(config, EncoderDecoderConfig).vocab)))
    yield from _tower_maps(network)


def _tower_maps(config: NetworkConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of both sides."""
    alternate = any(position.order == "interleaved" for position in find(config, SinusoidalPositionConfig))
    (_, first, _), _ = _towers(config)
    yield WeightMap((f"{first}embedding.weight",), ("model.shared.weight",), _order(alternate, 1))
    for side, prefix, tower in _towers(config):
        hf_path = f"model.{side}"
        names = {f"{prefix}stack.0.norm": f"{hf_path}.layernorm_embedding"}
        if find(tower.position, LearnedPositionConfig):
            yield from map_names({f"{prefix}position.weight": f"{hf_path}.embed_positions.weight"})
            yield from map_names(names, "weight", "bias")
        else:
            yield WeightMap((), (f"{hf_path}.embed_positions.weight",), SinusoidalTable(config.context, config.width))
        before = not find(tower, IdentityConfig)
        inner = _names(crossed=side == "decoder", before=before)
        every = each_layer(one(tower, RepeatConfig).times, f"{prefix}stack.1", f"{hf_path}.layers", inner)
        if before:
            every |= {f"{prefix}norm": f"{hf_path}.layer_norm"}
        for name, hf_name in every.items():
            yield from _module(config, name, hf_name, alternate)


def _module(config: NetworkConfig, name: str, hf_name: str, alternate: bool) -> Iterator[WeightMap]:
    """Yield the weight and the bias of a module; `alternate`: the features of the stream are reordered."""
    last, projections = name.rpartition(".")[2], one(config, ProjectionsConfig)
    reads = last in ("query", "key", "value", "up")  # from the stream; all others write to it, or norm it
    yield WeightMap((f"{name}.weight",), (f"{hf_name}.weight",), _order(alternate, 1 if reads else 0))
    if (last in ("query", "key", "value") and not projections.bias) or (
        last == "output" and not projections.output_bias
    ):
        yield WeightMap((), (f"{hf_name}.bias",), Zeros((config.width,)))
    else:
        yield WeightMap((f"{name}.bias",), (f"{hf_name}.bias",), _order(alternate and not reads, 0))


def _order(alternate: bool, axis: int) -> Transform:
    return Reordered(axis) if alternate else IDENTITY


def _names(crossed: bool, before: bool) -> dict[str, str]:
    """Return the names within a layer; `before`: pre-norm."""
    names = {f"mixer.part.{a}": f"self_attn.{b}" for a, b in MAPS.items()}
    if crossed:
        names |= {f"cross.part.{a}": f"encoder_attn.{b}" for a, b in MAPS.items()}
    names |= {"channel.part.up": "fc1", "channel.part.down": "fc2"}
    slots = ["mixer", "cross", "channel"] if crossed else ["mixer", "channel"]
    norms = ["self_attn_layer_norm", *(["encoder_attn_layer_norm"] if crossed else []), "final_layer_norm"]
    path = slots if before else ["norm", *(f"norm_{i}" for i in range(2, len(slots) + 1))]
    return names | {f"{a}.norm": b for a, b in zip(path, norms, strict=True)}


TowerNames = tuple[str, str, TowerConfig]  # their name of it, the prefix of our names, and its tower


def _towers(config: NetworkConfig) -> tuple[TowerNames, TowerNames]:
    """Return both towers."""
    if config.reads_source:
        pair = expect(config, EncoderDecoderConfig)
        return ("encoder", "encoder.", pair.encoder), ("decoder", "decoder.", pair.decoder)
    encoder = expect(config, EncoderConfig)
    if encoder.rereading is None:
        raise NoCounterpart("it has no decoder that reads the row after the encoder")
    tower = TowerConfig(plan=encoder.plan, embedding=encoder.embedding, position=encoder.position, norm=encoder.norm)
    return ("encoder", "", tower), ("decoder", "decoder.", encoder.rereading.tower)


_BART, _PEGASUS = ("BartForConditionalGeneration", CLASSES), ("PegasusForConditionalGeneration",)
BART = Family(
    "bart", _BART, read_bart, write_bart, weight_maps, IGNORED, config_type=(EncoderDecoderConfig, EncoderConfig)
)
MARIAN = Family(
    "marian",
    ("MarianMTModel",),
    read_marian,
    write_marian,
    weight_maps,
    IGNORED,
    config_type=EncoderDecoderConfig,
    as_stored=as_stored,
)
PEGASUS = Family(
    "pegasus",
    _PEGASUS,
    read_pegasus,
    write_bart,
    weight_maps,
    IGNORED,
    config_type=EncoderDecoderConfig,
    as_stored=as_stored,
)
