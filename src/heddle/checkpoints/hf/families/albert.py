"""ALBERT (Lan et al. 2020): layers that share weights in groups, and a factorized embedding."""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.bert import TABLES, sizes
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
    with_details,
)
from heddle.checkpoints.hf.family import expect, one
from heddle.checkpoints.hf.weight_map import WeightMap, map_names
from heddle.core import ConfigError, find, replace, swap
from heddle.models.networks import EncoderConfig, ModelConfig
from heddle.models.presets import preset
from heddle.nn.ends import NarrowEmbeddingConfig, SegmentedEmbeddingConfig, TransformedHeadConfig
from heddle.nn.layers import LayerNormConfig
from heddle.nn.outputs import DenseFirstTokenConfig
from heddle.nn.stack import BlockConfig, ChainConfig, LoopConfig, RepeatConfig

LAYER = {
    "mixer.part.query": "attention.query",
    "mixer.part.key": "attention.key",
    "mixer.part.value": "attention.value",
    "mixer.part.output": "attention.dense",
    "norm.norm": "attention.LayerNorm",
    "channel.part.up": "ffn",
    "channel.part.down": "ffn_output",
    "norm_2.norm": "full_layer_layer_norm",
}


def _encoder_family() -> EncoderFamily:
    pooler, head = {"pooling.dense": "albert.pooler"}, "predictions"
    masked = {f"{HEAD}.dense": f"{head}.dense", f"{HEAD}.norm": f"{head}.LayerNorm"}
    order = {"outputs.next_sentence.classes": "sop_classifier.classifier"}
    classes = {
        "AlbertModel": EncoderClass((), {"pooling.dense": "pooler"}),
        "AlbertForPreTraining": EncoderClass((MASKED, SENTENCE), pooler | masked | order),
        "AlbertForMaskedLM": EncoderClass((MASKED,), masked),
        "AlbertForSequenceClassification": EncoderClass(
            (ROW,), pooler | {"outputs.sequence_class.classes": "classifier"}
        ),
        "AlbertForTokenClassification": EncoderClass((TOKEN,), {"outputs.token_class.classes": "classifier"}),
        "AlbertForQuestionAnswering": EncoderClass((SPAN,), {"outputs.span.edges": "qa_outputs"}),
    }
    return EncoderFamily("albert", classes, f"{head}.decoder", f"{head}.bias")


ENCODER = _encoder_family()


def read(hf: HfConfig) -> EncoderConfig:
    """Convert a Hugging Face config to a model config."""
    options = sizes(hf) | {"dropout": hf.number("hidden_dropout_prob", 0.0)}
    inner, activation = hf.integer("embedding_size", 128), hf.choice("hidden_act", ACTIVATIONS, "gelu_new")
    made = preset("albert-base").config(inner=inner, **options)
    made = expect(made, EncoderConfig)
    drop, eps = hf.number("attention_probs_dropout_prob", 0.0), hf.number("layer_norm_eps", 1e-12)
    made = with_details(made, activation, drop, eps)
    segments = hf.integer("type_vocab_size", 2)
    made = swap(SegmentedEmbeddingConfig, lambda e: replace(e, segments=segments))(made)
    made = replace(made, plan=_plan(hf, one(made.plan, BlockConfig), options["layers"]))
    rate = hf.number("classifier_dropout_prob", 0.1)
    head = TransformedHeadConfig(inner=inner, activation=activation, norm=one(made.plan, LayerNormConfig))
    more = OutputParts(head, DenseFirstTokenConfig(), rates={ROW: rate, TOKEN: rate, SENTENCE: rate})
    return ENCODER.with_outputs(made, hf, more, "embedding.table.tokens.weight")


def _plan(hf: HfConfig, block: BlockConfig, layers: int) -> LoopConfig | ChainConfig:
    """Return the plan: each group repeats its layers, one or several, before the next group begins."""
    groups, each = hf.integer("num_hidden_groups", 1), hf.integer("inner_group_num", 1)
    if not 1 <= groups <= layers:
        raise ConfigError(f"{hf.where}: num_hidden_groups", want=f"from 1 to {layers}, the layers", got=groups)
    body = block if each == 1 else RepeatConfig(body=block, times=each)
    numbers = [int(layer / (layers / groups)) for layer in range(layers)]
    loops = tuple(LoopConfig(body=body, turns=numbers.count(group)) for group in range(groups))
    return loops[0] if groups == 1 else ChainConfig(bodies=loops)


def write(config: ModelConfig) -> Mapping[str, Any]:
    """Convert a model config to the keys of a Hugging Face config."""
    encoder = encoder_of(config)
    loops, inner = find(encoder.plan, LoopConfig), find(encoder.plan, RepeatConfig)
    return {
        **ENCODER.class_keys(encoder),
        **size_keys(encoder),
        "vocab_size": encoder.vocab,
        "num_hidden_layers": sum(loop.turns for loop in loops),
        "num_hidden_groups": len(loops),
        "inner_group_num": inner[0].times if inner else 1,
        "embedding_size": one(encoder, NarrowEmbeddingConfig).inner,
        "max_position_embeddings": encoder.context,
        "type_vocab_size": one(encoder, SegmentedEmbeddingConfig).segments,
        "classifier_dropout_prob": classifier_dropout(encoder, 0.1),
    }


def weight_maps(config: ModelConfig) -> Iterator[WeightMap]:
    """Yield the weight maps of a model."""
    encoder = encoder_of(config)
    prefix = ENCODER.prefix_for(encoder)
    entrance = f"{prefix}embeddings"
    yield from map_names({f"embedding.table.{a}": f"{entrance}.{b}" for a, b in TABLES.items()})
    yield from map_names({"embedding.position.weight": f"{entrance}.position_embeddings.weight"})
    names = {"embedding.norm": f"{entrance}.LayerNorm", "embedding.map": f"{prefix}encoder.embedding_hidden_mapping_in"}
    for group, loop in enumerate(find(encoder.plan, LoopConfig)):
        stack = f"stack.{group}.body" if isinstance(encoder.plan, ChainConfig) else "stack.body"
        within = f"{prefix}encoder.albert_layer_groups.{group}.albert_layers"
        for i in range(loop.body.depth()):
            body = f"{stack}.{i}" if isinstance(loop.body, RepeatConfig) else stack
            names |= {f"{body}.{a}": f"{within}.{i}.{b}" for a, b in LAYER.items()}
    yield from map_names(names, "weight", "bias")
    yield from ENCODER.weight_maps(encoder)


MORE = frozenset({"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"})
FAMILY = ENCODER.family(read, write, weight_maps, MORE)
