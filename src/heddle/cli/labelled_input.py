"""Inputs of classify, tag, answer, embed and fill: lines of text, JSON lines, and tables or CoNLL with their labels."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.cli.line_input import LineErrors, is_interactive, valid_lines, valid_records
from heddle.cli.progress import progress
from heddle.cli.terminal import write

if TYPE_CHECKING:
    from heddle.data.sources import Document, Label, LabelKind, SourceConfig

CHARACTERS, LINES = 1 << 16, 512  # per batch; those of similar length are then read together
TABLES = (".csv", ".tsv")
JSON = (".jsonl", ".ndjson")
TAGGED = (".conll", ".iob", ".iob2", ".bio")

Result = TypeVar("Result")


@dataclass(frozen=True)
class TextInput:
    """One input: its line, its text, perhaps a second one, and perhaps its words."""

    line: int
    text: str
    pair: str | None = None
    words: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Count its characters."""
        return len(self.text) + len(self.pair or "")


@contextmanager
def text_inputs(
    file: str, line_errors: LineErrors, names: tuple[str, str] = ("text", "pair")
) -> Iterator[Iterator[TextInput]]:
    """Open the inputs of a file or a pipe, by its ending: lines of text, JSON lines, a table, or CoNLL.

    `names` are the fields of a JSON line that hold the text and the second one. Blank lines are skipped.
    """
    suffix = Path(file).suffix.lower()
    if suffix in TABLES:
        yield _table(file)
    elif suffix in TAGGED:
        documents = labelled_documents(file, "tags")
        yield (TextInput(n, one.text, words=tuple(one.text.split(" "))) for n, one in enumerate(documents, 1))
    elif suffix in JSON:
        with record_inputs(file, line_errors, names) as records:
            yield records
    else:
        with valid_lines(file, line_errors) as lines:
            yield (TextInput(line.number, line.text) for line in lines if line.text.strip())


@contextmanager
def record_inputs(file: str, line_errors: LineErrors, names: tuple[str, str]) -> Iterator[Iterator[TextInput]]:
    """Open the inputs of JSON lines, in a file or a pipe."""
    with valid_records(file, line_errors) as records:
        yield _recorded(records, names, file, line_errors)


def _recorded(
    records: Iterator[tuple[int, dict[str, Any]]], names: tuple[str, str], file: str, line_errors: LineErrors
) -> Iterator[TextInput]:
    from heddle.core import UsageError

    for number, record in records:
        with line_errors.at(file, number):
            text, pair, words = record.get(names[0]), record.get(names[1]), record.get("tokens")
            if isinstance(words, list) and all(isinstance(word, str) for word in words) and names[0] not in record:
                yield TextInput(number, " ".join(words), words=tuple(words))
                continue
            if not isinstance(text, str) or not isinstance(pair, str | None):
                raise UsageError(f"want a text in {names[0]!r}, found the fields {', '.join(record)[:120] or 'none'}")
            yield TextInput(number, text, pair)


def _table(file: str) -> Iterator[TextInput]:
    """Yield the texts of a table; its other columns, such as labels, only help to find those of the texts."""
    from heddle.core import replace

    source = table_source(file, ("classes", "score", "texts"))
    plain = {name: None for name in ("label", "score") if name in vars(source)}
    for number, document in enumerate(_every(replace(source, **plain), file), 1):
        yield TextInput(number, document.text, document.pair)


def table_source(file: str, kinds: "Sequence[LabelKind]") -> "SourceConfig":
    """Return a source with the columns of the first kind of labels for which they are found."""
    from heddle.core import DataError
    from heddle.data.sources import source_for

    for kind in kinds[:-1]:
        with contextlib.suppress(DataError):
            return source_for(file).resolve(kind)
    return source_for(file).resolve(kinds[-1])


def labelled_documents(file: str, wanted: "LabelKind") -> "Iterator[Document]":
    """Yield the labelled documents of a file."""
    return _every(table_source(file, (wanted,)), file)


def _every(source: "SourceConfig", file: str) -> "Iterator[Document]":
    from heddle.tasks.evaluation import read_documents

    return read_documents(source, file)


def run_batches(
    inputs: Iterator[TextInput],
    file: str,
    line_errors: LineErrors,
    work: Callable[[list[TextInput]], Sequence[Result]],
    name: str,
) -> Iterator[tuple[TextInput, Result]]:
    """Yield each input that could be used with its result, in order; batches are bounded by characters."""
    with progress(name, file) as advance:
        for batch in _batches(inputs, 1 if is_interactive(file) else LINES):
            numbered = [(one.line, one) for one in batch]
            found = dict(line_errors.run_batch(file, numbered, work))
            for one in batch:
                advance()
                if one.line in found:
                    yield one, found[one.line]


def _batches(inputs: Iterator[TextInput], most: int) -> Iterator[list[TextInput]]:
    batch: list[TextInput] = []
    size = 0
    for one in inputs:
        if batch and size + one.size > CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size
        if len(batch) >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_record(record: dict[str, Any]) -> None:
    """Write a JSON line."""
    write(json.dumps(record, ensure_ascii=False))


def table_texts(file: str) -> dict[int, str]:
    """Return the targets of a table or of JSON lines, such as summaries, by line."""
    documents = _every(table_source(file, ("target",)), file)
    return {number: one.target or "" for number, one in enumerate(documents, 1)}


# --- references -------------------------------------------------------------------------------------------------------


def reference_labels(file: Path) -> dict[int, tuple[str, ...]]:
    """Return the right labels by line: those of a table or of JSON lines, or each line of a text."""
    from heddle.cli.line_input import read_lines
    from heddle.core import DataError

    if file.suffix.lower() in (*TABLES, *JSON, ".json"):
        documents = _every(table_source(str(file), ("score", "classes")), str(file))
        return {number: _names(one.label) for number, one in enumerate(documents, 1)}
    with read_lines(str(file)) as lines:
        found = {number: (line.strip(),) for number, line in enumerate(lines, 1)}
    if not any(any(names) for names in found.values()):
        raise DataError(f"{file}: want a label in each line, found none")
    return {number: names for number, names in found.items() if any(names)}


def _names(label: "Label | None") -> tuple[str, ...]:
    from heddle.data.sources import Score

    if isinstance(label, Score):
        return (repr(label.value),)
    return () if label is None else label.names


def pair_up(found: dict[int, Any], gold: dict[int, Any], file: Path) -> tuple[list[Any], list[Any]]:
    """Return predictions and right ones of the same lines; refuse a reference that lacks some."""
    from heddle.core import DataError

    missing = sorted(found.keys() - gold.keys())
    if missing:
        raise DataError(f"{file}: want a label for each line that was read, found none for line {missing[0]}")
    lines = sorted(found)
    return [found[line] for line in lines], [gold[line] for line in lines]
