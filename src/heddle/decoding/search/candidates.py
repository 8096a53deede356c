"""Beam search candidates: the live sequences of a group, each with one more token, best first.

A pool ranks the candidates of one group. The best ones are at hand; the others are sorted only if a search needs them,
because too many of the best ones end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.decoding.sampling import NEG_INF, Logits, check_logits

CHUNK = 1024  # candidates copied from the device at once, beyond the first

RowSums = Float[Tensor, " rows"]


class BeamCandidate(NamedTuple):
    """One more token for a live sequence."""

    total: float  # sum of the step scores, by which it is ranked
    logprob: float  # of the whole sequence, by the model itself
    parent: int  # which sequence of the pool it continues
    id: int


@dataclass(frozen=True)
class StepScores:
    """The score that each id adds to each live sequence, and the sums of the sequences so far."""

    processed: Logits  # log-probabilities after penalties and constraints, by which candidates are ranked
    logprobs: Logits  # by the model itself
    totals: RowSums  # float64, as are all sums
    before: RowSums  # log-probabilities of the sequences

    def ranked(self, first: int, width: int, penalties: Mapping[int, float]) -> Iterator[BeamCandidate]:
        """Yield every candidate of `width` rows in order; ids in `penalties` rank lower by that much."""
        rows = slice(first, first + width)
        ranking = self.processed[rows].double() + self.totals[rows, None]
        totals = ranking.clone()
        for id, penalty in penalties.items():
            ranking[:, id] -= penalty
        vocab = ranking.shape[1]
        for order in ranking.flatten().argsort(descending=True, stable=True).split(CHUNK):
            parents, ids = order // vocab, order % vocab
            logprobs = self.logprobs[rows][parents, ids].double() + self.before[rows][parents]
            columns = torch.stack((totals[parents, ids], logprobs, parents, ids), -1)
            for candidate in _to_candidates(columns):
                if candidate.total == NEG_INF:
                    return
                yield candidate


@dataclass(frozen=True)
class CandidatePool:
    """Live sequences that compete with each other, and their best candidates."""

    scores: StepScores
    row: int  # of the first sequence
    width: int  # number of sequences
    best: list[BeamCandidate]  # in order; with any penalties, the first `exact` are among them
    exact: int  # how many of these are certain to be the best of all

    def ranked(self, penalties: Mapping[int, float]) -> Iterator[BeamCandidate]:
        """Yield candidates in order; ids in `penalties` rank lower by that much, but keep their totals."""
        best = self.best
        if penalties:
            best = sorted(best, key=lambda c: penalties.get(c.id, 0.0) - c.total)
        yield from best[: self.exact]
        if len(best) < self.exact:
            return
        yielded = {(c.parent, c.id) for c in best[: self.exact]}
        yield from (c for c in self.scores.ranked(self.row, self.width, penalties) if (c.parent, c.id) not in yielded)


def candidate_pools(scores: StepScores, widths: Sequence[int], exact: int, extra: int) -> list[CandidatePool]:
    """Return a pool for each width, with `exact` candidates at hand even where `extra` ids are penalized."""
    best, ids = scores.processed.topk(min(exact + extra, scores.processed.shape[-1]))
    check_logits(best)
    totals = _side_by_side(best.double() + scores.totals[:, None], widths, NEG_INF)
    logprobs = _side_by_side(scores.logprobs.gather(-1, ids).double() + scores.before[:, None], widths, 0.0)
    totals, order = totals.sort(descending=True, stable=True)
    if not extra:
        totals, order = totals[:, :exact], order[:, :exact]
    token_ids = _side_by_side(ids, widths, 0).gather(1, order)
    columns = torch.stack((totals, logprobs.gather(1, order), order // ids.shape[-1], token_ids), -1).cpu()  # in one go
    return [
        CandidatePool(scores, row, width, [c for c in _to_candidates(column) if c.total > NEG_INF], exact)
        for row, width, column in zip(accumulate(widths, initial=0), widths, columns, strict=False)
    ]


def _side_by_side(rows: Tensor, widths: Sequence[int], missing: float) -> Tensor:
    """Return one row for each width, in which that many of the rows stand side by side; shorter ones are padded."""
    widest = max(widths)
    if min(widths) < widest:
        places = [pool * widest + i for pool, width in enumerate(widths) for i in range(width)]
        table = rows.new_full((len(widths) * widest, rows.shape[-1]), missing)
        table[torch.tensor(places, device=rows.device)] = rows
        rows = table
    return rows.view(len(widths), widest * rows.shape[-1])


def _to_candidates(columns: Float[Tensor, "candidates 4"]) -> list[BeamCandidate]:
    return [BeamCandidate(total, logprob, int(parent), int(id)) for total, logprob, parent, id in columns.tolist()]
