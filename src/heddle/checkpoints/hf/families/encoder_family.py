"""What BERT-like families share: a class for each task, its outputs, and the names around the layers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import activation_name
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import Duplicated, WeightMap, map_names
from heddle.core import ConfigError, UsageError, replace, swap
from heddle.models.networks import EncoderConfig, ModelConfig, TieConfig
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig, hidden_width
from heddle.nn.ends import HeadConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.outputs import (
    FirstTokenConfig,
    MaskedTokenOutputConfig,
    MultiLabelOutputConfig,
    NextSentenceOutputConfig,
    OutputConfig,
    PoolingConfig,
    RegressionOutputConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
)
from heddle.nn.stack import ChainConfig

HEAD = "outputs.masked_token.head"
MASKED, SENTENCE = MaskedTokenOutputConfig, NextSentenceOutputConfig
ROW, TOKEN, SPAN = SequenceClassOutputConfig, TokenClassOutputConfig, SpanOutputConfig
ROWS = (ROW, MultiLabelOutputConfig, RegressionOutputConfig)  # one class of theirs, by its `problem_type`
SEVERAL, REGRESSION = "multi_label_classification", "regression"

# Names of LayerNorm parameters in older files.
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
IGNORED = frozenset(
    {
        "classifier_dropout", "directionality", "gradient_checkpointing", "pooler_fc_size",
        "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    }
)  # fmt: skip


Read = Callable[[HfConfig], ModelConfig]
Write = Callable[[ModelConfig], Mapping[str, Any]]
WeightMaps = Callable[[ModelConfig], Iterable[WeightMap]]
Rates = Mapping[type[OutputConfig], float]


@dataclass(frozen=True)
class EncoderClass:
    """A Hugging Face class for one task: its outputs, and its names for the modules after the layers."""

    outputs: tuple[type[OutputConfig], ...]
    modules: Mapping[str, str]


@dataclass(frozen=True)
class OutputParts:
    """The parts that outputs are built from: head, pooling, activation and dropout rates."""

    head: HeadConfig | None = None  # for masked tokens
    pooling: PoolingConfig | None = None
    activation: str = "gelu"
    rates: Rates | None = None


@dataclass(frozen=True)
class EncoderFamily:
    """A family of encoders: its classes, the first of which has no head, and its names outside the layers."""

    name: str  # the prefix of the encoder's weights in classes with a head
    classes: Mapping[str, EncoderClass]
    matrix: str = ""  # the module with the output matrix
    bias: str = ""  # the name of the output bias

    def family(self, read: Read, write: Write, weights: WeightMaps, ignored: frozenset[str] = frozenset()) -> Family:
        """Return the family; `ignored` are config keys to ignore, beside those of all encoders."""
        names, ignored = tuple(self.classes), ignored | IGNORED
        return Family(self.name, names, read, write, weights, ignored, self.ignored_weights(), EncoderConfig, OLD)

    def class_in(self, hf: HfConfig) -> str:
        """Return the class that a config names, or else the model without a head."""
        found = hf.data.get("architectures")
        named = found[0] if isinstance(found, list) and found else found or next(iter(self.classes))
        return HfConfig({"architectures": named}, hf.where).choice("architectures", {c: c for c in self.classes})

    def class_for(self, config: EncoderConfig) -> str:
        """Return the class with the outputs of an encoder."""
        wanted = tuple(ROW if isinstance(output, ROWS) else type(output) for output in config.outputs)
        for name, chosen in self.classes.items():
            if chosen.outputs == wanted:
                return name
        raise NoCounterpart(f"it has no class for outputs {', '.join(str(kind.kind) for kind in wanted)}")

    def with_outputs(self, config: EncoderConfig, hf: HfConfig, extras: OutputParts, tokens: str = "") -> EncoderConfig:
        """Return an encoder with the outputs of a config's class; `tokens`: the embedding a head may be tied to."""
        hf.require("pruned_heads", {})
        hf.require("is_encoder_decoder", False)
        chosen = self.classes[self.class_in(hf)]
        outputs = tuple(output_for(kind, hf, extras) for kind in chosen.outputs)
        pooled = any(kind.reads == "pooled" for kind in chosen.outputs)
        plain = FirstTokenConfig() if pooled else None
        pooling = extras.pooling if "pooling.dense" in chosen.modules else plain
        tied = hf.flag("tie_word_embeddings", True) and MASKED in chosen.outputs
        ties = (TieConfig(share=f"{HEAD}.weight", of=tokens),) if tied else ()
        return replace(config, pooling=pooling, outputs=outputs, ties=ties)

    def class_keys(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the config keys that depend on the class: architecture, tying, labels."""
        name = self.class_for(config)
        tied = bool(config.ties) or MASKED not in self.classes[name].outputs
        return {"architectures": [name], "tie_word_embeddings": tied, **label_keys(config)}

    def prefix_for(self, config: EncoderConfig) -> str:
        """Return the prefix of the names of the encoder's weights."""
        return f"{self.name}." if config.outputs else ""

    def weight_maps(self, config: EncoderConfig) -> Iterator[WeightMap]:
        """Yield the weight maps of the outputs."""
        chosen = self.classes[self.class_for(config)]
        yield from map_names(chosen.modules, "weight", "bias")
        if MASKED not in chosen.outputs:
            return
        inner = f"{self.matrix}.bias"
        if config.ties:
            yield from map_names({f"{HEAD}.bias": self.bias})
        else:
            yield from map_names({f"{HEAD}.weight": f"{self.matrix}.weight"})
            biases = (inner,) if inner == self.bias else (inner, self.bias)
            yield WeightMap((f"{HEAD}.bias",), biases, Duplicated(len(biases)))

    def ignored_weights(self) -> frozenset[str]:
        """Return the tensors that a folder may also hold: other heads, copies, position ids."""
        modules = {hf_name for chosen in self.classes.values() for hf_name in chosen.modules.values()}
        more = {f"{self.matrix}.weight", f"{self.matrix}.bias", self.bias} if self.matrix else set()
        ids = {f"{prefix}embeddings.position_ids" for prefix in ("", f"{self.name}.")}
        return frozenset({f"{name}.{kind}" for name in modules for kind in ("weight", "bias")} | more | ids)


def encoder_of(config: ModelConfig) -> EncoderConfig:
    """Return a config as an encoder's, or refuse it."""
    return expect(config, EncoderConfig)


def with_details(config: EncoderConfig, activation: str, dropout: float, eps: float) -> EncoderConfig:
    """Return an encoder with this activation, attention dropout and epsilon of norms."""
    for edit in (
        swap(FeedForwardConfig, lambda c: replace(c, activation=activation)),
        swap(AttentionConfig, lambda a: replace(a, dropout=dropout)),
        swap(LayerNormConfig, LayerNormConfig(eps=eps)),
    ):
        config = edit(config)
    return config


def size_keys(config: EncoderConfig) -> dict[str, Any]:
    """Return the config keys of sizes that BERT-like families share; the number of layers is not among them."""
    attention, channel = one(config.plan, AttentionConfig), one(config.plan, FeedForwardConfig)
    return {
        "hidden_size": config.width,
        "num_attention_heads": attention.heads,
        "intermediate_size": hidden_width(channel, config.width),
        "hidden_act": activation_name(channel.activation),
        "hidden_dropout_prob": one(config.plan, ElementDropoutConfig).rate,
        "attention_probs_dropout_prob": attention.dropout,
        "layer_norm_eps": one(config.plan, LayerNormConfig).eps,
    }


def classifier_dropout(config: EncoderConfig, default: float | None = None) -> float | None:
    """Return the dropout before a classifier."""
    found = [output.dropout for output in config.outputs if isinstance(output, (*ROWS, TOKEN, SENTENCE))]
    return found[0] if found else default


def stack_of(config: EncoderConfig) -> str:
    """Return the path of the layers: they follow an entry, or are the whole stack."""
    return "stack.1" if isinstance(config.plan, ChainConfig) else "stack"


# --- outputs and labels -----------------------------------------------------------------------------------------------


def output_for(kind: type[OutputConfig], hf: HfConfig, extras: OutputParts) -> OutputConfig:
    rate = (extras.rates or {}).get(kind, 0.0)
    if kind is MASKED:
        if extras.head is None:
            raise UsageError(f"{hf.where}: this family has no head for masked tokens")
        return MASKED(head=extras.head)
    if kind is ReplacedTokenOutputConfig:
        return ReplacedTokenOutputConfig(activation=extras.activation)
    classes, labels = _labels(hf)
    if kind is ROW:
        problem = hf.data.get("problem_type")
        if problem == REGRESSION and classes == 1:
            return RegressionOutputConfig(dropout=rate)
        chosen = MultiLabelOutputConfig if problem == SEVERAL else ROW
        return chosen(classes=classes, labels=labels, dropout=rate)
    if kind is TOKEN:
        return TOKEN(classes=classes, labels=labels, dropout=rate)
    if classes != 2:
        raise ConfigError(f"{hf.where}: id2label", want="two labels for this class of model", got=classes)
    return SPAN(dropout=rate) if kind is SPAN else SENTENCE(dropout=rate)


def _labels(hf: HfConfig) -> tuple[int, tuple[str, ...]]:
    """Return the number of labels and their names; no names where they are the default LABEL_0, LABEL_1."""
    found = hf.nested("id2label").data
    if not found:
        return hf.integer("num_labels", 2), ()
    if set(found) != {str(i) for i in range(len(found))}:
        raise ConfigError(f"{hf.where}: id2label", want=f"numbers from 0 to {len(found) - 1}", got=list(found)[:3])
    names = tuple(str(found[str(i)]) for i in range(len(found)))
    return len(found), () if names == _numbered(len(found)) else names


def label_keys(config: EncoderConfig) -> dict[str, Any]:
    for output in config.outputs:
        if isinstance(output, RegressionOutputConfig):
            if (output.offset, output.scale) != (0.0, 1.0):
                raise NoCounterpart("its number is scaled")
            return {"problem_type": REGRESSION, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        if isinstance(output, ROW | TOKEN | MultiLabelOutputConfig):
            names = output.class_names
            keys = {str(i): name for i, name in enumerate(names)}
            found = {"id2label": keys, "label2id": {name: i for i, name in enumerate(names)}}
            return found | ({"problem_type": SEVERAL} if isinstance(output, MultiLabelOutputConfig) else {})
    return {}


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(classes))
