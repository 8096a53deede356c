"""Labels: what a document is labelled with: classes, a tag for each word (IOB2), answers in a context, a score."""

import json
from abc import ABC
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

# What is wanted of each document beside its text; `texts`: nothing else.
LabelKind = Literal["classes", "tags", "answers", "score", "target", "texts"]
Span = tuple[int, int]  # the first character, and the one after the last


class Label(ABC):
    """What a document is labelled with."""

    kind: ClassVar[LabelKind]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of labels that it uses."""
        return ()

    @property
    def plain(self) -> str:
        """Return all of it as text, for a digest."""
        return f"{self.kind} {self}"


@dataclass(frozen=True)
class ClassLabels(Label):
    """The classes of a text: one, or any number where the source allows `several`."""

    classes: tuple[str, ...]
    several: bool = False
    kind: ClassVar[LabelKind] = "classes"

    @property
    def names(self) -> tuple[str, ...]:
        return self.classes


@dataclass(frozen=True)
class WordTags(Label):
    """A tag for each word of a text, and where the words are."""

    words: tuple[Span, ...]
    tags: tuple[str, ...]
    kind: ClassVar[LabelKind] = "tags"

    @property
    def names(self) -> tuple[str, ...]:
        return self.tags


@dataclass(frozen=True)
class Answers(Label):
    """Where the second text answers the first, by every annotator; nowhere: it does not."""

    spans: tuple[Span, ...]
    kind: ClassVar[LabelKind] = "answers"


@dataclass(frozen=True)
class Score(Label):
    """How similar two texts are, or any other number."""

    value: float
    kind: ClassVar[LabelKind] = "score"


def tagged_text(words: Sequence[str], tags: Sequence[str]) -> tuple[str, WordTags]:
    """Return words joined by spaces, with their places and their tags."""
    spans, at = [], 0
    for word in words:
        spans.append((at, at + len(word)))
        at += len(word) + 1
    return " ".join(words), WordTags(tuple(spans), tuple(tags))


def as_iob2(tags: Iterable[str]) -> list[str]:
    """Return tags in IOB2, where each entity begins with B-; IOB1 has it only between two of a kind.

    Other tags, such as parts of speech, and those of IOBES, stay.
    """
    found: list[str] = []
    before = ""
    for tag in tags:
        kind = tag[2:] if tag[:2] in ("B-", "I-") else ""
        found.append(f"B-{kind}" if kind and tag[0] == "I" and before != kind else tag)
        before = kind
    return found


def json_label(value: object) -> tuple[str, ...] | None:
    """Return the labels that a JSON value names: a text, a number or a list of these; None: it names none."""
    if isinstance(value, list):
        parts = [json_label(one) for one in value]
        return None if any(part is None or len(part) != 1 for part in parts) else tuple(p[0] for p in parts if p)
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return (json.dumps(value if isinstance(value, bool) else int(value)),)
    return (value.strip(),) if isinstance(value, str) and value.strip() else None
