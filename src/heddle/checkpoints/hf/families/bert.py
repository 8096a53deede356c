"""BERT (Devlin et al. 2018), and others with its names: RoBERTa (Liu et al. 2019), ELECTRA (Clark et al. 2020)."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import ACTIVATIONS
from heddle.checkpoints.hf.families.encoder_family import (
    HEAD,
    MASKED,
    ROW,
    SENTENCE,
    SPAN,
    TOKEN,
    EncoderClass,
    EncoderFamily,
    OutputParts,
    classifier_dropout,
    encoder_of,
    size_keys,
    stack_of,
    with_details,
)
from heddle.checkpoints.hf.family import expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, each_layer, map_names
from heddle.core import ConfigError, find, replace
from heddle.models.networks import EncoderConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.ends import NarrowEmbeddingConfig, SegmentedEmbeddingConfig, TransformedHeadConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.outputs import DenseFirstTokenConfig, ReplacedTokenOutputConfig
from heddle.nn.positions import LearnedPositionConfig, NoPositionConfig
from heddle.nn.stack import RepeatConfig

TABLES = {"tokens.weight": "word_embeddings.weight", "segments.weight": "token_type_embeddings.weight"}
TOKENS = "embedding.tokens.weight"
LAYER = {
    "mixer.part.query": "attention.self.query",
    "mixer.part.key": "attention.self.key",
    "mixer.part.value": "attention.self.value",
    "mixer.part.output": "attention.output.dense",
    "norm.norm": "attention.output.LayerNorm",
    "channel.part.up": "intermediate.dense",
    "channel.part.down": "output.dense",
    "norm_2.norm": "output.LayerNorm",
}
CLASSES, EDGES = {"outputs.token_class.classes": "classifier"}, {"outputs.span.edges": "qa_outputs"}
DEEP = {"pooling.dense": "classifier.dense", "outputs.sequence_class.classes": "classifier.out_proj"}


def _bert() -> EncoderFamily:
    pooler, follows = {"pooling.dense": "bert.pooler.dense"}, {"outputs.next_sentence.classes": "cls.seq_relationship"}
    head = "cls.predictions"
    masked = {f"{HEAD}.dense": f"{head}.transform.dense", f"{HEAD}.norm": f"{head}.transform.LayerNorm"}
    classes = {
        "BertModel": EncoderClass((), {"pooling.dense": "pooler.dense"}),
        "BertForPreTraining": EncoderClass((MASKED, SENTENCE), pooler | masked | follows),
        "BertForMaskedLM": EncoderClass((MASKED,), masked),
        "BertForNextSentencePrediction": EncoderClass((SENTENCE,), pooler | follows),
        "BertForSequenceClassification": EncoderClass(
            (ROW,), pooler | {"outputs.sequence_class.classes": "classifier"}
        ),
        "BertForTokenClassification": EncoderClass((TOKEN,), CLASSES),
        "BertForQuestionAnswering": EncoderClass((SPAN,), EDGES),
    }
    return EncoderFamily("bert", classes, f"{head}.decoder", f"{head}.bias")


def _roberta() -> EncoderFamily:
    masked = {f"{HEAD}.dense": "lm_head.dense", f"{HEAD}.norm": "lm_head.layer_norm"}
    classes = {
        "RobertaModel": EncoderClass((), {"pooling.dense": "pooler.dense"}),
        "RobertaForMaskedLM": EncoderClass((MASKED,), masked),
        "RobertaForSequenceClassification": EncoderClass((ROW,), DEEP),
        "RobertaForTokenClassification": EncoderClass((TOKEN,), CLASSES),
        "RobertaForQuestionAnswering": EncoderClass((SPAN,), EDGES),
    }
    return EncoderFamily("roberta", classes, "lm_head.decoder", "lm_head.bias")


def _electra() -> EncoderFamily:
    masked = {f"{HEAD}.dense": "generator_predictions.dense", f"{HEAD}.norm": "generator_predictions.LayerNorm"}
    output, head = "outputs.replaced_token", "discriminator_predictions"
    replaced = {f"{output}.dense": f"{head}.dense", f"{output}.replaced": f"{head}.dense_prediction"}
    classes = {
        "ElectraModel": EncoderClass((), {}),
        "ElectraForPreTraining": EncoderClass((ReplacedTokenOutputConfig,), replaced),
        "ElectraForMaskedLM": EncoderClass((MASKED,), masked),
        "ElectraForSequenceClassification": EncoderClass((ROW,), DEEP),
        "ElectraForTokenClassification": EncoderClass((TOKEN,), CLASSES),
        "ElectraForQuestionAnswering": EncoderClass((SPAN,), EDGES),
    }
    return EncoderFamily("electra", classes, "generator_lm_head", "generator_lm_head.bias")


BERT_ENCODER, ROBERTA_ENCODER, ELECTRA_ENCODER = _bert(), _roberta(), _electra()


def sizes(hf: HfConfig) -> dict[str, Any]:
    """Return the options of a preset; decoders are refused."""
    for key in ("is_decoder", "add_cross_attention"):
        hf.require(key, False)
    hf.require("position_embedding_type", "absolute")
    return {
        "layers": hf.integer("num_hidden_layers"),
        "width": hf.integer("hidden_size"),
        "heads": hf.integer("num_attention_heads"),
        "hidden": hf.integer("intermediate_size"),
        "vocab": hf.integer("vocab_size"),
        "context": hf.integer("max_position_embeddings"),
        "dropout": hf.number("hidden_dropout_prob", 0.1),
    }


def made_of(hf: HfConfig, options: Mapping[str, Any], first: int = 0) -> EncoderConfig:
    """Return what these families share; positions begin at row `first` of their table."""
    made = preset("bert-base").config(**options)
    made = expect(made, EncoderConfig)
    activation, drop = hf.choice("hidden_act", ACTIVATIONS, "gelu"), hf.number("attention_probs_dropout_prob", 0.1)
    made = with_details(made, activation, drop, hf.number("layer_norm_eps", 1e-12))
    segments = SegmentedEmbeddingConfig(segments=hf.integer("type_vocab_size", 2))
    return replace(made, embedding=segments, position=LearnedPositionConfig(first=first))


def extras(
    hf: HfConfig, made: EncoderConfig, pooling: DenseFirstTokenConfig, head: TransformedHeadConfig
) -> OutputParts:
    """Return the parts of outputs: pooler, head for tokens, dropout rates."""
    rate, activation = read_classifier_dropout(hf), hf.choice("hidden_act", ACTIVATIONS, "gelu")
    head = replace(head, norm=one(made.plan, LayerNormConfig))
    return OutputParts(head, pooling, activation, {ROW: rate, TOKEN: rate})


def read_classifier_dropout(hf: HfConfig) -> float:
    """Return the dropout before a classifier."""
    own = hf.data.get("classifier_dropout") is not None
    return hf.number("classifier_dropout" if own else "hidden_dropout_prob", 0.1)


def read_bert(hf: HfConfig) -> EncoderConfig:
    """Convert a config of BERT."""
    made = made_of(hf, sizes(hf))
    head = TransformedHeadConfig(activation=hf.choice("hidden_act", ACTIVATIONS, "gelu"))
    return BERT_ENCODER.with_outputs(made, hf, extras(hf, made, DenseFirstTokenConfig(), head), TOKENS)


def read_roberta(hf: HfConfig) -> EncoderConfig:
    """Convert a config of RoBERTa: positions begin after the row of the padding id."""
    first, options = hf.integer("pad_token_id", 1) + 1, sizes(hf)
    if not 0 < first < options["context"]:
        want = f"at least 0 and below max_position_embeddings - 1 = {options['context'] - 1}"
        raise ConfigError(f"{hf.where}: pad_token_id", want=want, got=first - 1)
    made = made_of(hf, options | {"context": options["context"] - first}, first)
    deep = ROBERTA_ENCODER.class_in(hf) == "RobertaForSequenceClassification"
    pooling = DenseFirstTokenConfig(dropout=read_classifier_dropout(hf) if deep else 0.0)
    return ROBERTA_ENCODER.with_outputs(made, hf, extras(hf, made, pooling, TransformedHeadConfig()), TOKENS)


def read_electra(hf: HfConfig) -> EncoderConfig:
    """Convert a config of ELECTRA: the embedding may be narrower than the layers."""
    made = made_of(hf, sizes(hf))
    pooling = DenseFirstTokenConfig(activation="gelu", dropout=read_classifier_dropout(hf))
    inner = hf.integer("embedding_size", 128)
    if inner == made.width:
        return ELECTRA_ENCODER.with_outputs(made, hf, extras(hf, made, pooling, TransformedHeadConfig()), TOKENS)
    entrance = NarrowEmbeddingConfig(
        inner=inner,
        table=made.embedding,
        position=made.position,
        norm=one(made.plan, LayerNormConfig),
        dropout=ElementDropoutConfig(rate=hf.number("hidden_dropout_prob", 0.1)),
    )
    more = extras(hf, made, pooling, TransformedHeadConfig(inner=inner))
    made = replace(made, embedding=entrance, position=NoPositionConfig(), plan=one(made.plan, RepeatConfig))
    return ELECTRA_ENCODER.with_outputs(made, hf, more, "embedding.table.tokens.weight")


def write_bert(config: ModelConfig) -> dict[str, Any]:
    """Convert a model config to the keys of BERT."""
    return _base_keys(encoder_of(config), BERT_ENCODER)


def write_roberta(config: ModelConfig) -> dict[str, Any]:
    """Convert a model config to the keys of RoBERTa."""
    keys, first = _base_keys(encoder_of(config), ROBERTA_ENCODER), one(config, LearnedPositionConfig).first
    keys["max_position_embeddings"] += first
    return keys | {"pad_token_id": first - 1}


def write_electra(config: ModelConfig) -> dict[str, Any]:
    """Convert a model config to the keys of ELECTRA."""
    encoder = encoder_of(config)
    narrow, keys = find(encoder, NarrowEmbeddingConfig), _base_keys(encoder, ELECTRA_ENCODER)
    return keys | {"embedding_size": narrow[0].inner if narrow else encoder.width}


def _base_keys(config: EncoderConfig, family: EncoderFamily) -> dict[str, Any]:
    return {
        **family.class_keys(config),
        **size_keys(config),
        "vocab_size": config.vocab,
        "num_hidden_layers": one(config.plan, RepeatConfig).times,
        "max_position_embeddings": config.context,
        "type_vocab_size": one(config, SegmentedEmbeddingConfig).segments,
        "classifier_dropout": classifier_dropout(config),
    }


def _weight_maps(config: EncoderConfig, family: EncoderFamily) -> Iterator[WeightMap]:
    prefix, stack = family.prefix_for(config), stack_of(config)
    entrance = f"{prefix}embeddings"
    narrow = isinstance(config.embedding, NarrowEmbeddingConfig)
    path = "embedding.table" if narrow else "embedding"
    yield from map_names({f"{path}.{a}": f"{entrance}.{b}" for a, b in TABLES.items()})
    position = "embedding.position.weight" if narrow else "position.weight"
    yield from map_names({position: f"{entrance}.position_embeddings.weight"})
    names = {"embedding.norm" if narrow else "stack.0.norm": f"{entrance}.LayerNorm"}
    if narrow:
        names["embedding.map"] = f"{prefix}embeddings_project"
    names |= each_layer(one(config.plan, RepeatConfig).times, stack, f"{prefix}encoder.layer", LAYER)
    yield from map_names(names, "weight", "bias")
    yield from family.weight_maps(config)


def weight_maps_bert(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    return _weight_maps(encoder_of(config), BERT_ENCODER)


def weight_maps_roberta(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    return _weight_maps(encoder_of(config), ROBERTA_ENCODER)


def weight_maps_electra(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    return _weight_maps(encoder_of(config), ELECTRA_ENCODER)


SUMMARY = frozenset({"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"})
BERT = BERT_ENCODER.family(read_bert, write_bert, weight_maps_bert)
ROBERTA = ROBERTA_ENCODER.family(read_roberta, write_roberta, weight_maps_roberta)
ELECTRA = ELECTRA_ENCODER.family(read_electra, write_electra, weight_maps_electra, SUMMARY)
