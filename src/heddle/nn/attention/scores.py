"""Attention scores of a query and a key: dot product (Vaswani 2017), additive (Bahdanau 2014), general (Luong 2015).

A softmax over the keys turns scores into attention weights, by which the values are summed; see `backends.py`.
"""

import dataclasses
import math
from abc import ABC, abstractmethod

import torch
from torch import nn

from heddle.core import Config, ConfigError, part
from heddle.nn.attention.backends import AttentionInputs, Output, Scores, attend
from heddle.nn.base import InitialValues, Module, Role, upcast
from heddle.nn.layers import apply_softcap


class ScoreConfig(Config, ABC):
    """How a query and a key are compared."""

    def supports_rotary(self) -> bool:
        """Tell whether scores of queries and keys with rotary embeddings depend on their distance alone."""
        return True

    @abstractmethod
    def build(self, heads: int, head_width: int) -> "Score":
        """Build the module for heads of this number and width."""


class Score(Module, ABC):
    """A module: attention inputs -> scores. `attention_weights` and `attend` continue from them."""

    scale: float | None = None  # of a plain dot product, which fused kernels compute; None: another score
    softcap: float | None = None

    @abstractmethod
    def forward(self, inputs: AttentionInputs) -> Scores:
        """Return the score of every query and key; bias and mask come later."""

    def softmax_scores(self, scores: Scores) -> Scores:
        """Turn scores into attention weights."""
        return scores.softmax(-1)

    def softmax_weights(self, inputs: AttentionInputs) -> Scores:
        """Return the attention weights; those of a query without any allowed key mean nothing."""
        return self.softmax_scores(upcast(inputs.apply_bias_and_mask(self(inputs)))).to(inputs.query.dtype)

    def attention_weights(self, inputs: AttentionInputs) -> Scores:
        """Return the attention weights, zero wherever a key is masked."""
        inputs = inputs.with_mask()
        weights = self.softmax_weights(inputs)
        return weights if inputs.allowed is None else weights.masked_fill(~inputs.allowed, 0)

    def attend(self, inputs: AttentionInputs, dropout: float = 0.0) -> Output:
        """Return each head's values, weighed by the softmax of the scores; `dropout` is of the weights."""
        return attend(self, inputs, dropout)

    def query_init_scale(self) -> float:
        """Return the factor on the query projection's initial values, so that unscaled scores begin as if scaled."""
        return 1.0

    def flops(self) -> int:
        """Count the FLOPs of one score in one head."""
        return 0


@part("dot")
class DotScoreConfig(ScoreConfig):
    """Scaled dot-product attention: the score is query · key * scale (Vaswani et al. 2017).

    scale: factor of the scores; None: 1 / sqrt(head_width).
    softcap: scores become softcap * tanh(score / softcap) (Gemma 2); None: they stay.
    """

    scale: float | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None and self.softcap <= 0:
            raise ConfigError("softcap", want="above 0", got=self.softcap)

    def build(self, heads: int, head_width: int) -> "ScaledDotProduct":
        scale = 1 / math.sqrt(head_width) if self.scale is None else self.scale
        return ScaledDotProduct(head_width, scale, self.softcap)


class ScaledDotProduct(Score):
    """query · key * scale."""

    scale: float

    def __init__(self, head_width: int, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.head_width, self.scale, self.softcap = head_width, scale, softcap

    def forward(self, inputs: AttentionInputs) -> Scores:
        query = inputs.query * self.scale
        scores = query @ inputs.repeat_kv().key.transpose(-1, -2)
        if inputs.relation is not None:
            scores = scores + inputs.relation.key_scores(query)
        return apply_softcap(scores, self.softcap)

    def query_init_scale(self) -> float:
        return 1 / (math.sqrt(self.head_width) * self.scale) if self.scale else 1.0

    def flops(self) -> int:
        return 2 * self.head_width


@part("general")
class GeneralScoreConfig(ScoreConfig):
    """Luong's general score: query · weight · key, with a matrix for each head (Luong et al. 2015).

    scale: factor of the scores; None: 1 / sqrt(head_width).
    """

    scale: float | None = None

    def supports_rotary(self) -> bool:
        return False

    def build(self, heads: int, head_width: int) -> "GeneralScore":
        return GeneralScore(heads, head_width, DotScoreConfig(scale=self.scale))


class GeneralScore(Score):
    """query · weight · key * scale."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, heads: int, head_width: int, dot: DotScoreConfig) -> None:
        super().__init__()
        self.dot = dot.build(heads, head_width)
        self.weight = nn.Parameter(torch.empty(heads, head_width, head_width))

    def project_query(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return the inputs with the queries multiplied by the matrix."""
        query = inputs.query @ self.weight.to(inputs.query.dtype)
        return dataclasses.replace(inputs, query=query, sliding_window=None, cache_lengths=None)

    def forward(self, inputs: AttentionInputs) -> Scores:
        return self.dot(self.project_query(inputs))  # type: ignore[no-any-return]

    def attend(self, inputs: AttentionInputs, dropout: float = 0.0) -> Output:
        """Attend by a dot product with the projected queries."""
        return self.dot.attend(self.project_query(inputs), dropout)

    def flops(self) -> int:
        return self.dot.flops()


@part("additive")
class AdditiveScoreConfig(ScoreConfig):
    """Additive score: vector · tanh(query + key), with a vector for each head (Bahdanau et al. 2014)."""

    def supports_rotary(self) -> bool:
        return False

    def build(self, heads: int, head_width: int) -> "AdditiveScore":
        return AdditiveScore(heads, head_width)


class AdditiveScore(Score):
    """vector · tanh(query + key); needs memory for a vector for every query and key."""

    roles = {"vector": Role.BIAS}  # a direction, not a matrix: optimizers treat it as a bias

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(heads, head_width))
        self.initial_values = {"vector": InitialValues(scale=head_width**-0.5)}

    def forward(self, inputs: AttentionInputs) -> Scores:
        both = inputs.query[:, :, :, None] + inputs.repeat_kv().key[:, :, None]
        if inputs.relation is not None:
            both = both + inputs.relation.keys[inputs.relation.index][:, None]
        return torch.einsum("bhqkw,hw->bhqk", both.tanh(), self.vector.to(both.dtype))

    def flops(self) -> int:
        return 4 * self.vector.shape[1]  # add, tanh, multiply, sum


@part("sink")
class SinkScoreConfig(ScoreConfig):
    """Attention sink: a learned logit for each head takes part in the softmax and has no value (gpt-oss, 2025).

    score: the score of the real keys.
    """

    score: ScoreConfig = DotScoreConfig()

    def supports_rotary(self) -> bool:
        return self.score.supports_rotary()

    def build(self, heads: int, head_width: int) -> "SinkScore":
        return SinkScore(heads, self.score.build(heads, head_width))


class SinkScore(Score):
    """softmax(scores, sink) without the sink's own weight."""

    roles = {"sink": Role.BIAS}

    def __init__(self, heads: int, score: Score) -> None:
        super().__init__()
        self.score, self.sink = score, nn.Parameter(torch.empty(heads))

    def forward(self, inputs: AttentionInputs) -> Scores:
        return self.score(inputs)  # type: ignore[no-any-return]

    def softmax_scores(self, scores: Scores) -> Scores:
        """Turn scores into weights that sum to less than one."""
        sink = self.sink.to(scores.dtype)[:, None, None].expand(len(scores), -1, scores.shape[-2], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]

    def flops(self) -> int:
        return self.score.flops()
