"""Sources: files, folders and built-in data to documents; the corpus and its split."""

from heddle.data.sources.annotated import ConllSource, SquadSource
from heddle.data.sources.builtin import BuiltinSource
from heddle.data.sources.chat_encoding import (
    ChatEncoder,
    EncodedDocument,
    RejectedDocument,
    encode_documents,
)
from heddle.data.sources.chats import ChatSource
from heddle.data.sources.corpus import (
    CorpusConfig,
    FileSplit,
    HashSplit,
    Split,
    SplitDocument,
    TailSplit,
)
from heddle.data.sources.documents import Document, DocumentCounter, DocumentsChecksum, SkipReason, SourceConfig
from heddle.data.sources.labels import Answers, ClassLabels, Label, LabelKind, Score, WordTags
from heddle.data.sources.media_files import (
    ArraySource,
    ManifestColumns,
    MediaSource,
    SoundSource,
)
from heddle.data.sources.plain_path import corpus_for, source_for
from heddle.data.sources.preferences import PreferenceSource
from heddle.data.sources.prepared import RECORD, PreparedSource
from heddle.data.sources.readers import CsvSource, JsonlSource, ParallelSource, TextSource, TsvSource
from heddle.data.sources.tables import ParquetSource
