"""Entries of an index: pairs of a text and its target, with the groups that they belong to; and queries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from heddle.core import DataError, UsageError, replace
from heddle.data.sources import CsvSource, Document, JsonlSource, LabelKind, TsvSource, source_for
from heddle.tasks.evaluation import read_documents

Groups = tuple[str, ...]  # one for each group column, in their order
Table = CsvSource | JsonlSource | TsvSource


@dataclass(frozen=True)
class Query:
    """A text whose neighbours are wanted; no neighbour comes from one of its groups."""

    text: str
    groups: Groups = ()
    target: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class Entry:
    """A pair that can be retrieved by its text; `origin` says where it stands: FILE:ROW."""

    text: str
    target: str
    groups: Groups = ()
    origin: str = ""

    @property
    def query(self) -> Query:
        """Return the query for neighbours of this very entry."""
        return Query(self.text, self.groups, self.target, self.origin)


@dataclass(frozen=True)
class EntryColumns:
    """Names of the columns of a table; None: found by their usual names."""

    text: str | None = None
    target: str | None = None
    groups: tuple[str, ...] = ()


def normalized(text: str) -> str:
    """Return a text by which equal contexts are known: in one case, with single spaces."""
    return " ".join(text.casefold().split())


def read_entries(path: str, columns: EntryColumns) -> list[Entry]:
    """Return the pairs of a table; a row without a text, a target or a group is refused."""
    source = _table(path, columns, "target")
    groups = _groups(source, path, columns.groups)
    documents = read_documents(source, path)
    return [Entry(one.text, one.target or "", own, _origin(one)) for one, own in zip(documents, groups, strict=False)]


def read_queries(path: str, columns: EntryColumns) -> tuple[list[Query], tuple[str, ...]]:
    """Return the queries of a table, with their targets if it has any, and the group columns that it lacks.

    Without all of the group columns, queries have no groups.
    """
    plain = _table(path, columns, "texts")
    header = next(iter(plain.first_rows(1)), [])
    source = _table(path, columns, "target") if columns.target or plain.usual_columns("target") else plain
    missing = tuple(name for name in columns.groups if name not in header)
    groups = _groups(source, path, () if missing else columns.groups)
    documents = read_documents(source, path)
    found = [Query(one.text, own, one.target, _origin(one)) for one, own in zip(documents, groups, strict=False)]
    return found, missing


def _table(path: str, columns: EntryColumns, wanted: LabelKind) -> Table:
    """Return the source of a table, with the columns of pairs, or of texts alone."""
    found = source_for(path)
    if not isinstance(found, CsvSource | JsonlSource | TsvSource):
        raise UsageError(f"{path}: want pairs as JSON lines, CSV or TSV, got {found.kind}")
    given = {"text": columns.text, "target": columns.target if wanted == "target" else None}
    named = replace(found, **{role: column for role, column in given.items() if column is not None})
    resolved = replace(named.resolve(wanted), prototype=None, pair=None)
    assert isinstance(resolved, CsvSource | JsonlSource | TsvSource)
    if wanted == "target" and resolved.target in columns.groups:
        raise DataError(
            f"{path}: which column holds the target? {resolved.target!r} holds groups; name it: --target NAME"
        )
    return resolved


def _groups(source: Table, path: str, names: Sequence[str]) -> Iterator[Groups]:
    """Yield the groups of each row; without names, empty ones."""
    columns = [[one.group for one in read_documents(replace(source, group=name), path)] for name in names]
    return zip(*columns, strict=True) if columns else repeat(())


def _origin(document: Document) -> str:
    """Return where a document stands, without the folder of its file."""
    return document.origin.rpartition("/")[2]
