"""Guides: what a row must obey while it is written; a guide says which ids may come next, and moves on with each."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Mask = Bool[Tensor, " vocab"]
Masks = Bool[Tensor, "rows vocab"]
Logits = Float[Tensor, "rows vocab"]


class Constraint(Protocol):
    """Where one row stands in what it must obey; never changed, so that beams may share it.

    A mask that a guide gave is read only: another row may be given the same one.
    """

    def allowed(self) -> Mask | None:
        """Tell which ids may come next, the ids to stop at included where the row may end; None: any."""

    def take(self, id: int) -> "Constraint":
        """Return where the row stands after one more id."""

    @property
    def finished(self) -> bool:
        """Tell whether nothing may follow but a stop."""


class Ending(Constraint, Protocol):
    """A guide that can be held together with others."""

    def take(self, id: int) -> "Ending":
        """Return where the row stands after one more id."""

    @property
    def may_end(self) -> bool:
        """Tell whether the row may end here."""


class Together(Constraint, ABC):
    """A guide of which several rows are asked at once, for less than each alone."""

    @property
    @abstractmethod
    def kin(self) -> object:
        """Name those that may be asked together: one object for all of them."""

    @abstractmethod
    def together(self, constraints: Sequence[Any]) -> Masks:
        """Return what `allowed` of each would say, given guides of this one's kin."""


def allowed_tokens(constraints: Sequence[Constraint | None], vocab: int) -> Masks | None:
    """Tell which of `vocab` ids may come next in each row, of which some may have no guide; None: any in all rows.

    Ids that a guide does not know (of a model with more ids than its tokenizer) are not allowed in its row.
    """
    found = list(_asked(constraints))
    if not found:
        return None
    if len(found[0][0]) == len(constraints) and found[0][1].shape[1] == vocab:
        return found[0][1]
    masks = torch.ones(len(constraints), vocab, dtype=torch.bool)
    for rows, several in found:
        masks[rows, : several.shape[1]] = several[:, :vocab]
        masks[rows, several.shape[1] :] = False
    return masks


def _asked(constraints: Sequence[Constraint | None]) -> Iterator[tuple[list[int], Masks]]:
    """Yield rows and their masks, those of one kin at once; rows in which anything may come are left out."""
    asked = [
        (row, constraint, constraint.kin)
        for row, constraint in enumerate(constraints)
        if isinstance(constraint, Together)
    ]
    for first in {id(kin): kin for _, _, kin in asked}.values():
        rows = [row for row, _, kin in asked if kin is first]
        each = {
            id(constraint): constraint for _, constraint, kin in asked if kin is first
        }  # one may stand in several rows
        masks = next(iter(each.values())).together(list(each.values()))
        place = {key: at for at, key in enumerate(each)}
        yield rows, masks if len(each) == len(rows) else masks[[place[id(constraints[row])] for row in rows]]
    for row, constraint in enumerate(constraints):
        if (
            constraint is not None
            and not isinstance(constraint, Together)
            and (mask := constraint.allowed()) is not None
        ):
            yield [row], mask[None]


def apply_constraints(scores: Logits, constraints: Sequence[Constraint | None]) -> Logits:
    """Return scores in which what a row's guide forbids is minus infinity: a whole row where nothing is allowed."""
    masks = allowed_tokens(constraints, scores.shape[-1])
    return scores if masks is None else torch.where(masks.to(scores.device), scores, float("-inf"))


@dataclass(frozen=True)
class Both:
    """Two guides at once: what both allow. They may allow nothing together where each alone allows something."""

    one: Ending
    other: Ending

    def allowed(self) -> Mask | None:
        """Tell which ids both allow."""
        one, other = self.one.allowed(), self.other.allowed()
        if one is None or other is None:
            return other if one is None else one
        return one & other

    def take(self, id: int) -> "Both":
        """Return where the row stands in both."""
        return Both(self.one.take(id), self.other.take(id))

    @property
    def finished(self) -> bool:
        """Tell whether one lets nothing follow but a stop, and the other agrees to the end."""
        return (self.one.finished or self.other.finished) and self.may_end

    @property
    def may_end(self) -> bool:
        """Tell whether both let the row end here."""
        return self.one.may_end and self.other.may_end
