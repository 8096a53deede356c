"""Tables: sources that need the `data` extra. Parquet files, and data sets in the format of the `datasets` library."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from heddle.core import DataError, MissingExtra, UsageError, first_line, part, replace
from heddle.data.sources.decompress import file_stamp, find_files, printable_path
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, absolute_path
from heddle.data.sources.records import Value, document_of

ROWS = 1024  # rows held at a time


@part("parquet")
class ParquetSource(SourceConfig):
    """Parquet files: the column `text`, and `target` when documents are pairs.

    path: a file, a folder or a glob of Parquet files.
    text: the column that holds the text, or the source of a pair.
    target: the column that holds the target of a pair; None: documents are no pairs.
    """

    path: str
    text: str = "text"
    target: str | None = None

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each row, a bounded number of rows in memory."""
        pyarrow = _pyarrow()
        columns = [name for name in (self.text, self.target) if name is not None]
        for path in find_files(self.path, "*.parquet"):
            number = 0
            try:
                with pyarrow.parquet.ParquetFile(path) as table:
                    _check_columns(printable_path(path), columns, table.schema_arrow.names)
                    for batch in table.iter_batches(ROWS, columns=columns):
                        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                            number += 1
                            counter.see()
                            yield from document_of(
                                [_value(cell) for cell in row], f"{printable_path(path)}:{number}", counter
                            )
            except (OSError, pyarrow.ArrowException):
                counter.see()
                counter.skip(SkipReason.UNREADABLE, printable_path(path))

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
            yield from document_of([_value(row[name]) for name in columns], f"{self.name}:{number}", counter)

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
                return datasets.load_dataset(self.name, split=self.split, streaming=True)
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


def _value(cell: object) -> Value:
    return cell if isinstance(cell, str) else SkipReason.MISSING_FIELD
