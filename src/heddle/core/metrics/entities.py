"""Entities: spans that IOB, IOB2 or IOBES tags stand for, and F1 over whole entities, as conlleval and seqeval count.

An entity begins at B or S, at any tag of a type after O, after E or S, and where the type changes; it ends before B, S
and O, after E and S, and where the type changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Entity = tuple[str, int, int]  # type, the first word, and the one after the last


@dataclass(frozen=True)
class EntityScore:
    """Precision, recall and F1 over all entities."""

    precision: float
    recall: float
    f1: float


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence; a tag that has no prefix is a type by itself."""
    found: list[Entity] = []
    start, kind, prefix = 0, "", "O"
    for number, tag in enumerate([*tags, "O"]):
        mark, name = _parts(tag)
        closed = prefix != "O" and (mark in "BSO" or prefix in "ES" or name != kind)
        if closed:
            found.append((kind, start, number))
        if mark != "O" and (closed or prefix == "O"):
            start = number
        prefix, kind = mark, name
    return found


def _parts(tag: str) -> tuple[str, str]:
    """Return the prefix and the type of a tag."""
    if tag in ("O", "", "."):
        return "O", ""
    if len(tag) > 1 and tag[1] == "-" and tag[0] in "BIESLU":
        return {"L": "E", "U": "S"}.get(tag[0], tag[0]), tag[2:]
    return "I", tag


def entity_f1(found: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]) -> EntityScore:
    """Return the scores of the tags of many sentences; an entity counts if its type and both its ends are right."""
    right = predicted = wanted = 0
    for mine, theirs in zip(found, gold, strict=True):
        a, b = set(entities(mine)), set(entities(theirs))
        right, predicted, wanted = right + len(a & b), predicted + len(a), wanted + len(b)
    precision, recall = right / max(1, predicted), right / max(1, wanted)
    return EntityScore(precision, recall, 2 * right / max(1, predicted + wanted))
