"""Data: documents to batches. Sources and splits, checksummed shards, row plans, a loader resumed by one integer."""

from heddle.data.batch import Batch, Row, collate
from heddle.data.builtin import BuiltinSource
from heddle.data.chats import ChatSource
from heddle.data.corpus import CorpusConfig, FileSplit, HashSplit, Side, SplitConfig, TailSplit, corpus_for, source_for
from heddle.data.documents import Document, Ledger, Reason, SourceConfig, Turns
from heddle.data.lessons import Encoded, Refused
from heddle.data.loader import Loader
from heddle.data.mixing import Mixed, apportion
from heddle.data.pairs import PairRows
from heddle.data.prepare import Counting, Prepared, check_place, open_prepared, prepare
from heddle.data.prepared import PreparedSource
from heddle.data.readers import JsonlSource, ParallelSource, TextSource, TsvSource
from heddle.data.rows import PackedRows, Plan, RowsConfig, StreamRows
from heddle.data.shard_writer import ShardWriter
from heddle.data.shards import Shards
from heddle.data.tables import DatasetsSource, ParquetSource

__all__ = [
    "Batch",
    "BuiltinSource",
    "ChatSource",
    "CorpusConfig",
    "Counting",
    "DatasetsSource",
    "Document",
    "Encoded",
    "FileSplit",
    "HashSplit",
    "JsonlSource",
    "Ledger",
    "Loader",
    "Mixed",
    "PackedRows",
    "PairRows",
    "ParallelSource",
    "ParquetSource",
    "Plan",
    "Prepared",
    "PreparedSource",
    "Reason",
    "Refused",
    "Row",
    "RowsConfig",
    "ShardWriter",
    "Shards",
    "Side",
    "SourceConfig",
    "SplitConfig",
    "StreamRows",
    "TailSplit",
    "TextSource",
    "TsvSource",
    "Turns",
    "apportion",
    "check_place",
    "collate",
    "corpus_for",
    "open_prepared",
    "prepare",
    "source_for",
]
