"""Records: the lines, paragraphs, JSON array elements and CSV rows of a stream, each bounded, and their fields."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Literal

from heddle.core import DataError, hint, within
from heddle.core.system import is_encoding
from heddle.data.files import UnreadableFile, file_extension, open_text, printable_path
from heddle.data.sources.documents import Document, DocumentCounter, SkipReason, check_text, read_bytes

BLOCK = 1 << 16  # bytes of a JSON array read at a time
MARKS = re.compile(rb'[\[\]{}",]')
MARKS_IN_STRING = re.compile(rb'["\\]')
HEADER = 1 << 16  # bytes of a header's line
RecordUnit = Literal["file", "paragraph", "line"]
Encoding = Annotated[str, within("one that Python knows, such as latin-1 or utf-16", is_encoding)]
Value = str | SkipReason
JsonRow = dict[str, object] | str


# --- records of a stream ----------------------------------------------------------------------------------------------


def text_records(stream: BufferedReader, split: RecordUnit, longest: int) -> Iterator[tuple[int, bytes]]:
    """Return each document's bytes with its number: of the piece in the file, or of the line where it starts."""
    if split == "file":
        return enumerate(_blocks(stream, longest), 1)
    return _lines(stream, longest) if split == "line" else _paragraphs(stream, longest)


def _blocks(stream: BufferedReader, longest: int) -> Iterator[bytes]:
    data = stream.read(longest + 1)
    while len(data) > longest:
        stop = _cut(data, longest)
        yield data[:stop]
        data = data[stop:]
        data += stream.read(longest + 1 - len(data))
    yield data


def _lines(stream: BufferedReader, longest: int) -> Iterator[tuple[int, bytes]]:
    number, rest = 1, b""
    while line := rest + stream.readline(longest + 1 - len(rest)):
        if len(line) > longest and not line.endswith(b"\n"):
            stop = _cut(line, longest)
            yield number, line[:stop]
            rest = line[stop:]
        else:
            yield number, line.rstrip(b"\r\n")
            number, rest = number + 1, b""


def _paragraphs(stream: BufferedReader, longest: int) -> Iterator[tuple[int, bytes]]:
    start, held, size = 1, list[bytes](), 0
    for number, line in _lines(stream, longest):
        if held and (not line.strip() or size + len(line) > longest):
            yield start, b"\n".join(held)
            held, size = [], 0
        if line.strip():
            start = start if held else number
            held.append(line)
            size += len(line) + 1
    if held:
        yield start, b"\n".join(held)


def _cut(data: bytes, longest: int) -> int:
    """Return where to cut a document that is too long: after whitespace if any is near, never inside a character."""
    space = max(data.rfind(b"\n", longest // 2, longest), data.rfind(b" ", longest // 2, longest))
    if space >= 0:
        return space + 1
    stop = longest
    while stop > longest - 4 and data[stop] & 0xC0 == 0x80:
        stop -= 1
    return stop - (data[stop - 1 : stop + 1] == b"\r\n")


def whole_lines(stream: BufferedReader, longest: int) -> Iterator[bytes | None]:
    """Yield each line without its end, or None for one that is too long, which is read past and not held."""
    while line := stream.readline(longest + 1):
        if len(line) <= longest or line.endswith(b"\n"):
            yield line.rstrip(b"\r\n")
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(longest)
        yield None


def array_items(stream: BufferedReader, longest: int) -> Iterator[bytes | None]:
    """Yield each element of a JSON array, or None for one that is too long, which is read past and not held."""
    depth, quoted, at, held = 0, False, 0, b""
    while chunk := stream.read(BLOCK):
        start = 0
        while found := (MARKS_IN_STRING if quoted else MARKS).search(chunk, at):
            mark, at = found[0], found.end()
            if mark == b"\\":
                at += 1  # the next byte ends no string
            elif mark == b'"':
                quoted = not quoted
            else:
                depth += (mark in b"[{") - (mark in b"]}")
                if depth == 0 or (depth == 1 and mark == b","):
                    item = held + chunk[start : found.start()]
                    yield item if len(item) <= longest else None
                if depth == 0 or (depth == 1 and mark in b"[,"):
                    start, held = at, b""
        held = (held + chunk[start:])[: longest + 1]
        at = max(0, at - len(chunk))
    if depth or held.strip():
        raise UnreadableFile(SkipReason.BAD_JSON)  # cut, or more than an array


def json_items(stream: BufferedReader, longest: int) -> Iterator[bytes | None]:
    """Yield the elements of a `.json` file: those of an array, or else its lines."""
    is_array = stream.peek(BLOCK).lstrip().startswith(b"[")
    return array_items(stream, longest) if is_array else whole_lines(stream, longest)


class _CsvLines:
    """Lines as the csv module takes them; one that is too long is an error of its row alone."""

    def __init__(self, stream: BufferedReader, longest: int) -> None:
        self._lines, self.number = whole_lines(stream, longest), 0

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if line is None:
            raise csv.Error("line too long")
        return line.decode("utf-8", "surrogateescape") + "\n"  # bytes that are no text are told of their document


def csv_rows(stream: BufferedReader, longest: int, delimiter: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yield each row of a CSV file with the number of its first line; None: a line or a field is too long."""
    limit = csv.field_size_limit(longest)
    lines = _CsvLines(stream, longest)
    rows = csv.reader(lines, delimiter=delimiter)
    try:
        while True:
            first = lines.number + 1
            try:
                yield first, next(rows)
            except csv.Error:
                yield first, None
            except StopIteration:
                return
    finally:
        csv.field_size_limit(limit)


def numbered(
    path: Path, longest: int, counter: DocumentCounter, encoding: str | None = None, first: int = 1
) -> Iterator[tuple[str, bytes]]:
    """Yield a file's lines, or a JSON array's elements, with their origins.

    Blank and overlong ones are skipped, and so is a file that cannot be read.
    """
    name = printable_path(path)
    records = json_items if file_extension(path) == ".json" else whole_lines
    try:
        with open_text(path, encoding) as stream:
            for number, raw in enumerate(records(stream, longest), 1):
                if number < first:
                    continue
                origin = f"{name}:{number}"
                counter.see()
                if raw is None or not raw.strip():
                    counter.skip(SkipReason.TOO_LONG if raw is None else SkipReason.EMPTY, origin)
                else:
                    yield origin, raw
    except UnreadableFile as fault:
        counter.see()
        counter.skip(fault.reason, name)


# --- fields of a record -----------------------------------------------------------------------------------------------


def document_of(values: Sequence[Value], origin: str, counter: DocumentCounter, group: str = "") -> Iterator[Document]:
    """Yield the document that one or two fields make, or skip it for the first reason found."""
    for value in values:
        reason = value if isinstance(value, SkipReason) else check_text(value)
        if reason is not None:
            counter.skip(reason, origin)
            return
    yield Document(str(values[0]), origin, group, target=str(values[1]) if len(values) > 1 else None)


def line_value(line: bytes | SkipReason | None) -> Value:
    if isinstance(line, bytes):
        return read_bytes(line)
    return SkipReason.TOO_LONG if line is None else line


def parse_row(raw: bytes) -> JsonRow | SkipReason:
    """Return the object or the string that a line of JSON is, or why it is neither."""
    try:
        row = json.loads(raw)
    except UnicodeDecodeError:
        return SkipReason.NOT_UTF8
    except (ValueError, RecursionError):
        return SkipReason.BAD_JSON
    return row if isinstance(row, dict | str) else SkipReason.BAD_JSON


def json_cells(row: JsonRow, names: Sequence[int | str], strict: str | None = None) -> list[object]:
    """Return what a row's fields hold; a row that is a string is the text itself.

    `strict` is the origin of a row in which each field must be, for a message that lists those that are.
    """
    if isinstance(row, str):
        return [row]
    for name in names if strict is not None else ():
        if name not in row:
            near = hint(str(name), row)
            raise DataError(f"{strict}: no field {name!r}; the row has {', '.join(row)[:160] or 'none'}{near}")
    return [row.get(str(name), SkipReason.MISSING_FIELD) for name in names]


def tsv_columns(path: Path, wanted: Sequence[int | str], encoding: str | None) -> list[int]:
    """Return the numbers of columns named in a file's first line; a file that cannot be read has none to check."""
    try:
        with open_text(path, encoding) as stream:
            header = stream.readline(HEADER).decode("utf-8", "replace").rstrip("\r\n").split("\t")
    except UnreadableFile:
        return []
    return find_columns(path, wanted, header)


def find_columns(path: Path, wanted: Sequence[int | str], header: list[str]) -> list[int]:
    """Return the numbers of columns, each given by its number or by its name in the header."""
    for column in wanted:
        if isinstance(column, str) and column not in header:
            raise DataError(
                f"{printable_path(path)}: no column {column!r}; the header has {', '.join(header)[:160]}: "
                "name one, or give its number where there is no header (data.sources.0.text=0)"
            )
    return [header.index(column) if isinstance(column, str) else column for column in wanted]


def cells_of(row: list[str], columns: list[int]) -> Sequence[Value]:
    """Return a row's cells in these columns."""
    return [row[c] if c < len(row) else SkipReason.MISSING_FIELD for c in columns]
