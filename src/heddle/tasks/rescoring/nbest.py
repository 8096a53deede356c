"""N-best lists: the candidates of a speech recognizer or a translator for one input, with scores and a reference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.core import ConfigError

CANDIDATES = ("candidates", "hyps", "nbest")  # accepted keys of the list
REFERENCES = ("reference", "ref")
FIRST_PASS = "score"  # the name of the only score of a first pass
MAX_CHARACTERS = 100_000  # characters of a text


@dataclass(frozen=True)
class NBestCandidate:
    """One candidate: its text, and its scores by name."""

    text: str
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NBest:
    """The candidates for one input; optionally the reference, the source of a translation and the context before."""

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
    """Read a list from plain data, or refuse it; `reference` is the key of the reference.

    A candidate is a text, or a table with `text` and optionally `score`, or `scores` by name, or both.
    """
    key = next((name for name in CANDIDATES if name in record), CANDIDATES[0])
    raw = record.get(key)
    if not isinstance(raw, list) or not raw:
        raise ConfigError(key, want="a list of one candidate or more", got=raw)
    if (misplaced := record.get("scores")) is not None:
        raise ConfigError("scores", want='each with its own candidate: {"text": ..., "score": ...}', got=misplaced)
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
    scores = {FIRST_PASS: raw[FIRST_PASS]} if FIRST_PASS in raw else {}
    more = raw.get("scores", {})
    if not isinstance(more, dict):
        raise ConfigError(f"{path}.scores", want="an object of numbers by name", got=more)
    scores |= more
    return NBestCandidate(text, {name: _number(value, f"{path}.{name}") for name, value in scores.items()})


def _text(value: object, path: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(path, want="a text", got=value)
    if value is not None and len(value) > MAX_CHARACTERS:
        raise ConfigError(path, want=f"at most {MAX_CHARACTERS:,} characters", got=f"{len(value):,}")
    return value


def _number(value: object, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 else math.inf
        if math.isfinite(number):
            return number
    raise ConfigError(path, want="a finite number", got=value)
