"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler, under other names."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS, activation_name
from heddle.checkpoints.hf.families.encoder_family import (
    HEAD,
    MASKED,
    ROW,
    ROWS,
    SPAN,
    TOKEN,
    EncoderClass,
    EncoderFamily,
    OutputParts,
    Rates,
    encoder_of,
    stack_of,
    with_details,
)
from heddle.checkpoints.hf.family import expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import find
from heddle.models.networks import EncoderConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig, hidden_width
from heddle.nn.ends import TransformedHeadConfig
from heddle.nn.layers import ElementDropoutConfig
from heddle.nn.outputs import DenseFirstTokenConfig
from heddle.nn.stack import RepeatConfig

LAYER = {
    "mixer.part.query": "attention.q_lin",
    "mixer.part.key": "attention.k_lin",
    "mixer.part.value": "attention.v_lin",
    "mixer.part.output": "attention.out_lin",
    "norm.norm": "sa_layer_norm",
    "channel.part.up": "ffn.lin1",
    "channel.part.down": "ffn.lin2",
    "norm_2.norm": "output_layer_norm",
}
EPS = 1e-12  # of every norm: the config has no key for it


def _encoder_family() -> EncoderFamily:
    row = {"pooling.dense": "pre_classifier", "outputs.sequence_class.classes": "classifier"}
    classes = {
        "DistilBertModel": EncoderClass((), {}),
        "DistilBertForMaskedLM": EncoderClass(
            (MASKED,), {f"{HEAD}.dense": "vocab_transform", f"{HEAD}.norm": "vocab_layer_norm"}
        ),
        "DistilBertForSequenceClassification": EncoderClass((ROW,), row),
        "DistilBertForTokenClassification": EncoderClass((TOKEN,), {"outputs.token_class.classes": "classifier"}),
        "DistilBertForQuestionAnswering": EncoderClass((SPAN,), {"outputs.span.edges": "qa_outputs"}),
    }
    return EncoderFamily("distilbert", classes, "vocab_projector", "vocab_projector.bias")


ENCODER = _encoder_family()


def read(hf: HfConfig) -> EncoderConfig:
    """Convert a Hugging Face config to a model config."""
    drop, activation = hf.number("dropout", 0.1), hf.choice("activation", ACTIVATIONS, "gelu")
    made = preset("distilbert").config(
        layers=hf.integer("n_layers"),
        width=hf.integer("dim"),
        heads=hf.integer("n_heads"),
        hidden=hf.integer("hidden_dim"),
        vocab=hf.integer("vocab_size"),
        context=hf.integer("max_position_embeddings", 512),
        dropout=drop,
    )
    made = expect(made, EncoderConfig)
    made = with_details(made, activation, hf.number("attention_dropout", 0.1), EPS)
    rates: Rates = {ROW: hf.number("seq_classif_dropout", 0.2), TOKEN: drop, SPAN: hf.number("qa_dropout", 0.1)}
    head, pooling = TransformedHeadConfig(activation=activation), DenseFirstTokenConfig(activation="relu")
    return ENCODER.with_outputs(made, hf, OutputParts(head, pooling, rates=rates), "embedding.weight")


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    encoder = encoder_of(config)
    attention, channel = one(encoder.plan, AttentionConfig), one(encoder.plan, FeedForwardConfig)
    keys = {
        **ENCODER.class_keys(encoder),
        "vocab_size": encoder.vocab,
        "max_position_embeddings": encoder.context,
        "n_layers": one(encoder.plan, RepeatConfig).times,
        "n_heads": attention.heads,
        "dim": encoder.width,
        "hidden_dim": hidden_width(channel, encoder.width),
        "activation": activation_name(channel.activation),
        "dropout": one(encoder.plan, ElementDropoutConfig).rate,
        "attention_dropout": attention.dropout,
    }
    for output in encoder.outputs:
        if isinstance(output, ROWS):
            keys["seq_classif_dropout"] = output.dropout
    for answer in find(encoder, SPAN):
        keys["qa_dropout"] = answer.dropout
    return keys


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    encoder = encoder_of(config)
    prefix = ENCODER.prefix_for(encoder)
    entrance = f"{prefix}embeddings"
    yield from map_names({"embedding.weight": f"{entrance}.word_embeddings.weight"})
    yield from map_names({"position.weight": f"{entrance}.position_embeddings.weight"})
    names = {"stack.0.norm": f"{entrance}.LayerNorm"}
    names |= each_layer(one(encoder.plan, RepeatConfig).times, stack_of(encoder), f"{prefix}transformer.layer", LAYER)
    yield from map_names(names, "weight", "bias")
    yield from ENCODER.weight_maps(encoder)


# How the position table was initialized, which does not matter once it is loaded.
MORE = frozenset({"sinusoidal_pos_embds", "tie_weights_"})
FAMILY = ENCODER.family(read, write, weight_maps, MORE)
