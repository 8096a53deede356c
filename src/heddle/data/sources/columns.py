"""Columns: which fields of a table hold the text, its label and the rest; found by their names where not given."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import ClassVar

from heddle.core import ConfigError, DataError, UsageError, fields_of, replace
from heddle.data.sources.documents import Document, DocumentCounter, SkipReason, SourceConfig, check_text
from heddle.data.sources.labels import ClassLabels, Label, LabelKind, Score, as_iob2, json_label, tagged_text
from heddle.data.sources.records import document_of

Column = int | str
Cell = object  # a text, a number, a list or, of what cannot be used, a SkipReason
LOOKS = 1000  # rows among which the label of the first must occur again, to know that it is no header

# What the columns of each role are called in the data sets in use; the first name of a row is taken before the others.
NAMES: Mapping[str, tuple[str, ...]] = {
    "text": (
        "text",
        "sentence",
        "sentence1",
        "sentence_a",
        "text1",
        "text_a",
        "premise",
        "question",
        "review",
        "source",
        "document",
        "article",
        "dialogue",
    ),
    "pair": ("pair", "sentence2", "sentence_b", "text2", "text_b", "hypothesis", "question2"),
    "label": ("label", "labels", "class", "category", "gold_label", "sentiment", "intent", "topic"),
    "score": ("score", "similarity", "similarity_score", "relatedness_score"),
    "tags": ("tags", "ner_tags", "labels", "ner"),
    "words": ("tokens", "words", "text"),
    "target": ("target", "summary", "translation", "reply", "highlights"),
    "prototype": ("prototype",),
}
# What an objective wants: the roles that it needs, and those that it also uses where there are some.
ROLES: Mapping[LabelKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classes": (("text", "label"), ("pair",)),
    "score": (("text", "pair", "score"), ()),
    "tags": (("text", "tags"), ()),
    "target": (("text", "target"), ("prototype",)),
    "texts": (("text",), ("pair",)),
}


@dataclass(frozen=True)
class Columns:
    """The columns of each role; None: there is none."""

    text: Column
    target: Column | None = None
    pair: Column | None = None
    label: Column | None = None
    score: Column | None = None
    tags: Column | None = None
    group: Column | None = None
    prototype: Column | None = None

    def __post_init__(self) -> None:
        if self.prototype is not None and (self.target is None or self.labelled):
            raise ConfigError("prototype", want="null, because the documents are no pairs", got=self.prototype)

    @cached_property
    def roles(self) -> dict[str, Column]:
        """Return the columns that there are, by role."""
        return {role: column for role, column in asdict(self).items() if column is not None}

    @property
    def wanted(self) -> list[Column]:
        """Return the columns to read, in the order of their roles."""
        return list(self.roles.values())

    @property
    def labelled(self) -> bool:
        """Say whether documents have labels, or two texts that are read together."""
        return bool(self.roles.keys() & {"label", "score", "tags", "pair"})

    def document(
        self, cells: Sequence[Cell], origin: str, counter: DocumentCounter, separator: str | None = None
    ) -> Iterator[Document]:
        """Yield the document that a row's cells make; they are in the order of `wanted`.

        A text that cannot be used is skipped and counted. A labelled row in which something is missing is an error, for
        it would be learnt from wrongly, or left out unseen.
        """
        found = dict(zip(self.roles, cells, strict=False))
        if len(cells) < len(self.roles):  # a row that could not be read, or a text instead of an object
            found = dict.fromkeys(
                self.roles, cells[0] if isinstance(cells[0], SkipReason) else SkipReason.MISSING_FIELD
            )
            found["text"] = cells[0]
        group = self._group(found.pop("group", None), origin)
        prototype = found.pop("prototype", None)
        if not self.labelled:
            values = [c if isinstance(c, str | SkipReason) else SkipReason.MISSING_FIELD for c in found.values()]
            documents = document_of(values, origin, counter, group)
            yield from documents if self.prototype is None else self._edited(documents, prototype, origin)
            return
        row = _LabelledRow(self, found, origin)
        reason = row.unusable()
        if reason is not None:
            counter.skip(reason, origin)
            return
        yield row.document(group, separator)

    def _edited(self, documents: Iterator[Document], cell: Cell, origin: str) -> Iterator[Document]:
        """Yield pairs with the prototype in a cell, which may be empty."""
        for document in documents:
            text = "" if cell is SkipReason.EMPTY else cell  # of a table
            if isinstance(text, SkipReason) or not isinstance(text, str):
                raise DataError(f"{origin}: want text in column {self.prototype!r}, found {_shown(cell)}")
            yield dataclasses.replace(document, prototype=text)

    def _group(self, cell: Cell, origin: str) -> str:
        if self.group is None:
            return ""
        found = None if isinstance(cell, SkipReason) else json_label(cell)
        if found is None or len(found) != 1:
            raise DataError(f"{origin}: want the name of a group in column {self.group!r}, found {_shown(cell)}")
        return found[0]


@dataclass(frozen=True)
class _LabelledRow:
    """The cells of one labelled row, by role."""

    columns: Columns
    cells: Mapping[str, Cell]
    origin: str

    def unusable(self) -> SkipReason | None:
        """Return why a text cannot be read, such as bytes that are not UTF-8; refuse a row without one."""
        for role in ("text", "pair"):
            cell = self.cells.get(role)
            reason = cell if isinstance(cell, SkipReason) else check_text(cell) if isinstance(cell, str) else None
            if reason in (SkipReason.EMPTY, SkipReason.MISSING_FIELD):
                found = "an empty field" if reason is SkipReason.EMPTY else "no such field"
                raise DataError(f"{self.origin}: want text in column {self.columns.roles[role]!r}, found {found}")
            if reason is not None:
                return reason
        return None

    def document(self, group: str, separator: str | None) -> Document:
        if "tags" in self.cells:
            text, label = self._tagged()
            return Document(text, self.origin, group, label=label)
        text, pair = self._text("text"), self._text("pair") if "pair" in self.cells else None
        found: Label | None = None
        if "score" in self.cells:
            found = Score(self._number())
        elif "label" in self.cells:
            found = self._classes(separator)
        return Document(text, self.origin, group, pair=pair, label=found)

    def _text(self, role: str) -> str:
        cell = self.cells[role]
        if not isinstance(cell, str):
            raise DataError(f"{self.origin}: want text in column {self.columns.roles[role]!r}, found {_shown(cell)}")
        return cell

    def _classes(self, separator: str | None) -> ClassLabels:
        cell, column = self.cells["label"], self.columns.label
        several = isinstance(cell, list) or separator is not None
        if isinstance(cell, str) and separator is not None:
            cell = [part for part in cell.split(separator) if part.strip()]
        found = None if isinstance(cell, SkipReason) else json_label(cell)
        if found is None:
            raise DataError(f"{self.origin}: want a label in column {column!r}, found {_shown(cell)}")
        return ClassLabels(tuple(sorted(set(found))), several)

    def _number(self) -> float:
        cell = self.cells["score"]
        try:
            value = float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{self.origin}: want a number in column {self.columns.score!r}, found {_shown(cell)}")
        return value

    def _tagged(self) -> tuple[str, Label]:
        words, tags = self.cells["text"], json_label(self.cells["tags"])
        words = words.split() if isinstance(words, str) else words
        good = isinstance(words, list) and words and all(isinstance(w, str) and w.strip() for w in words)
        if not good or not isinstance(words, list):
            raise DataError(
                f"{self.origin}: want words in column {self.columns.text!r}, found {_shown(self.cells['text'])}"
            )
        if tags is None or len(tags) != len(words):
            found = _shown(self.cells["tags"]) if tags is None else f"{len(tags)} tags"
            raise DataError(f"{self.origin}: want a tag for each of {len(words)} words, found {found}")
        return tagged_text(words, as_iob2(tags))


def _shown(cell: Cell) -> str:
    """Describe what a field holds instead."""
    if isinstance(cell, SkipReason):
        return "no such field" if cell is SkipReason.MISSING_FIELD else cell.words
    return (
        "an empty field" if cell in ("", None, []) or (isinstance(cell, str) and not cell.strip()) else repr(cell)[:60]
    )


# --- columns that are not named ---------------------------------------------------------------------------------------


class ColumnSource(SourceConfig, ABC):
    """A source of rows with columns; `separator` parts several labels in one field."""

    later_fields: ClassVar[tuple[str, ...]] = (
        *("encoding", "pair", "label", "score", "group", "separator", "tags", "prototype"),
    )
    default_text: ClassVar[Column] = "text"  # what `text` is where nobody has named it

    path: str
    text: Column
    target: Column | None
    pair: Column | None
    label: Column | None
    score: Column | None
    group: Column | None
    prototype: Column | None
    separator: str | None
    encoding: str | None

    @property
    def columns(self) -> Columns:
        """Return the columns by role."""
        given = fields_of(self)
        return Columns(**{field.name: given[field.name] for field in fields(Columns) if field.name in given})

    @property
    def labelled(self) -> bool:
        """Tell whether its documents have labels, or second texts."""
        return self.columns.labelled

    @property
    def edits(self) -> bool:
        """Tell whether its documents are pairs with prototypes, for an editor."""
        return self.prototype is not None

    @abstractmethod
    def first_rows(self, most: int) -> list[list[str]]:
        """Return the first rows of the first file, as text: the names of columns come first, if there are any."""

    def usual_columns(self, role: str) -> list[str]:
        """Return the columns that have one of the usual names of a role."""
        return [name for row in self.first_rows(1) for name in row if name.lower() in NAMES[role]]

    def resolve(self, wanted: LabelKind | None) -> SourceConfig:
        if wanted is None or wanted not in ROLES:
            return self
        needed, more = ROLES[wanted]
        own = fields_of(self)
        if wanted == "target" and own["target"] is not None:
            more = ()  # who names the columns names them all: a prototype is not read unasked
        if absent := [role for role in needed if role not in own]:
            raise UsageError(f"{self.path}: {self.kind} has no lists, so no {absent[0]}; want JSON lines or CoNLL")
        given = {role: own[role] for role in (*needed, *more) if own[role] is not None}
        by_number = any(isinstance(column, int) for role, column in given.items() if role != "text")
        if given.get("text") == self.default_text and not by_number:
            del given["text"]
        if all(role in given for role in needed):
            return self
        return replace(self, **self._found(wanted, (needed, more), given))

    def _found(
        self, wanted: LabelKind, roles: tuple[tuple[str, ...], tuple[str, ...]], given: Mapping[str, Column]
    ) -> dict[str, Column]:
        """Return the columns of the roles that are not given, or refuse with the columns that there are."""
        rows = self.first_rows(LOOKS)
        header = rows[0] if rows else []
        needed, more = roles
        found = dict(given)
        for role in (*needed, *more):
            names = NAMES["words" if wanted == "tags" and role == "text" else role]
            column = _named(header, names, set(found.values()))
            if role not in found and column is not None:
                found[role] = column
        missing = [role for role in needed if role not in found]
        left = [name for name in header if name not in found.values()]
        if len(header) == 2 and len(missing) == 1 and len(found) == 1 and len(left) == 1:
            found[missing[0]] = left[0]
        elif len(missing) == len(needed) and _headless(rows, wanted):
            found |= {role: number for number, role in enumerate(needed)}
        if missing := [role for role in needed if role not in found]:
            words = " ".join(f"data.sources.0.{role}=NAME" for role in missing)
            listed = ", ".join(name[:30] for name in header[:12]) or "none"
            raise DataError(f"{self.path}: which column holds the {missing[0]}? It has {listed}; name it: {words}")
        return found


def _named(header: Sequence[str], names: Sequence[str], taken: set[Column]) -> str | None:
    """Return the only column with one of these names, or the first name's among several; None: it is not clear."""
    found = [name for name in header if name.lower() in names and name not in taken]
    plain = [name for name in found if name.lower() == names[0]]
    return plain[0] if plain else found[0] if len(found) == 1 else None


def _headless(rows: Sequence[Sequence[str]], wanted: LabelKind) -> bool:
    """Tell whether rows of two columns, a text and what is wanted of it, begin without a header."""
    if len(rows) < 2 or any(len(row) != 2 for row in rows):
        return False
    return wanted == "target" or (wanted == "classes" and any(row[1].strip() == rows[0][1].strip() for row in rows[1:]))
