"""BERT (Devlin et al. 2018), and those that share its names: RoBERTa (Liu et al. 2019), ELECTRA (Clark et al. 2020)."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import Theirs
from heddle.checkpoints.hf.families.common import ACTIVATIONS
from heddle.checkpoints.hf.families.encoders import (
    HEAD,
    MASKED,
    ROW,
    SENTENCE,
    SPAN,
    TOKEN,
    Asked,
    Extras,
    Kin,
    encoder_of,
    rate_of,
    refined,
    stack_of,
    told_sizes,
)
from heddle.checkpoints.hf.family import one
from heddle.checkpoints.hf.weight_map import Link, each_layer, table, with_kinds
from heddle.core import ConfigError, find, replace
from heddle.models.networks import EncoderConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.ends import (
    DenseFirstTokenConfig,
    NarrowEmbeddingConfig,
    ReplacedTokenOutputConfig,
    SegmentedEmbeddingConfig,
    TransformedHeadConfig,
)
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
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


def _bert() -> Kin:
    pooler, follows = {"pooling.dense": "bert.pooler.dense"}, {"outputs.next_sentence.classes": "cls.seq_relationship"}
    head = "cls.predictions"
    masked = {f"{HEAD}.dense": f"{head}.transform.dense", f"{HEAD}.norm": f"{head}.transform.LayerNorm"}
    classes = {
        "BertModel": Asked((), {"pooling.dense": "pooler.dense"}),
        "BertForPreTraining": Asked((MASKED, SENTENCE), pooler | masked | follows),
        "BertForMaskedLM": Asked((MASKED,), masked),
        "BertForNextSentencePrediction": Asked((SENTENCE,), pooler | follows),
        "BertForSequenceClassification": Asked((ROW,), pooler | {"outputs.sequence_class.classes": "classifier"}),
        "BertForTokenClassification": Asked((TOKEN,), CLASSES),
        "BertForQuestionAnswering": Asked((SPAN,), EDGES),
    }
    return Kin("bert", classes, f"{head}.decoder", f"{head}.bias")


def _roberta() -> Kin:
    masked = {f"{HEAD}.dense": "lm_head.dense", f"{HEAD}.norm": "lm_head.layer_norm"}
    classes = {
        "RobertaModel": Asked((), {"pooling.dense": "pooler.dense"}),
        "RobertaForMaskedLM": Asked((MASKED,), masked),
        "RobertaForSequenceClassification": Asked((ROW,), DEEP),
        "RobertaForTokenClassification": Asked((TOKEN,), CLASSES),
        "RobertaForQuestionAnswering": Asked((SPAN,), EDGES),
    }
    return Kin("roberta", classes, "lm_head.decoder", "lm_head.bias")


def _electra() -> Kin:
    masked = {f"{HEAD}.dense": "generator_predictions.dense", f"{HEAD}.norm": "generator_predictions.LayerNorm"}
    told, head = "outputs.replaced_token", "discriminator_predictions"
    replaced = {f"{told}.dense": f"{head}.dense", f"{told}.replaced": f"{head}.dense_prediction"}
    classes = {
        "ElectraModel": Asked((), {}),
        "ElectraForPreTraining": Asked((ReplacedTokenOutputConfig,), replaced),
        "ElectraForMaskedLM": Asked((MASKED,), masked),
        "ElectraForSequenceClassification": Asked((ROW,), DEEP),
        "ElectraForTokenClassification": Asked((TOKEN,), CLASSES),
        "ElectraForQuestionAnswering": Asked((SPAN,), EDGES),
    }
    return Kin("electra", classes, "generator_lm_head", "generator_lm_head.bias")


KIN_BERT, KIN_ROBERTA, KIN_ELECTRA = _bert(), _roberta(), _electra()


def sizes(hf: Theirs) -> dict[str, Any]:
    """Return the dials of a preset; what would make it more than an encoder is refused."""
    for key in ("is_decoder", "add_cross_attention"):
        hf.only(key, False)
    hf.only("position_embedding_type", "absolute")
    return {
        "layers": hf.number("num_hidden_layers"),
        "width": hf.number("hidden_size"),
        "heads": hf.number("num_attention_heads"),
        "hidden": hf.number("intermediate_size"),
        "vocab": hf.number("vocab_size"),
        "context": hf.number("max_position_embeddings"),
        "dropout": hf.real("hidden_dropout_prob", 0.1),
    }


def made_of(hf: Theirs, dials: Mapping[str, Any], first: int = 0) -> EncoderConfig:
    """Return what all of these have in common, with positions from a row of their table on."""
    made = preset("bert-base").config(**dials)
    assert isinstance(made, EncoderConfig)
    bend, drop = hf.word("hidden_act", ACTIVATIONS, "gelu"), hf.real("attention_probs_dropout_prob", 0.1)
    made = refined(made, bend, drop, hf.real("layer_norm_eps", 1e-12))
    segments = SegmentedEmbeddingConfig(segments=hf.number("type_vocab_size", 2))
    return replace(made, embedding=segments, position=LearnedPositionConfig(first=first))


def extras(hf: Theirs, made: EncoderConfig, pooling: DenseFirstTokenConfig, head: TransformedHeadConfig) -> Extras:
    """Return what outputs are made with: a pooler, a head for tokens with the norm of the layers, rates of dropout."""
    rate, bend = rate_in(hf), hf.word("hidden_act", ACTIVATIONS, "gelu")
    return Extras(replace(head, norm=one(made.plan, LayerNormConfig)), pooling, bend, {ROW: rate, TOKEN: rate})


def rate_in(hf: Theirs) -> float:
    """Return how much is dropped before the classes of a row or a token."""
    own = hf.data.get("classifier_dropout") is not None
    return hf.real("classifier_dropout" if own else "hidden_dropout_prob", 0.1)


def read_bert(hf: Theirs) -> EncoderConfig:
    """Return what a config of BERT's describes."""
    made = made_of(hf, sizes(hf))
    head = TransformedHeadConfig(activation=hf.word("hidden_act", ACTIVATIONS, "gelu"))
    return KIN_BERT.asked(made, hf, extras(hf, made, DenseFirstTokenConfig(), head), TOKENS)


def read_roberta(hf: Theirs) -> EncoderConfig:
    """Return what a config of RoBERTa's describes: positions begin behind the row of the padding's id."""
    first, dials = hf.number("pad_token_id", 1) + 1, sizes(hf)
    if not 0 < first < dials["context"]:
        wish = f"at least 0 and below max_position_embeddings - 1 = {dials['context'] - 1}"
        raise ConfigError(f"{hf.where}: pad_token_id", want=wish, got=first - 1)
    made = made_of(hf, dials | {"context": dials["context"] - first}, first)
    deep = KIN_ROBERTA.class_in(hf) == "RobertaForSequenceClassification"
    pooling = DenseFirstTokenConfig(dropout=rate_in(hf) if deep else 0.0)
    return KIN_ROBERTA.asked(made, hf, extras(hf, made, pooling, TransformedHeadConfig()), TOKENS)


def read_electra(hf: Theirs) -> EncoderConfig:
    """Return what a config of ELECTRA's describes: the entrance may be narrower than the layers."""
    made = made_of(hf, sizes(hf))
    pooling = DenseFirstTokenConfig(activation="gelu", dropout=rate_in(hf))
    inner = hf.number("embedding_size", 128)
    if inner == made.width:
        return KIN_ELECTRA.asked(made, hf, extras(hf, made, pooling, TransformedHeadConfig()), TOKENS)
    entrance = NarrowEmbeddingConfig(
        inner=inner,
        table=made.embedding,
        position=made.position,
        norm=one(made.plan, LayerNormConfig),
        dropout=ElementDropoutConfig(rate=hf.real("hidden_dropout_prob", 0.1)),
    )
    more = extras(hf, made, pooling, TransformedHeadConfig(inner=inner))
    made = replace(made, embedding=entrance, position=NoPositionConfig(), plan=one(made.plan, RepeatConfig))
    return KIN_ELECTRA.asked(made, hf, more, "embedding.table.tokens.weight")


def write_bert(config: ModelConfig) -> dict[str, Any]:
    """Return a config of BERT's for one of ours."""
    return _told(encoder_of(config), KIN_BERT)


def write_roberta(config: ModelConfig) -> dict[str, Any]:
    """Return a config of RoBERTa's for one of ours."""
    told, first = _told(encoder_of(config), KIN_ROBERTA), one(config, LearnedPositionConfig).first
    told["max_position_embeddings"] += first
    return told | {"pad_token_id": first - 1}


def write_electra(config: ModelConfig) -> dict[str, Any]:
    """Return a config of ELECTRA's for one of ours."""
    ours = encoder_of(config)
    narrow, told = find(ours, NarrowEmbeddingConfig), _told(ours, KIN_ELECTRA)
    return told | {"embedding_size": narrow[0].inner if narrow else ours.width}


def _told(config: EncoderConfig, kin: Kin) -> dict[str, Any]:
    return {
        **kin.told(config),
        **told_sizes(config),
        "vocab_size": config.vocab,
        "num_hidden_layers": one(config.plan, RepeatConfig).times,
        "max_position_embeddings": config.context,
        "type_vocab_size": one(config, SegmentedEmbeddingConfig).segments,
        "classifier_dropout": rate_of(config),
    }


def _links(config: EncoderConfig, kin: Kin) -> Iterator[Link]:
    prefix, stack = kin.prefix_for(config), stack_of(config)
    entrance = f"{prefix}embeddings"
    narrow = isinstance(config.embedding, NarrowEmbeddingConfig)
    ours = "embedding.table" if narrow else "embedding"
    yield from table({f"{ours}.{a}": f"{entrance}.{b}" for a, b in TABLES.items()})
    position = "embedding.position.weight" if narrow else "position.weight"
    yield from table({position: f"{entrance}.position_embeddings.weight"})
    names = {"embedding.norm" if narrow else "stack.0.norm": f"{entrance}.LayerNorm"}
    if narrow:
        names["embedding.map"] = f"{prefix}embeddings_project"
    names |= each_layer(one(config.plan, RepeatConfig).times, stack, f"{prefix}encoder.layer", LAYER)
    yield from table(with_kinds(names, "weight", "bias"))
    yield from kin.links(config)


def links_bert(config: ModelConfig) -> Iterator[Link]:
    """Yield which weights are which."""
    return _links(encoder_of(config), KIN_BERT)


def links_roberta(config: ModelConfig) -> Iterator[Link]:
    """Yield which weights are which."""
    return _links(encoder_of(config), KIN_ROBERTA)


def links_electra(config: ModelConfig) -> Iterator[Link]:
    """Yield which weights are which."""
    return _links(encoder_of(config), KIN_ELECTRA)


SUMMARY = frozenset({"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"})
BERT = KIN_BERT.family(read_bert, write_bert, links_bert)
ROBERTA = KIN_ROBERTA.family(read_roberta, write_roberta, links_roberta)
ELECTRA = KIN_ELECTRA.family(read_electra, write_electra, links_electra, SUMMARY)
