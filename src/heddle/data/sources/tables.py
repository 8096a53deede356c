"""Tables: sources that need the `data` extra. Parquet files, and data sets in the format of the `datasets` library."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from heddle.core import DataError, MissingExtra, UsageError, first_line, part, replace
from heddle.data.files import file_stamp, find_files, printable_path
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, absolute_path
from heddle.data.sources.readers import Longest
from heddle.data.sources.records import Value, document_of

ROWS = 1024  # rows held at a time, where they are short
BATCH = 1 << 26  # bytes that the rows held at a time should not exceed
LONGEST = 1 << 24  # bytes of a cell
GROUP = 1 << 27  # bytes of a column in a row group; of more, cells must not be long, nor compressed beyond RATIO
RATIO = 100  # text is compressed by far less


@part("parquet")
class ParquetSource(SourceConfig):
    """Parquet files: the column `text`, and `target` when documents are pairs; cells are read in bounded memory.

    path: a file, a folder or a glob of Parquet files.
    text: the column that holds the text, or the source of a pair.
    target: the column that holds the target of a pair; None: documents are no pairs.
    longest: most bytes of a cell; longer ones are left out and counted.
    """

    path: str
    text: str = "text"
    target: str | None = None
    longest: Longest = LONGEST

    later_fields: ClassVar[tuple[str, ...]] = ("longest",)

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each row, a bounded number of rows in memory."""
        pyarrow = _pyarrow()
        columns = [name for name in (self.text, self.target) if name is not None]
        for path in find_files(self.path, "*.parquet"):
            name = printable_path(path)
            try:
                _check_columns(name, columns, pyarrow.parquet.read_schema(path).names)
                # A dictionary stays one: a long text that many rows share is held once.
                with pyarrow.parquet.ParquetFile(path, read_dictionary=columns) as table:
                    for number, values in enumerate(self._rows(table, columns), 1):
                        counter.see()
                        yield from document_of(values, f"{name}:{number}", counter)
            except (OSError, pyarrow.ArrowException):
                counter.see()
                counter.skip(SkipReason.UNREADABLE, name)

    def _rows(self, table: Any, columns: list[str]) -> Iterator[Sequence[Value]]:
        """Yield the cells of each row; those of a row group that would fill the memory are too long."""
        for group in range(table.num_row_groups):
            found = table.metadata.row_group(group)
            sizes = [_column_size(found, name) for name in columns]
            mean = max(whole for whole, _ in sizes) // max(1, found.num_rows)
            if any(whole > GROUP and (mean > self.longest or whole > RATIO * packed) for whole, packed in sizes):
                too_long: list[Value] = [SkipReason.TOO_LONG]
                yield from (too_long for _ in range(found.num_rows))
                continue
            rows = max(1, min(ROWS, BATCH // max(1, mean)))
            for batch in table.iter_batches(rows, row_groups=[group], columns=columns):
                for index in range(batch.num_rows):
                    yield [_value(batch.column(name)[index].as_py(), self.longest) for name in columns]

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file."""
        return [file_stamp(path) for path in find_files(self.path, "*.parquet")]


@part("datasets")
class DatasetsSource(SourceConfig):
    """A data set of the `datasets` library: a folder that it saved, or a name that it can load.

    name: a folder that the library saved, or a name that it can load.
    split: the part of the data set to read.
    text: the column that holds the text, or the source of a pair.
    target: the column that holds the target of a pair; None: documents are no pairs.
    """

    name: str
    split: str = "train"
    text: str = "text"
    target: str | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each row of the split."""
        columns = [name for name in (self.text, self.target) if name is not None]
        for number, row in enumerate(self._rows(), 1):
            if number == 1:
                _check_columns(self.name, columns, list(row))
            counter.see()
            values = [_value(row[name], LONGEST) for name in columns]
            yield from document_of(values, f"{self.name}:{number}", counter)

    def absolute(self) -> Self:
        """Return the source with the absolute path of a saved folder; a name that the library loads stays."""
        return replace(self, name=absolute_path(self.name)) if Path(self.name).expanduser().is_dir() else self

    def stamps(self) -> list[FileStamp]:
        """Return the files of a saved folder, or the name alone."""
        here = Path(self.name).expanduser()
        return [file_stamp(path) for path in find_files(self.name)] if here.is_dir() else [[self.name, self.split]]

    def _rows(self) -> Any:
        try:
            import datasets
        except ImportError:
            raise MissingExtra("datasets", "data", "a source of kind datasets") from None
        try:
            if not Path(self.name).expanduser().is_dir():
                return datasets.load_dataset(self.name, split=self.split, streaming=True, trust_remote_code=False)
            saved = datasets.load_from_disk(str(Path(self.name).expanduser()))
            return saved[self.split] if isinstance(saved, datasets.DatasetDict) else saved
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{self.name}: cannot be loaded: {first_line(error)}") from None


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data", "reading .parquet files") from None
    return pyarrow


def _check_columns(name: str, wanted: list[str], found: list[str]) -> None:
    for column in wanted:
        if column not in found:
            raise DataError(f"{name}: no column {column!r}; it has {', '.join(found)[:160]}")


def _column_size(group: Any, name: str) -> tuple[int, int]:
    """Return the bytes of a column in a row group, decompressed and as stored."""
    columns = [group.column(index) for index in range(group.num_columns)]
    found = [column for column in columns if f"{column.path_in_schema}.".startswith(f"{name}.")]
    return sum(c.total_uncompressed_size for c in found), sum(c.total_compressed_size for c in found)


def _value(cell: object, longest: int) -> Value:
    if not isinstance(cell, str):
        return SkipReason.MISSING_FIELD
    return cell if len(cell) <= longest and len(cell.encode("utf-8", "replace")) <= longest else SkipReason.TOO_LONG
