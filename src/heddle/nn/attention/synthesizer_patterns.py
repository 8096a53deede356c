"""Synthesizer patterns (Tay et al. 2020): attention scores without keys, from tables or from the query alone."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, Positive, part, settings
from heddle.nn.base import InitialValues, Module, Role

SynthesizedScores = Float[Tensor, "#batch heads query key"]
Heads = Float[Tensor, "batch heads length head_width"]


@dataclass(frozen=True)
class QueryKeyPositions:
    """Positions of queries and keys in their documents; None: 0, 1, 2, ..."""

    queries: Int[Tensor, "#batch query"] | None
    keys: Int[Tensor, "#batch key"] | None
    counts: tuple[int, int]

    def rows(self, table: Float[Tensor, "heads context columns"]) -> Float[Tensor, "#batch heads query columns"]:
        """Return a table's row for each query."""
        return table[None, :, : self.counts[0]] if self.queries is None else table[:, self.queries].transpose(0, 1)

    def columns(self, scores: Float[Tensor, "#batch heads query context"]) -> SynthesizedScores:
        """Return the column for each key."""
        if self.keys is None:
            return scores[..., : self.counts[1]]
        return scores.take_along_dim(self.keys[:, None, None], dim=-1)


class PatternConfig(Config, ABC):
    """Attention scores without keys."""

    @abstractmethod
    def build(self, heads: int, head_width: int, context: int) -> "Pattern":
        """Build the module for rows up to the context."""


class Pattern(Module, ABC):
    """A module: queries, where it reads them, and positions -> scores."""

    reads_query: bool = False  # whether it reads queries

    @abstractmethod
    def forward(self, query: Heads | None, positions: QueryKeyPositions) -> SynthesizedScores:
        """Return a score for each query and key."""


def _uniform(inputs: int, outputs: int) -> InitialValues:
    """Return the initial values of Glorot & Bengio (2010)."""
    return InitialValues(scale=math.sqrt(6 / (inputs + outputs)), distribution="uniform")


@part("random")
class RandomPatternConfig(PatternConfig):
    """Learn a score for every pair of positions."""

    def build(self, heads: int, head_width: int, context: int) -> Pattern:
        return RandomPattern(heads, context)


class RandomPattern(Pattern):
    """table[query, key]."""

    roles = {"table": Role.EMBEDDING}

    def __init__(self, heads: int, context: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(heads, context, context))
        self.initial_values = {"table": _uniform(context * heads, context * context)}

    def forward(self, query: Heads | None, positions: QueryKeyPositions) -> SynthesizedScores:
        return positions.columns(positions.rows(self.table))


@settings
class LowRankPatternConfig(PatternConfig):
    """Scores from two tables of low rank."""

    rank: Positive = 16


class LowRankPattern(Pattern, ABC):
    """What both patterns of low rank share: two tables."""

    roles = {"left": Role.EMBEDDING, "right": Role.EMBEDDING}

    def __init__(self, heads: int, context: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.empty(heads, context, rank))
        self.right = nn.Parameter(torch.empty(heads, context, rank))
        values = _uniform(rank * heads, rank * context)
        self.initial_values = {"left": values, "right": values}


@part("factorized")
class FactorizedPatternConfig(LowRankPatternConfig):
    """Learn a score for every pair of positions as a product of low rank.

    rank: inner width of the product.
    """

    def build(self, heads: int, head_width: int, context: int) -> Pattern:
        return FactorizedPattern(heads, context, self.rank)


class FactorizedPattern(LowRankPattern):
    """sum over ranks of left[query] * right[key]."""

    def forward(self, query: Heads | None, positions: QueryKeyPositions) -> SynthesizedScores:
        return positions.columns(positions.rows(self.left) @ self.right.transpose(1, 2))


@part("constant")
class ConstantPatternConfig(LowRankPatternConfig):
    """Learn one score for each key, equal for all queries: what Narang et al. ran as their factorized form.

    rank: inner width of the product.
    """

    def build(self, heads: int, head_width: int, context: int) -> Pattern:
        return ConstantPattern(heads, context, self.rank)


class ConstantPattern(LowRankPattern):
    """sum over ranks of left[key] * right[key]."""

    def forward(self, query: Heads | None, positions: QueryKeyPositions) -> SynthesizedScores:
        scores = (self.left * self.right).sum(-1)[None, :, None]
        return positions.columns(scores).expand(-1, -1, positions.counts[0], -1)


@part("dense")
class DensePatternConfig(PatternConfig):
    """Predict the scores of all keys from the query alone."""

    def build(self, heads: int, head_width: int, context: int) -> Pattern:
        return DensePattern(heads, head_width, context)


class DensePattern(Pattern):
    """relu(query) · weight[key], one matrix for all heads."""

    reads_query = True
    roles = {"weight": Role.INSIDE}

    def __init__(self, heads: int, head_width: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(context, head_width))
        self.initial_values = {"weight": InitialValues(scale=head_width**-0.5, distribution="truncated")}

    def forward(self, query: Heads | None, positions: QueryKeyPositions) -> SynthesizedScores:
        assert query is not None
        weight = self.weight if positions.keys is not None else self.weight[: positions.counts[1]]
        return positions.columns(F.linear(query.relu(), weight.to(query.dtype)))

    def mixing_flops(self, length: int) -> int:
        context, head_width = self.weight.shape
        return 2 * head_width * (self.heads * length - context)  # the matrix itself is counted by its role
