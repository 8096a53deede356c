"""Encoder outputs: masked language modelling, classes, spans (Devlin et al. 2018), embeddings (Gao et al. 2021)."""

import re
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import (
    Config,
    ConfigError,
    Positive,
    Share,
    UsageError,
    part,
    settings,
    within,
)
from heddle.core.shapes import Losses, Stream
from heddle.nn.base import Context, Linear, Module, Role, upcast
from heddle.nn.ends import HeadConfig, TransformedHeadConfig
from heddle.nn.layers import ActivationName, activation

NAME = re.compile(r"[a-z][a-z0-9_]*")
Vectors = Float[Tensor, "batch width"]
Labels = Int[Tensor, "..."]


class OutputConfig(Config, ABC):
    """An output of an encoder; its name is part of the names of its weights."""

    name: str
    reads: ClassVar[Literal["tokens", "pooled"]] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not NAME.fullmatch(self.name):
            raise ConfigError("name", want="small letters, digits and _", got=self.name)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes that it scores, by number; (): it scores none."""
        return ()

    @abstractmethod
    def build(self, vocab: int | None, width: int) -> "Output":
        """Build the module for a stream of this width."""


class Output(Module, ABC):
    """Scores and losses from the encoder's token vectors or from the pooled vector, as `reads` says."""

    reads: Literal["tokens", "pooled"] = "tokens"

    @abstractmethod
    def scores(self, x: Stream | Vectors, ctx: Context) -> Tensor:
        """Return logits over the last axis."""

    @abstractmethod
    def nll(self, x: Stream | Vectors, labels: Labels, ctx: Context) -> Losses:
        """Return each label's negative log-likelihood in nats."""

    def weighted_nll(self, x: Stream | Vectors, labels: Labels, weights: Losses, ctx: Context) -> Float[Tensor, ""]:
        """Return the sum of `nll`, weighted: the training loss."""
        return (self.nll(x, labels, ctx) * weights).sum()

    def score_nll(self, scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> Losses:
        """Return the loss of each label from scores, with label smoothing."""
        raise UsageError("this output computes losses from vectors, not from scores")

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities that scores stand for."""
        return upcast(scores).softmax(-1)


# --- tokens of the vocabulary -----------------------------------------------------------------------------------------


@part("masked_token")
class MaskedTokenOutputConfig(OutputConfig):
    """Masked language modelling (MLM): predict the token at each position (Devlin et al. 2018).

    name: what the output is called.
    head: how vectors become probabilities of tokens.
    """

    name: str = "masked_token"
    head: HeadConfig = TransformedHeadConfig()

    def build(self, vocab: int | None, width: int) -> Output:
        if vocab is None:
            raise ConfigError("outputs", want="classes, because there is no vocabulary", got=self.kind)
        if self.head.copies:
            raise ConfigError("head", want="one that does not copy, because there is no source", got=self.head.kind)
        return MaskedTokenOutput(vocab, width, self)


class MaskedTokenOutput(Output):
    """head(x)."""

    def __init__(self, vocab: int, width: int, config: MaskedTokenOutputConfig) -> None:
        super().__init__()
        self.head = config.head.build(vocab, width)

    def scores(self, x: Stream, ctx: Context) -> Tensor:
        return self.head.logits(x)

    def nll(self, x: Stream, labels: Labels, ctx: Context) -> Losses:
        return self.head.nll(x, labels)

    def weighted_nll(self, x: Stream, labels: Labels, weights: Losses, ctx: Context) -> Float[Tensor, ""]:
        return self.head.weighted_nll(x, labels, weights)


# --- classes ----------------------------------------------------------------------------------------------------------


@part("next_sentence")
class NextSentenceOutputConfig(OutputConfig):
    """Next-sentence (BERT) or sentence-order (ALBERT) prediction: the second text follows the first (0) or not (1).

    name: what the output is called.
    dropout: dropout of the pooled vector.
    """

    name: str = "next_sentence"
    dropout: Share = 0.0
    reads = "pooled"

    def build(self, vocab: int | None, width: int) -> Output:
        return ClassOutput(width, 2, self.dropout, self.reads)


@settings
class ClassOutputConfig(OutputConfig):
    """What the classification of rows and of tokens share."""

    classes: Positive
    name: str
    dropout: Share = 0.0
    labels: tuple[str, ...] = ()  # names of the classes; (): numbers only

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels and len(self.labels) != self.classes:
            want = f"one for each of {self.classes} classes, or none"
            raise ConfigError("labels", want=want, got=len(self.labels))

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels or tuple(f"LABEL_{number}" for number in range(self.classes))

    def build(self, vocab: int | None, width: int) -> Output:
        return ClassOutput(width, self.classes, self.dropout, self.reads)


@part("sequence_class")
class SequenceClassOutputConfig(ClassOutputConfig):
    """Sequence classification: the class of a row.

    classes: how many classes.
    name: what the output is called.
    dropout: dropout of the pooled vector.
    labels: names of the classes; (): numbers only.
    """

    name: str = "sequence_class"
    reads = "pooled"


@part("token_class")
class TokenClassOutputConfig(ClassOutputConfig):
    """Token classification: the class of each token, such as named entities.

    classes: how many classes.
    name: what the output is called.
    dropout: dropout of each token's vector.
    labels: names of the classes; (): numbers only.
    """

    name: str = "token_class"


class ClassOutput(Output):
    """softmax(classes(dropout(x)))."""

    def __init__(self, width: int, classes: int, dropout: float, reads: Literal["tokens", "pooled"]) -> None:
        super().__init__()
        self.reads = reads
        self.dropout = nn.Dropout(dropout)
        self.classes = Linear(width, classes, bias=True, role=Role.HEAD)

    def scores(self, x: Stream | Vectors, ctx: Context) -> Tensor:
        return self.classes(self.dropout(x))  # type: ignore[no-any-return]

    def nll(self, x: Stream | Vectors, labels: Labels, ctx: Context) -> Losses:
        return self.score_nll(self.scores(x, ctx), labels)

    def score_nll(self, scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> Losses:
        return class_nll(scores, labels, smoothing)


def class_nll(scores: Tensor, labels: Labels, smoothing: float = 0.0) -> Losses:
    """Return the cross-entropy of each label."""
    flat = upcast(scores).flatten(0, -2)
    return F.cross_entropy(flat, labels.flatten(), reduction="none", label_smoothing=smoothing).view_as(labels)


@part("replaced_token")
class ReplacedTokenOutputConfig(OutputConfig):
    """Replaced-token detection: original (0) or replaced (1) (ELECTRA, Clark et al. 2020).

    name: what the output is called.
    activation: the function after the dense layer.
    """

    name: str = "replaced_token"
    activation: ActivationName = "gelu"

    def build(self, vocab: int | None, width: int) -> Output:
        return ReplacedTokenOutput(width, self)


class ReplacedTokenOutput(Output):
    """softmax([0, replaced(activation(dense(x)))]), which is a sigmoid."""

    def __init__(self, width: int, config: ReplacedTokenOutputConfig) -> None:
        super().__init__()
        self.dense = Linear(width, width, bias=True)
        self.activation = activation(config.activation)
        self.replaced = Linear(width, 1, bias=True, role=Role.HEAD)

    def scores(self, x: Stream, ctx: Context) -> Float[Tensor, "batch length 2"]:
        return F.pad(self.replaced(self.activation(self.dense(x))), (1, 0))

    def nll(self, x: Stream, labels: Int[Tensor, "batch length"], ctx: Context) -> Losses:
        return class_nll(self.scores(x, ctx), labels)


# --- spans ------------------------------------------------------------------------------------------------------------


@part("span")
class SpanOutputConfig(OutputConfig):
    """Extractive question answering: the first and the last token of the answer.

    name: what the output is called.
    dropout: dropout of each token's vector.
    """

    name: str = "span"
    dropout: Share = 0.0

    def build(self, vocab: int | None, width: int) -> Output:
        return SpanOutput(width, self.dropout)


class SpanOutput(Output):
    """softmax over the row of edges(dropout(x)), once for the first token and once for the last."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.edges = Linear(width, 2, bias=True, role=Role.HEAD)

    def scores(self, x: Stream, ctx: Context) -> Float[Tensor, "batch 2 length"]:
        if ctx.documents is not None:
            raise UsageError("a span needs one document a row, got packed documents")
        scores = upcast(self.edges(self.dropout(x))).transpose(1, 2)
        real = ctx.real(x)
        return scores if real is None else scores.masked_fill(~real[:, None], float("-inf"))

    def nll(self, x: Stream, labels: Int[Tensor, "batch 2"], ctx: Context) -> Float[Tensor, " batch"]:
        """Return -log p(first) - log p(last) of each row."""
        return self.score_nll(self.scores(x, ctx), labels)

    def score_nll(self, scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> Losses:
        return class_nll(scores, labels, smoothing).sum(1)


def best_spans(
    scores: Float[Tensor, "batch 2 length"], allowed: Bool[Tensor, "batch length"], longest: int
) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the first and the last place of the best span of allowed places in each row, and its score.

    The score is the sum of both ends'; a span has at most `longest` places. Without a place, it is -inf.
    """
    ends = scores.masked_fill(~allowed[:, None], float("-inf"))
    length = scores.shape[2]
    both = ends[:, 0, :, None] + ends[:, 1, None, :]
    valid = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu().tril(longest - 1)
    best, at = both.masked_fill(~valid, float("-inf")).flatten(1).max(1)
    return at // length, at % length, best


# --- vectors ----------------------------------------------------------------------------------------------------------


@part("embedding")
class EmbeddingOutputConfig(OutputConfig):
    """Sentence embedding, trained by in-batch contrastive learning (SimCSE, Gao et al. 2021).

    name: what the output is called.
    normalized: whether embeddings are scaled to length 1.
    temperature: temperature of the softmax over similarities.
    """

    old_fields = {"normalised": "normalized"}

    name: str = "embedding"
    normalized: bool = True
    temperature: Annotated[float, within("above 0", lambda temperature: temperature > 0)] = 0.05
    reads = "pooled"

    def build(self, vocab: int | None, width: int) -> Output:
        return EmbeddingOutput(self)


class EmbeddingOutput(Output):
    """x / |x|; the loss is that of softmax over the other rows of x[i] · x[j] / temperature."""

    reads = "pooled"

    def __init__(self, config: EmbeddingOutputConfig) -> None:
        super().__init__()
        self.normalized, self.temperature = config.normalized, config.temperature

    def scores(self, x: Vectors, ctx: Context) -> Vectors:
        """Return the vectors themselves."""
        return F.normalize(upcast(x), dim=-1).to(x.dtype) if self.normalized else x

    def pair_nll(self, first: Vectors, second: Vectors, real: Bool[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Return -log softmax over the second views of all real rows, of each row's own (SimCSE)."""
        left, right = (F.normalize(upcast(one), dim=-1) for one in (first, second))
        similarity = (left @ right.T / self.temperature).masked_fill(~real[None], float("-inf"))
        return -similarity.log_softmax(-1).diagonal().where(real, 0.0)

    def nll(self, x: Vectors, labels: Int[Tensor, " batch"], ctx: Context) -> Float[Tensor, " batch"]:
        """Return the contrastive loss (InfoNCE) of each row, whose label is the number of its partner."""
        vectors = upcast(self.scores(x, ctx))
        similarity = vectors @ vectors.T / self.temperature
        diagonal = torch.eye(len(x), dtype=torch.bool, device=x.device)
        return F.cross_entropy(similarity.masked_fill(diagonal, float("-inf")), labels, reduction="none")
