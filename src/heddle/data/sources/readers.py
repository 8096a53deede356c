"""Readers: sources on disk: text files, JSON lines, tab-separated columns and parallel files, plain or compressed."""

import json
from collections.abc import Iterator
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from heddle.core import ConfigError, DataError, part
from heddle.data.sources.decompress import UnreadableFile, file_stamp, find_files, open_text, printable_path
from heddle.data.sources.documents import (
    Document,
    DocumentCounter,
    FileStamp,
    SkipReason,
    SourceConfig,
    check_text,
    read_bytes,
)

LONGEST = 1 << 22  # bytes of one document; longer ones are cut, so that memory stays flat
JSONL = ("*.jsonl*", "*.ndjson*")  # one format, two names; compressed too
Split = Literal["file", "paragraph", "line"]
Value = str | SkipReason


def check_longest(longest: int) -> None:
    """Refuse a length that could not hold a character, or would not fit in memory."""
    if not 16 <= longest <= 1 << 28:
        raise ConfigError("longest", want="16 to 2**28 bytes", got=longest)


@part("text")
class TextSource(SourceConfig):
    """Text: a file, all files under a folder whose names fit `pattern`, or a glob.

    Each file is a document, or each paragraph (blank lines part them), or each line. A document of more than
    `longest` bytes becomes several, cut at whitespace where there is some. Where files are documents and there are
    several, the pieces of each stay on one side of a split; a single file would otherwise have no other side.

    path: a file, a folder or a glob.
    split: what a document is: a file, a paragraph or a line.
    pattern: which files of a folder are read, such as *.txt.
    longest: most bytes of a document; a longer one becomes several.
    """

    path: str
    split: Split = "file"
    pattern: str = "*"
    longest: int = LONGEST

    def __post_init__(self) -> None:
        check_longest(self.longest)

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield the documents of each file in the order of names."""
        paths = find_files(self.path, self.pattern)
        whole = self.split == "file" and len(paths) > 1
        for path in paths:
            name, seen_before, first = printable_path(path), counter.seen, ""
            try:
                with open_text(path) as stream:
                    for place, raw in _records(stream, self.split, self.longest):
                        counter.see()
                        text = read_bytes(raw)
                        if isinstance(text, SkipReason):
                            counter.skip(text, f"{name}:{place}")
                        else:
                            yield Document(text, f"{name}:{place}", group=first)
                            if (
                                whole and not first
                            ):  # later pieces go to the same side of the split, wherever the folder is
                                first = text
                if counter.seen == seen_before:
                    raise UnreadableFile(SkipReason.EMPTY)
            except UnreadableFile as fault:
                counter.see()
                counter.skip(fault.reason, name)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, self.pattern)]


@part("jsonl")
class JsonlSource(SourceConfig):
    """JSON lines: each an object with a field `text`, and `target` when documents are pairs.

    path: a file, a folder or a glob of JSON lines.
    text: the field that holds the text, or the source of a pair.
    target: the field that holds the target of a pair; None: documents are no pairs.
    longest: most bytes of a line; longer ones are left out and counted.
    """

    path: str
    text: str = "text"
    target: str | None = None
    longest: int = 1 << 24

    def __post_init__(self) -> None:
        check_longest(self.longest)

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line."""
        for path in find_files(self.path, *JSONL):
            for origin, raw in numbered(path, self.longest, counter):
                row = parse_row(raw)
                if isinstance(row, SkipReason):
                    counter.skip(row, origin)
                else:
                    values = [_field(row, name) for name in (self.text, self.target) if name is not None]
                    yield from document_of(values, origin, counter)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, *JSONL)]


@part("tsv")
class TsvSource(SourceConfig):
    """Tab-separated columns, by number from 0 in a file without a header, or by name in the header's line.

    path: a file, a folder or a glob of tab-separated files.
    text: the column of the text, or of a pair's source: a number from 0, or a name of the header.
    target: the column of a pair's target; None: documents are no pairs.
    longest: most bytes of a line; longer ones are left out and counted.
    """

    path: str
    text: int | str = 0
    target: int | str | None = None
    longest: int = 1 << 24

    def __post_init__(self) -> None:
        check_longest(self.longest)

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line below the header."""
        wanted = [column for column in (self.text, self.target) if column is not None]
        named = any(isinstance(column, str) for column in wanted)
        for path in find_files(self.path, "*.tsv*"):
            columns = _columns(path, wanted) if named else [int(column) for column in wanted]
            for origin, raw in numbered(path, self.longest, counter, first=1 + named):
                cells = raw.split(b"\t")
                values = [read_bytes(cells[c]) if c < len(cells) else SkipReason.MISSING_FIELD for c in columns]
                yield from document_of(values, origin, counter)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, "*.tsv*")]


@part("parallel")
class ParallelSource(SourceConfig):
    """Two files whose lines translate each other: each pair of lines is a document with a target.

    source: the file of source lines.
    target: the file of target lines, one for each source line.
    longest: most bytes of a line; longer ones are left out and counted.
    """

    source: str
    target: str
    longest: int = 1 << 20

    def __post_init__(self) -> None:
        check_longest(self.longest)

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield pairs of lines; files of unequal length are refused, for no line of theirs can be trusted."""
        left, right = self._files()
        for path in (left, right):
            find_files(str(path))
        try:
            with open_text(left) as one, open_text(right) as two:
                lines, others = whole_lines(one, self.longest), whole_lines(two, self.longest)
                for number, pair in enumerate(zip_longest(lines, others, fillvalue=SkipReason.MISSING_FIELD), 1):
                    counter.see()
                    values = [_value(line) for line in pair]
                    if SkipReason.MISSING_FIELD in values:
                        short = left if values[0] is SkipReason.MISSING_FIELD else right
                        raise DataError(
                            f"{printable_path(short)}: ends before line {number} of the file parallel to it"
                        )
                    yield from document_of(values, f"{printable_path(left)}:{number}", counter)
        except UnreadableFile as fault:
            raise DataError(
                f"{printable_path(left)} and {printable_path(right)}: {fault.reason}: not two files of text"
            ) from None

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of both files."""
        return [file_stamp(path) for path in self._files()]

    def _files(self) -> tuple[Path, Path]:
        return Path(self.source).expanduser(), Path(self.target).expanduser()


# --- records of a stream ----------------------------------------------------------------------------------------------


def _records(stream: BufferedReader, split: Split, longest: int) -> Iterator[tuple[int, bytes]]:
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
    return stop


def whole_lines(stream: BufferedReader, longest: int) -> Iterator[bytes | None]:
    """Yield each line without its end, or None for one that is too long, which is read past and not held."""
    while line := stream.readline(longest + 1):
        if len(line) <= longest or line.endswith(b"\n"):
            yield line.rstrip(b"\r\n")
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(longest)
        yield None


def numbered(path: Path, longest: int, counter: DocumentCounter, first: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield a file's lines with their origins; skip blank and overlong ones, and a file that cannot be read."""
    name = printable_path(path)
    try:
        with open_text(path) as stream:
            for number, raw in enumerate(whole_lines(stream, longest), 1):
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


def document_of(values: list[Value], origin: str, counter: DocumentCounter) -> Iterator[Document]:
    """Yield the document that one or two fields make, or skip it for the first reason found."""
    for value in values:
        reason = value if isinstance(value, SkipReason) else check_text(value)
        if reason is not None:
            counter.skip(reason, origin)
            return
    yield Document(str(values[0]), origin, target=str(values[1]) if len(values) > 1 else None)


def _value(line: bytes | SkipReason | None) -> Value:
    if isinstance(line, bytes):
        return read_bytes(line)
    return SkipReason.TOO_LONG if line is None else line


def parse_row(raw: bytes) -> dict[str, object] | SkipReason:
    """Return the object that a line of JSON is, or why it is none."""
    try:
        row = json.loads(raw)
    except UnicodeDecodeError:
        return SkipReason.NOT_UTF8
    except (ValueError, RecursionError):
        return SkipReason.BAD_JSON
    return row if isinstance(row, dict) else SkipReason.BAD_JSON


def _field(row: dict[str, object], name: str) -> Value:
    value = row.get(name)
    return value if isinstance(value, str) else SkipReason.MISSING_FIELD


def _columns(path: Path, wanted: list[int | str]) -> list[int]:
    """Return the numbers of columns named in a file's first line; a file that cannot be read has none to check."""
    try:
        with open_text(path) as stream:
            header = stream.readline(1 << 16).decode("utf-8", "replace").rstrip("\r\n").split("\t")
    except UnreadableFile:
        return []
    for column in wanted:
        if isinstance(column, str) and column not in header:
            raise DataError(f"{printable_path(path)}: no column {column!r}; the header has {', '.join(header)[:160]}")
    return [header.index(column) if isinstance(column, str) else column for column in wanted]
