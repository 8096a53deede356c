"""Candidates: what the live sequences of a search could become with one more token, best first.

Live sequences that compete with each other stand side by side in a contest. It gives its best candidates at once, and
the others only to a search that asks on, because too many of the best end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.decoding.sampling import NEG_INF, Logits, check_logits

CHUNK = 1024  # candidates that are brought from the device at once, beyond the first

Totals = Float[Tensor, " rows"]


class Candidate(NamedTuple):
    """One more token for a live sequence."""

    total: float  # step scores of the whole sequence, by which it competes
    logprob: float  # of the whole sequence, by the model's own odds
    parent: int  # which sequence of the contest it continues
    id: int


@dataclass(frozen=True)
class Gains:
    """What each id adds to each live sequence, and what the sequences have so far."""

    judged: Logits  # by which candidates compete: penalties and guides have had their say
    logprobs: Logits  # by the model's own odds
    totals: Totals  # float64, as are all sums
    before: Totals  # log-probabilities

    def ranked(self, first: int, width: int, fines: Mapping[int, float]) -> Iterator[Candidate]:
        """Yield every candidate of so many rows in order, where ids in `fines` rank lower by so much."""
        rows = slice(first, first + width)
        worth = self.judged[rows].double() + self.totals[rows, None]
        free = worth.clone()
        for id, fine in fines.items():
            worth[:, id] -= fine
        vocab = worth.shape[1]
        for order in worth.flatten().argsort(descending=True, stable=True).split(CHUNK):
            parents, ids = order // vocab, order % vocab
            true = self.logprobs[rows][parents, ids].double() + self.before[rows][parents]
            columns = torch.stack((free[parents, ids], true, parents, ids), -1)
            for candidate in _listed(columns):
                if candidate.total == NEG_INF:
                    return
                yield candidate


@dataclass(frozen=True)
class Contest:
    """Live sequences that compete with each other, and the best that can come of them."""

    gains: Gains
    row: int  # of the first sequence
    width: int  # how many there are
    best: list[Candidate]  # in order; with any fines, the first `exact` are among them
    exact: int  # of these, as many as are certain to be the best of all

    def ranked(self, fines: Mapping[int, float]) -> Iterator[Candidate]:
        """Yield candidates in order, where ids in `fines` rank lower by so much, though they keep their totals."""
        best = self.best
        if fines:
            best = sorted(best, key=lambda c: fines.get(c.id, 0.0) - c.total)
        yield from best[: self.exact]
        if len(best) < self.exact:
            return
        given = {(c.parent, c.id) for c in best[: self.exact]}
        yield from (c for c in self.gains.ranked(self.row, self.width, fines) if (c.parent, c.id) not in given)


def contests_of(gains: Gains, widths: Sequence[int], exact: int, spare: int) -> list[Contest]:
    """Return a contest for each width, with `exact` candidates at once even where `spare` ids are fined."""
    best, ids = gains.judged.topk(min(exact + spare, gains.judged.shape[-1]))
    check_logits(best)
    totals = _beside(best.double() + gains.totals[:, None], widths, NEG_INF)
    logprobs = _beside(gains.logprobs.gather(-1, ids).double() + gains.before[:, None], widths, 0.0)
    totals, order = totals.sort(descending=True, stable=True)
    if not spare:
        totals, order = totals[:, :exact], order[:, :exact]
    names = _beside(ids, widths, 0).gather(1, order)
    columns = torch.stack((totals, logprobs.gather(1, order), order // ids.shape[-1], names), -1).cpu()  # in one go
    return [
        Contest(gains, row, width, [c for c in _listed(column) if c.total > NEG_INF], exact)
        for row, width, column in zip(accumulate(widths, initial=0), widths, columns, strict=False)
    ]


def _beside(rows: Tensor, widths: Sequence[int], missing: float) -> Tensor:
    """Return one row for each width, in which so many of the given rows stand side by side; shorter ones are filled."""
    widest = max(widths)
    if min(widths) < widest:
        places = [line * widest + i for line, width in enumerate(widths) for i in range(width)]
        table = rows.new_full((len(widths) * widest, rows.shape[-1]), missing)
        table[torch.tensor(places, device=rows.device)] = rows
        rows = table
    return rows.view(len(widths), widest * rows.shape[-1])


def _listed(columns: Float[Tensor, "candidates 4"]) -> list[Candidate]:
    return [Candidate(total, logprob, int(parent), int(id)) for total, logprob, parent, id in columns.tolist()]
