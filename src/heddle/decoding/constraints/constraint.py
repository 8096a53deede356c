"""Constrained decoding: a constraint tells which tokens may come next in a row, and advances with each."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Mask = Bool[Tensor, " vocab"]
Masks = Bool[Tensor, "rows vocab"]
RowLogits = Float[Tensor, "rows vocab"]


class Constraint(Protocol):
    """The state of one row in what it must obey. It is immutable, so that beams may share it.

    Masks are read-only: several rows may share one.
    """

    def allowed(self) -> Mask | None:
        """Return which ids may come next, stop ids among them where the row may end; None: all."""

    def advance(self, id: int) -> "Constraint":
        """Return the constraint after one more id."""

    @property
    def finished(self) -> bool:
        """Tell whether only a stop id may follow."""


class EndingConstraint(Constraint, Protocol):
    """A constraint that can be combined with another."""

    def advance(self, id: int) -> "EndingConstraint":
        """Return the constraint after one more id."""

    @property
    def may_end(self) -> bool:
        """Tell whether the row may end here."""


class BatchedConstraint(Constraint, ABC):
    """A constraint whose masks are computed faster for several rows at once."""

    @property
    @abstractmethod
    def batch_key(self) -> object:
        """Return the object that all constraints of one batch share."""

    @abstractmethod
    def allowed_batch(self, constraints: Sequence[Any]) -> Masks:
        """Return the masks of constraints that share this one's batch key."""


def allowed_tokens(constraints: Sequence[Constraint | None], vocab: int) -> Masks | None:
    """Return which of `vocab` ids may come next in each row; a row may have no constraint; None: all ids in all rows.

    Ids beyond a constraint's mask (of a model with more ids than its tokenizer) are not allowed in its row.
    """
    found = list(_masks(constraints))
    if not found:
        return None
    if len(found[0][0]) == len(constraints) and found[0][1].shape[1] == vocab:
        return found[0][1]
    masks = torch.ones(len(constraints), vocab, dtype=torch.bool)
    for rows, several in found:
        masks[rows, : several.shape[1]] = several[:, :vocab]
        masks[rows, several.shape[1] :] = False
    return masks


def _masks(constraints: Sequence[Constraint | None]) -> Iterator[tuple[list[int], Masks]]:
    """Yield rows and their masks, batch by batch; rows without restriction are left out."""
    batched = [(row, one, one.batch_key) for row, one in enumerate(constraints) if isinstance(one, BatchedConstraint)]
    for batch in {id(key): key for _, _, key in batched}.values():
        rows = [row for row, _, key in batched if key is batch]
        each = {id(one): one for _, one, key in batched if key is batch}  # rows may share a constraint
        masks = next(iter(each.values())).allowed_batch(list(each.values()))
        index = {number: at for at, number in enumerate(each)}
        yield rows, masks if len(each) == len(rows) else masks[[index[id(constraints[row])] for row in rows]]
    for row, one in enumerate(constraints):
        if one is not None and not isinstance(one, BatchedConstraint) and (mask := one.allowed()) is not None:
            yield [row], mask[None]


def apply_constraints(logits: RowLogits, constraints: Sequence[Constraint | None]) -> RowLogits:
    """Set the logits that a row's constraint forbids to -inf: all of them where nothing is allowed."""
    masks = allowed_tokens(constraints, logits.shape[-1])
    return logits if masks is None else torch.where(masks.to(logits.device), logits, float("-inf"))


@dataclass(frozen=True)
class Conjunction:
    """Two constraints at once. They may allow nothing together where each alone allows something."""

    one: EndingConstraint
    other: EndingConstraint

    def allowed(self) -> Mask | None:
        """Return which ids both allow."""
        one, other = self.one.allowed(), self.other.allowed()
        if one is None or other is None:
            return other if one is None else one
        return one & other

    def advance(self, id: int) -> "Conjunction":
        """Return both after one more id."""
        return Conjunction(self.one.advance(id), self.other.advance(id))

    @property
    def finished(self) -> bool:
        """Tell whether one allows only a stop id, and the other lets the row end."""
        return (self.one.finished or self.other.finished) and self.may_end

    @property
    def may_end(self) -> bool:
        """Tell whether both let the row end here."""
        return self.one.may_end and self.other.may_end
