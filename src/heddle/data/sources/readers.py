"""Readers: sources on disk: text files, JSON, columns by tabs or commas, and parallel files, plain or compressed."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, ClassVar

from heddle.core import DataError, part, within
from heddle.core.system import is_encoding
from heddle.data.sources.decompress import UnreadableFile, file_stamp, find_files, open_text, printable_path
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, read_bytes
from heddle.data.sources.records import (
    Split,
    Value,
    cells_of,
    csv_rows,
    document_of,
    find_columns,
    json_values,
    line_value,
    numbered,
    parse_row,
    text_records,
    tsv_columns,
    whole_lines,
)

LONGEST = 1 << 22  # bytes of one document; longer ones are cut, so that memory stays flat
JSON = ("*.jsonl*", "*.ndjson*", "*.json", "*.json.*")  # JSON lines have two names; compressed too


# Bytes that hold a character, and fit in memory.
Longest = Annotated[int, within("16 to 2**28 bytes", lambda longest: 16 <= longest <= 1 << 28)]
Delimiter = Annotated[str, within("one character, such as ; or ,", lambda c: len(c) == 1 and c not in '"\r\n')]
Encoding = Annotated[str, within("one that Python knows, such as latin-1 or utf-16", is_encoding)]


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
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    split: Split = "file"
    pattern: str = "*"
    longest: Longest = LONGEST
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield the documents of each file in the order of names."""
        paths = find_files(self.path, self.pattern)
        whole = self.split == "file" and len(paths) > 1
        for path in paths:
            name, seen_before, first = printable_path(path), counter.seen, ""
            try:
                with open_text(path, self.encoding) as stream:
                    for place, raw in text_records(stream, self.split, self.longest):
                        counter.see()
                        text = read_bytes(raw)
                        if isinstance(text, SkipReason):
                            counter.skip(text, f"{name}:{place}")
                        else:
                            yield Document(text, f"{name}:{place}", group=first)
                            if whole and not first:  # later pieces stay on the same side of the split, wherever it is
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
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    text: str = "text"
    target: str | None = None
    longest: Longest = 1 << 24
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line, or each element of an array."""
        fields = [name for name in (self.text, self.target) if name is not None]
        for path in find_files(self.path, *JSON):
            for origin, raw in numbered(path, self.longest, counter, self.encoding):
                row = parse_row(raw)
                if isinstance(row, SkipReason):
                    counter.skip(row, origin)
                else:
                    yield from document_of(json_values(row, fields), origin, counter)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, *JSON)]


@part("tsv")
class TsvSource(SourceConfig):
    """Tab-separated columns, by number from 0 in a file without a header, or by name in the header's line.

    path: a file, a folder or a glob of tab-separated files.
    text: the column of the text, or of a pair's source: a number from 0, or a name of the header.
    target: the column of a pair's target; None: documents are no pairs.
    longest: most bytes of a line; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    text: int | str = 0
    target: int | str | None = None
    longest: Longest = 1 << 24
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line below the header."""
        wanted = [column for column in (self.text, self.target) if column is not None]
        named = any(isinstance(column, str) for column in wanted)
        for path in find_files(self.path, "*.tsv*"):
            columns = tsv_columns(path, wanted, self.encoding) if named else [int(column) for column in wanted]
            for origin, raw in numbered(path, self.longest, counter, self.encoding, first=1 + named):
                cells = raw.split(b"\t")
                values = [read_bytes(cells[c]) if c < len(cells) else SkipReason.MISSING_FIELD for c in columns]
                yield from document_of(values, origin, counter)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, "*.tsv*")]


@part("csv")
class CsvSource(SourceConfig):
    """Columns separated by commas, by name in the header's line, or by number from 0 in a file without a header.

    Fields in double quotes may hold commas and line ends.

    path: a file, a folder or a glob of CSV files.
    text: the column of the text, or of a pair's source: a name of the header, or a number from 0.
    target: the column of a pair's target; None: documents are no pairs.
    delimiter: the character between two fields.
    longest: most bytes of a row; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    text: int | str = "text"
    target: int | str | None = None
    delimiter: Delimiter = ","
    longest: Longest = 1 << 24
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each row below the header."""
        wanted = [column for column in (self.text, self.target) if column is not None]
        for path in find_files(self.path, "*.csv*"):
            name = printable_path(path)
            columns = None if any(isinstance(column, str) for column in wanted) else [int(c) for c in wanted]
            try:
                with open_text(path, self.encoding) as stream:
                    for number, row in csv_rows(stream, self.longest, self.delimiter):
                        if columns is None:
                            columns = find_columns(path, wanted, [cell.strip() for cell in row or []])
                            continue
                        counter.see()
                        values: list[Value] = [SkipReason.TOO_LONG] if row is None else cells_of(row, columns)
                        yield from document_of(values if row != [] else [""], f"{name}:{number}", counter)
            except UnreadableFile as fault:
                counter.see()
                counter.skip(fault.reason, name)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, "*.csv*")]


@part("parallel")
class ParallelSource(SourceConfig):
    """Two files whose lines translate each other: each pair of lines is a document with a target.

    source: the file of source lines.
    target: the file of target lines, one for each source line.
    longest: most bytes of a line; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("source", "target")
    source: str
    target: str
    longest: Longest = 1 << 20
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield pairs of lines; files of unequal length are refused, for no line of theirs can be trusted."""
        left, right = self._files()
        for path in (left, right):
            find_files(str(path))
        try:
            with open_text(left, self.encoding) as one, open_text(right, self.encoding) as two:
                lines, others = whole_lines(one, self.longest), whole_lines(two, self.longest)
                for number, pair in enumerate(zip_longest(lines, others, fillvalue=SkipReason.MISSING_FIELD), 1):
                    counter.see()
                    values = [line_value(line) for line in pair]
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
