"""Encoders: what BERT and its kin share: a class for each thing that is chosen, and what stands around the layers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.families.common import activation_name
from heddle.checkpoints.hf.family import Family, NoCounterpart, expect, one
from heddle.checkpoints.hf.weight_map import Duplicated, WeightMap, map_names, with_suffixes
from heddle.core import ConfigError, UsageError, replace, swap
from heddle.models.networks import EncoderConfig, ModelConfig, TieConfig
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig, hidden_width
from heddle.nn.ends import (
    FirstTokenConfig,
    HeadConfig,
    MaskedTokenOutputConfig,
    NextSentenceOutputConfig,
    OutputConfig,
    PoolingConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
)
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.stack import ChainConfig

HEAD = "outputs.masked_token.head"
MASKED, SENTENCE = MaskedTokenOutputConfig, NextSentenceOutputConfig
ROW, TOKEN, SPAN = SequenceClassOutputConfig, TokenClassOutputConfig, SpanOutputConfig

# What older files call the gain and the shift of a norm.
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
IGNORED_KEYS = frozenset(
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
    """One class of theirs: what it gives, and what it calls the modules behind its layers, by our names."""

    outputs: tuple[type[OutputConfig], ...]
    modules: Mapping[str, str]


@dataclass(frozen=True)
class OutputParts:
    """What the outputs of a model are made with: a head, how a row is pooled, and how much is dropped before each."""

    head: HeadConfig | None = None  # for tokens
    pooling: PoolingConfig | None = None
    activation: str = "gelu"
    rates: Rates | None = None


@dataclass(frozen=True)
class EncoderFamily:
    """A family of encoders: its classes, of which the first is the bare model, and its names around the layers."""

    name: str  # before the names of all weights but those of outputs, where there are outputs
    classes: Mapping[str, EncoderClass]
    matrix: str = ""  # the module that holds the matrix to the vocabulary
    bias: str = ""  # the weight that is added after it; not always that module's

    def family(
        self, read: Read, write: Write, weight_maps: WeightMaps, ignored_keys: frozenset[str] = frozenset()
    ) -> Family:
        """Return how it is read and written; `idle` are keys that say nothing, beside those of all encoders."""
        return Family(
            self.name, tuple(self.classes), read, write, weight_maps, ignored_keys | IGNORED_KEYS, self.ignored_weights(), EncoderConfig, OLD
        )  # fmt: skip

    def class_in(self, hf: HfConfig) -> str:
        """Return the class that a config names, or the bare model where it names none."""
        found = hf.data.get("architectures")
        named = found[0] if isinstance(found, list) and found else found or next(iter(self.classes))
        return HfConfig({"architectures": named}, hf.where).word("architectures", {c: c for c in self.classes})

    def class_for(self, config: EncoderConfig) -> str:
        """Return the class that gives what an encoder gives."""
        wanted = tuple(type(output) for output in config.outputs)
        for name, chosen in self.classes.items():
            if chosen.outputs == wanted:
                return name
        raise NoCounterpart(f"it has no class for outputs {', '.join(str(kind.kind) for kind in wanted)}")

    def with_outputs(self, config: EncoderConfig, hf: HfConfig, extras: OutputParts, tokens: str = "") -> EncoderConfig:
        """Return an encoder that gives what the class of a config gives; `tokens`: the table that a head may share."""
        hf.only("pruned_heads", {})
        hf.only("is_encoder_decoder", False)
        chosen = self.classes[self.class_in(hf)]
        outputs = tuple(_output(kind, hf, extras) for kind in chosen.outputs)
        pooled = any(kind.reads == "pooled" for kind in chosen.outputs)
        plain = FirstTokenConfig() if pooled else None
        pooling = extras.pooling if "pooling.dense" in chosen.modules else plain
        tied = hf.flag("tie_word_embeddings", True) and MASKED in chosen.outputs
        ties = (TieConfig(share=f"{HEAD}.weight", of=tokens),) if tied else ()
        return replace(config, pooling=pooling, outputs=outputs, ties=ties)

    def class_keys(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the keys of a config of theirs that say what is chosen for."""
        name = self.class_for(config)
        tied = bool(config.ties) or MASKED not in self.classes[name].outputs
        return {"architectures": [name], "tie_word_embeddings": tied, **_label_keys(config)}

    def prefix_for(self, config: EncoderConfig) -> str:
        """Return what stands before the names of weights that are not an output's."""
        return f"{self.name}." if config.outputs else ""

    def weight_maps(self, config: EncoderConfig) -> Iterator[WeightMap]:
        """Yield which weights behind the layers are which."""
        chosen = self.classes[self.class_for(config)]
        yield from map_names(with_suffixes(chosen.modules, "weight", "bias"))
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
        """Return what a folder may hold beside a model's weights: those of other classes, copies, position numbers."""
        modules = {hf_name for chosen in self.classes.values() for hf_name in chosen.modules.values()}
        more = {f"{self.matrix}.weight", f"{self.matrix}.bias", self.bias} if self.matrix else set()
        ids = {f"{prefix}embeddings.position_ids" for prefix in ("", f"{self.name}.")}
        return frozenset({f"{name}.{kind}" for name in modules for kind in ("weight", "bias")} | more | ids)


def encoder_of(config: ModelConfig) -> EncoderConfig:
    """Return a config as an encoder's, or say that it is none."""
    return expect(config, EncoderConfig)


def with_details(config: EncoderConfig, activation: str, dropout: float, eps: float) -> EncoderConfig:
    """Return an encoder with another activation in its layers, dropout of its attention and eps of its norms."""
    for edit in (
        swap(FeedForwardConfig, lambda c: replace(c, activation=activation)),
        swap(AttentionConfig, lambda a: replace(a, dropout=dropout)),
        swap(LayerNormConfig, LayerNormConfig(eps=eps)),
    ):
        config = edit(config)
    return config


def size_keys(config: EncoderConfig) -> dict[str, Any]:
    """Return the keys of theirs that most of BERT's kin have, the number of layers not among them."""
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
    """Return how much is dropped before the classes of a row or a token."""
    found = [output.dropout for output in config.outputs if isinstance(output, ROW | TOKEN | SENTENCE)]
    return found[0] if found else default


def stack_of(config: EncoderConfig) -> str:
    """Return our name for what holds the layers: they are alone, or behind an entry."""
    return "stack.1" if isinstance(config.plan, ChainConfig) else "stack"


# --- outputs and the names of classes ---------------------------------------------------------------------------------


def _output(kind: type[OutputConfig], hf: HfConfig, extras: OutputParts) -> OutputConfig:
    rate = (extras.rates or {}).get(kind, 0.0)
    if kind is MASKED:
        if extras.head is None:
            raise UsageError(f"{hf.where}: this family has no head for masked tokens")
        return MASKED(head=extras.head)
    if kind is ReplacedTokenOutputConfig:
        return ReplacedTokenOutputConfig(activation=extras.activation)
    classes, labels = _labels(hf)
    if kind is ROW:
        return ROW(classes=classes, labels=labels, dropout=rate)
    if kind is TOKEN:
        return TOKEN(classes=classes, labels=labels, dropout=rate)
    if classes != 2:
        raise ConfigError(f"{hf.where}: id2label", want="two, for this class", got=classes)
    return SPAN(dropout=rate) if kind is SPAN else SENTENCE(dropout=rate)


def _labels(hf: HfConfig) -> tuple[int, tuple[str, ...]]:
    """Return how many classes there are and what they are called; nothing where the names are numbers."""
    found = hf.part("id2label").data
    if not found:
        return hf.number("num_labels", 2), ()
    if set(found) != {str(i) for i in range(len(found))}:
        raise ConfigError(f"{hf.where}: id2label", want=f"numbers from 0 to {len(found) - 1}", got=list(found)[:3])
    names = tuple(str(found[str(i)]) for i in range(len(found)))
    return len(found), () if names == _numbered(len(found)) else names


def _label_keys(config: EncoderConfig) -> dict[str, Any]:
    for output in config.outputs:
        if isinstance(output, ROW | TOKEN):
            names = output.labels or _numbered(output.classes)
            keys = {str(i): name for i, name in enumerate(names)}
            return {"id2label": keys, "label2id": {name: i for i, name in enumerate(names)}}
    return {}


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(classes))
