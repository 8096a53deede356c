"""Readers: sources on disk: text files, JSON, columns by tabs or commas, and parallel files, plain or compressed."""

import contextlib
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, ClassVar

from heddle.core import DataError, part, within
from heddle.data.files import UnreadableFile, file_stamp, find_files, open_text, printable_path
from heddle.data.sources.annotated import ConllSource, SquadSource
from heddle.data.sources.columns import Column, ColumnSource
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, read_bytes
from heddle.data.sources.labels import LabelKind
from heddle.data.sources.records import (
    Encoding,
    RecordUnit,
    cells_of,
    csv_rows,
    document_of,
    find_columns,
    json_cells,
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
    split: RecordUnit = "file"
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

    def resolve(self, wanted: LabelKind | None) -> SourceConfig:
        """Return the source; where tags are wanted, the file has a word in each line."""
        return ConllSource(path=self.path) if wanted == "tags" else self

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, self.pattern)]


@part("jsonl")
class JsonlSource(ColumnSource):
    """JSON lines: each an object with a field `text`, and `target` when documents are pairs, or labels.

    path: a file, a folder or a glob of JSON lines.
    text: the field that holds the text, or the source of a pair.
    target: the field that holds the target of a pair; None: documents are no pairs.
    pair: the field of a second text, read together with the first.
    label: the field of the label; None: none, or found by its name where the objective wants labels.
    score: the field of a number, such as the similarity of two texts.
    group: the field of a group, whose documents stay on one side of a split.
    prototype: the field of a text to edit, which is read after the source of a pair; it may be empty.
    separator: what parts several labels in one field; None: a field is one label, a list several.
    tags: the field of a list of tags, one for each word of `text`, which is then a list of words.
    longest: most bytes of a line; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    text: str = "text"
    target: str | None = None
    pair: str | None = None
    label: str | None = None
    score: str | None = None
    group: str | None = None
    prototype: str | None = None
    separator: str | None = None
    tags: str | None = None
    longest: Longest = 1 << 24
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line, or each element of an array."""
        columns = self.columns
        for path in find_files(self.path, *JSON):
            for origin, raw in numbered(path, self.longest, counter, self.encoding):
                row = parse_row(raw)
                if isinstance(row, SkipReason):
                    counter.skip(row, origin)
                else:
                    cells = json_cells(row, columns.wanted, origin if columns.labelled else None)
                    yield from columns.document(cells, origin, counter, self.separator)

    def first_rows(self, most: int) -> list[list[str]]:
        """Return the names of the first row's fields."""
        for path in find_files(self.path, *JSON)[:1]:
            for _, raw in numbered(path, self.longest, DocumentCounter(), self.encoding):
                row = parse_row(raw)
                return [list(row)] if isinstance(row, dict) else []
        return []

    def resolve(self, wanted: LabelKind | None) -> SourceConfig:
        """Return the source with its columns; questions, contexts and answers have a reader of their own."""
        return SquadSource(path=self.path) if wanted == "answers" else super().resolve(wanted)

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, *JSON)]


@part("tsv")
class TsvSource(ColumnSource):
    """Tab-separated columns, by number from 0 in a file without a header, or by name in the header's line.

    path: a file, a folder or a glob of tab-separated files.
    text: the column of the text, or of a pair's source: a number from 0, or a name of the header.
    target: the column of a pair's target; None: documents are no pairs.
    pair: the column of a second text, read together with the first.
    label: the column of the label; None: none, or found by its name where the objective wants labels.
    score: the column of a number, such as the similarity of two texts.
    group: the column of a group, whose documents stay on one side of a split.
    prototype: the column of a text to edit, which is read after the source of a pair; it may be empty.
    separator: what parts several labels in one field; None: a field is one label.
    longest: most bytes of a line; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    default_text: ClassVar[Column] = 0

    path: str
    text: int | str = 0
    target: int | str | None = None
    pair: int | str | None = None
    label: int | str | None = None
    score: int | str | None = None
    group: int | str | None = None
    prototype: int | str | None = None
    separator: str | None = None
    longest: Longest = 1 << 24
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each line below the header."""
        columns, wanted = self.columns, self.columns.wanted
        named = any(isinstance(column, str) for column in wanted)
        for path in find_files(self.path, "*.tsv*"):
            numbers = tsv_columns(path, wanted, self.encoding) if named else [int(column) for column in wanted]
            for origin, raw in numbered(path, self.longest, counter, self.encoding, first=1 + named):
                cells = raw.split(b"\t")
                values = [read_bytes(cells[c]) if c < len(cells) else SkipReason.MISSING_FIELD for c in numbers]
                yield from columns.document(values, origin, counter, self.separator)

    def first_rows(self, most: int) -> list[list[str]]:
        """Return the first lines, divided at tabs."""
        for path in find_files(self.path, "*.tsv*")[:1]:
            lines = (raw for _, raw in numbered(path, self.longest, DocumentCounter(), self.encoding))
            return [line.decode("utf-8", "replace").split("\t") for line in islice(lines, most)]
        return []

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, "*.tsv*")]


@part("csv")
class CsvSource(ColumnSource):
    """Columns separated by commas, by name in the header's line, or by number from 0 in a file without a header.

    Fields in double quotes may hold commas and line ends.

    path: a file, a folder or a glob of CSV files.
    text: the column of the text, or of a pair's source: a name of the header, or a number from 0.
    target: the column of a pair's target; None: documents are no pairs.
    pair: the column of a second text, read together with the first.
    label: the column of the label; None: none, or found by its name where the objective wants labels.
    score: the column of a number, such as the similarity of two texts.
    group: the column of a group, whose documents stay on one side of a split.
    prototype: the column of a text to edit, which is read after the source of a pair; it may be empty.
    separator: what parts several labels in one field; None: a field is one label.
    delimiter: the character between two fields.
    longest: most bytes of a row; longer ones are left out and counted.
    encoding: how the files are encoded, such as latin-1; None: UTF-8, or as a byte-order mark says.
    """

    path: str
    text: int | str = "text"
    target: int | str | None = None
    pair: int | str | None = None
    label: int | str | None = None
    score: int | str | None = None
    group: int | str | None = None
    prototype: int | str | None = None
    separator: str | None = None
    delimiter: Delimiter = ","
    longest: Longest = 1 << 24
    encoding: Encoding | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each row below the header."""
        columns, wanted = self.columns, self.columns.wanted
        for path in find_files(self.path, "*.csv*"):
            name = printable_path(path)
            numbers = None if any(isinstance(column, str) for column in wanted) else [int(c) for c in wanted]
            try:
                with open_text(path, self.encoding) as stream:
                    for number, row in csv_rows(stream, self.longest, self.delimiter):
                        if numbers is None:
                            numbers = find_columns(path, wanted, [cell.strip() for cell in row or []])
                            continue
                        counter.see()
                        if row == []:
                            counter.skip(SkipReason.EMPTY, f"{name}:{number}")
                            continue
                        values = [SkipReason.TOO_LONG] if row is None else cells_of(row, numbers)
                        yield from columns.document(values, f"{name}:{number}", counter, self.separator)
            except UnreadableFile as fault:
                counter.see()
                counter.skip(fault.reason, name)

    def first_rows(self, most: int) -> list[list[str]]:
        """Return the first rows."""
        for path in find_files(self.path, "*.csv*")[:1]:
            with contextlib.suppress(UnreadableFile), open_text(path, self.encoding) as stream:
                rows = islice(csv_rows(stream, self.longest, self.delimiter), most)
                return [[cell.strip() for cell in row] for _, row in rows if row]
        return []

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
