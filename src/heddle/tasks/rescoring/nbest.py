"""N-best lists: what a recogniser or translator proposes for one input, with its scores, and what would be right."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.core import ConfigError

CANDIDATES = ("candidates", "hyps", "nbest")  # the names that lists go by
REFERENCES = ("reference", "ref")
FIRST = "score"  # the name of a first pass that gives one score
LONGEST = 100_000  # characters of a text: no utterance or sentence comes near


@dataclass(frozen=True)
class NBestCandidate:
    """One proposal: its text, and what others made of it, by name."""

    text: str
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NBest:
    """The proposals for one input; the right answer, the source of a translation, what was said before, if known."""

    candidates: tuple[NBestCandidate, ...]
    id: str | int | None = None
    reference: str | None = None
    source: str | None = None
    context: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the scores that each candidate has."""
        return tuple(self.candidates[0].scores)


def parse_nbest(record: Mapping[str, Any], reference: str | None = None) -> NBest:
    """Read a list from plain data, refusing in one line what is not one; `reference` is the key of the right answer.

    A candidate is a text, or a table with `text`, and `score` or `scores` by name or both.
    """
    key = next((name for name in CANDIDATES if name in record), CANDIDATES[0])
    raw = record.get(key)
    if not isinstance(raw, list) or not raw:
        raise ConfigError(key, want="a list of one candidate or more", got=raw)
    if (beside := record.get("scores")) is not None:
        raise ConfigError("scores", want='each with its own candidate: {"text": ..., "score": ...}', got=beside)
    candidates = tuple(_candidate(each, f"{key}.{i}") for i, each in enumerate(raw))
    for i, candidate in enumerate(candidates):
        if candidate.scores.keys() != candidates[0].scores.keys():
            names = [", ".join(c.scores) or "no scores" for c in (candidates[0], candidate)]
            raise ConfigError(f"{key}.{i}", want=f"{names[0]}, as the first candidate has", got=names[1])
    where = next((name for name in REFERENCES if name in record), REFERENCES[0]) if reference is None else reference
    texts = {name: _text(record.get(name), name) for name in (where, "source", "context")}
    id = record.get("id")
    if id is not None and (not isinstance(id, str | int) or isinstance(id, bool)):
        raise ConfigError("id", want="a text or a whole number", got=id)
    return NBest(candidates, id, texts[where], texts["source"], texts["context"] or "")


def _candidate(raw: object, path: str) -> NBestCandidate:
    if isinstance(raw, str):
        raw = {"text": raw}
    if not isinstance(raw, dict):
        raise ConfigError(path, want="a candidate with a text", got=raw)
    text = _text(raw.get("text"), f"{path}.text")
    if text is None:
        raise ConfigError(f"{path}.text", want="a text", got="nothing")
    scores = {FIRST: raw[FIRST]} if FIRST in raw else {}
    more = raw.get("scores", {})
    if not isinstance(more, dict):
        raise ConfigError(f"{path}.scores", want="a table of numbers by name", got=more)
    scores |= more
    return NBestCandidate(text, {name: _number(value, f"{path}.{name}") for name, value in scores.items()})


def _text(value: object, path: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(path, want="a text", got=value)
    if value is not None and len(value) > LONGEST:
        raise ConfigError(path, want=f"at most {LONGEST:,} characters", got=f"{len(value):,}")
    return value


def _number(value: object, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.inf
        if math.isfinite(number):
            return number
    raise ConfigError(path, want="a finite number", got=value)
