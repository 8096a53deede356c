"""Prepared: a folder of token shards as a source of its own, for runs that begin at once."""

from collections.abc import Iterator
from pathlib import Path

from heddle.core import DataError, part
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SourceConfig

RECORD = "prepared.json"


@part("prepared")
class PreparedSource(SourceConfig):
    """What `heddle data prepare` wrote: shards, split and tokenizer included; the only source of its corpus.

    path: the folder that `heddle data prepare` wrote.
    """

    path: str

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Refuse: the text is no longer there."""
        raise DataError(f"{self.path}: prepared data holds ids, not text: it can only be a corpus of its own")

    def stamps(self) -> list[FileStamp]:
        """Return the size and date of the record, which is written last."""
        record = (Path(self.path).expanduser() / RECORD).stat()
        return [[RECORD, record.st_size, record.st_mtime_ns]]
