"""Sources: files, folders and built-in data to documents; the corpus and its split."""

from heddle.data.sources.builtin import BuiltinSource
from heddle.data.sources.chat_encoding import Encoded, Lessons, Refused, encoded
from heddle.data.sources.chats import ChatSource
from heddle.data.sources.corpus import (
    CorpusConfig,
    FileSplit,
    HashSplit,
    Placed,
    Side,
    SplitConfig,
    TailSplit,
    corpus_for,
    source_for,
)
from heddle.data.sources.documents import Document, Ledger, Reason, SourceConfig, Turns
from heddle.data.sources.prepared import RECORD, PreparedSource
from heddle.data.sources.readers import JsonlSource, ParallelSource, TextSource
from heddle.data.sources.tables import DatasetsSource, ParquetSource

__all__ = [
    "RECORD",
    "BuiltinSource",
    "ChatSource",
    "CorpusConfig",
    "DatasetsSource",
    "Document",
    "Encoded",
    "FileSplit",
    "HashSplit",
    "JsonlSource",
    "Ledger",
    "Lessons",
    "ParallelSource",
    "ParquetSource",
    "Placed",
    "PreparedSource",
    "Reason",
    "Refused",
    "Side",
    "SourceConfig",
    "SplitConfig",
    "TailSplit",
    "TextSource",
    "Turns",
    "corpus_for",
    "encoded",
    "source_for",
]
