"""Integrated gradients (Sundararajan et al. 2017), by Gauss-Legendre quadrature that refines itself where it must.

A norm turns even the shortest vector into one of full length, so that nearly all of the gradient may lie next to the
baseline of zeros; activations have kinks. The integral over a piece of the path is known beforehand, by the scores at
its two ends: pieces that miss it are divided until the whole is complete.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heddle.explain.inputs import CHUNK, TokenSequence, replaced_embeddings

COMPLETE = 1e-3  # how far the sum may be from the difference of the scores
MAX_POINTS = 2048  # at which the gradient is computed: a score that jumps, as where experts change, is never complete
NOTHING = 1e-10  # a piece this near to zero is not divided: there a stack of norms jumps, within rounding
ORDER = 16  # points of a piece of a divided one

Embedded = dict[TokenSequence, Tensor]  # by sequence, [rows, length, width]
Score = Callable[[int], Tensor]  # of several equal rows


@dataclass(frozen=True)
class Piece:
    """A piece of the path from zeros to the vectors, with its integral and how far that is from the true one."""

    start: float
    end: float
    integral: Embedded
    error: float

    @property
    def middle(self) -> float:
        """Return where it is divided: by its order of magnitude, since norms are sharpest near zero."""
        if self.start == 0:
            return self.end / 256
        return math.sqrt(self.start * self.end) if self.end > 4 * self.start else (self.start + self.end) / 2


@dataclass(frozen=True)
class Path:
    """The straight path from zeros to the embedded tokens, and the score along it."""

    embedded: Embedded
    score: Score

    def at(self, shares: Tensor) -> Embedded:
        """Return points of the path as rows."""
        return {sequence: vectors * shares.to(vectors)[:, None, None] for sequence, vectors in self.embedded.items()}

    @property
    def rows(self) -> int:
        """Return how many points are computed at once."""
        return max(1, CHUNK // sum(vectors.shape[1] for vectors in self.embedded.values()))

    @torch.no_grad()
    def scores(self, shares: list[float]) -> list[float]:
        """Return the score at some points."""
        found: list[float] = []
        for part in torch.tensor(shares, dtype=torch.float64).split(self.rows):
            with replaced_embeddings(self.at(part)):
                found += self.score(len(part)).tolist()
        return found

    def integral(self, start: float, end: float, order: int) -> Embedded:
        """Return the integral of the gradient over a piece, for each number of each vector."""
        places, weights = (torch.from_numpy(one) for one in np.polynomial.legendre.leggauss(order))
        shares, measures = start + (places + 1) / 2 * (end - start), weights / 2 * (end - start)
        totals = {sequence: torch.zeros_like(vectors[0]) for sequence, vectors in self.embedded.items()}
        for part, measure in zip(shares.split(self.rows), measures.split(self.rows), strict=True):
            for sequence, gradient in gradients_at(self.at(part), self.score).items():
                totals[sequence] += (gradient * measure.to(gradient)[:, None, None]).sum(0)
        return totals

    def pieces(self, edges: list[float], order: int) -> list[Piece]:
        """Return the pieces between edges."""
        scores, found = self.scores(edges), list[Piece]()
        for first, (start, end) in enumerate(itertools.pairwise(edges)):
            integral = self.integral(start, end, order)
            error = abs(total(self.embedded, integral) - (scores[first + 1] - scores[first]))
            found.append(Piece(start, end, integral, error))
        return found


def integrated_gradients(
    embedded: Embedded, score: Score, steps: int
) -> tuple[dict[TokenSequence, Tensor], int, float]:
    """Return the integral of the gradient from zeros to the vectors, times the vectors, summed for each token.

    Also the number of points, and how far the sum is from the difference that it explains (completeness).
    """
    path = Path(embedded, score)
    pieces, points = path.pieces([0.0, 1.0], steps), steps
    while sum(piece.error for piece in pieces) > COMPLETE / 2 and points < MAX_POINTS:
        kept: list[Piece] = []
        for piece in pieces:
            if piece.error <= COMPLETE / 4 / len(pieces) or piece.end < NOTHING:
                kept.append(piece)
                continue
            kept += path.pieces([piece.start, piece.middle, piece.end], ORDER)
            points += 2 * ORDER
        if len(kept) == len(pieces):
            break
        pieces = kept
    whole = {
        sequence: sum((p.integral[sequence] for p in pieces[1:]), pieces[0].integral[sequence]) for sequence in embedded
    }
    first, last = path.scores([0.0, 1.0])
    gap = abs(total(embedded, whole) - (last - first))
    return {sequence: (whole[sequence] * vectors[0]).sum(-1) for sequence, vectors in embedded.items()}, points, gap


def total(embedded: Embedded, integral: Embedded) -> float:
    """Return the sum of integral · vector over all tokens."""
    return sum(
        float((integral[sequence].double() * vectors[0].double()).sum()) for sequence, vectors in embedded.items()
    )


def gradients_at(points: Embedded, score: Score) -> Embedded:
    """Return the gradient of the score by the embedded tokens of each row."""
    leaves = {sequence: vectors.detach().requires_grad_() for sequence, vectors in points.items()}
    rows = len(next(iter(leaves.values())))
    with torch.enable_grad(), replaced_embeddings(leaves):
        total = score(rows).sum()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {sequence: torch.zeros_like(leaf) if grad is None else grad for (sequence, leaf), grad in pairs}
