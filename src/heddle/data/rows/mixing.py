"""Mixing corpora: rows of several plans in fixed proportions, still a pure function of the row number."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan, joined
from heddle.data.rows.plan import permutation

BLOCK = 1000  # rows; each block holds exactly the wanted shares, so the rows before a block need no counting


class MixedPlan(RowPlan):
    """Rows of several plans by weight; each plan runs through its own epochs.

    An epoch of the mixture is nominal: as many rows as all plans together have in one of theirs.
    """

    def __init__(self, sources: Sequence[tuple[RowPlan, float]], seed: int) -> None:
        if not sources:
            raise ConfigError("mixture", want="at least one source", got="none")
        self._plans = [plan for plan, _ in sources]
        for index, plan in enumerate(self._plans):
            if plan.batch is not None:
                raise ConfigError(f"mixture.{index}", want="rows of kind packed", got=type(plan).__name__)
            if plan.length != self._plans[0].length:
                raise ConfigError(f"mixture.{index}.length", want=str(self._plans[0].length), got=plan.length)
            if (plan.row(0).documents is None) != (self._plans[0].row(0).documents is None):
                raise ConfigError(f"mixture.{index}.boundaries", want="those of the first source", got="the others")
        self.length = self._plans[0].length
        self.rows_per_epoch = sum(plan.rows_per_epoch for plan in self._plans)
        self.shares = apportion([weight for _, weight in sources], BLOCK)
        self._block = EpochCache(partial(_arrange, self.shares, seed))

    def row(self, number: int) -> Row:
        chosen, inner = self.place(number)
        return self._plans[chosen].row(inner)

    def build_batch(self, numbers: Sequence[int]) -> Batch:
        places = np.array([self.place(number) for number in numbers])
        chosen, inner = places[:, 0], places[:, 1]

        def make(some: NDArray[np.int64]) -> Batch:
            return self._plans[int(chosen[some[0]])].build_batch(inner[some].tolist())

        return dataclasses.replace(joined(chosen, make), rows=torch.tensor(numbers, dtype=torch.int64))

    def place(self, number: int) -> tuple[int, int]:
        """Return which plan a row comes from, and which of that plan's rows it is."""
        block, index = divmod(number, BLOCK)
        plans, turns = self._block(block)
        chosen = int(plans[index])
        return chosen, block * self.shares[chosen] + int(turns[index])


def apportion(weights: Sequence[float], seats: int = BLOCK, names: Sequence[str] | None = None) -> list[int]:
    """Apportion seats by weight, by the largest remainder method; a weight too small for one seat is refused.

    `names` are what errors call the weights.
    """
    names = [f"mixture.{index}.weight" for index in range(len(weights))] if names is None else names
    total = float(sum(weights))
    for name, weight in zip(names, weights, strict=True):
        if not 0 < weight < float("inf"):
            raise ConfigError(name, want="a number above 0", got=weight)
    exact = [weight / total * seats for weight in weights]
    shares = [int(part) for part in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: seats - sum(shares)]:
        shares[index] += 1
    for index, share in enumerate(shares):
        if share == 0:
            want = f"at least 1/{seats} of all weights, or the source would never be read"
            raise ConfigError(names[index], want=want, got=weights[index])
    return shares


def _arrange(shares: list[int], seed: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle a block's plans, and count for each row how often its plan has come before in the block."""
    order = permutation(BLOCK, seed, "mixing", block)
    plans = np.repeat(np.arange(len(shares)), shares)[order]
    turns = np.empty(BLOCK, np.int64)
    for plan, share in enumerate(shares):
        turns[plans == plan] = np.arange(share)
    return plans, turns
