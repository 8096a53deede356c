"""Plain paths: from a file, a folder or a pattern, as it is typed, to a source and a corpus."""

from pathlib import Path

from heddle.core import ConfigError, UsageError, kinds
from heddle.data.files import file_extension, find_files
from heddle.data.sources.annotated import ConllSource
from heddle.data.sources.builtin import BuiltinSource
from heddle.data.sources.chats import ChatSource, holds_chats
from heddle.data.sources.corpus import CorpusConfig
from heddle.data.sources.documents import SourceConfig
from heddle.data.sources.preferences import preferences_at
from heddle.data.sources.prepared import RECORD, PreparedSource
from heddle.data.sources.readers import CsvSource, JsonlSource, TextSource, TsvSource
from heddle.data.sources.tables import DatasetsSource, ParquetSource


def source_for(path: str) -> SourceConfig:
    """Return the source that a path means, by its ending, of JSON by the first row; `builtin` is Python's library."""
    if path == "builtin":
        return BuiltinSource()
    here = Path(path).expanduser()
    if (here / RECORD).is_file():
        return PreparedSource(path=path)
    if here.is_dir() and {p.name for p in here.iterdir()} & {"dataset_info.json", "dataset_dict.json"}:
        return DatasetsSource(name=path)
    for kind in kinds(SourceConfig).values():
        if (media := kind.at(path)) is not None:
            return media
    found = {READERS.get(file_extension(file).lower(), TextSource) for file in find_files(path)}
    if len(found) > 1:
        names = ", ".join(sorted(str(reader.kind) for reader in found))
        raise UsageError(f"{path}: holds files of several kinds ({names}); name one, such as '{path}/*.jsonl'")
    if not found:
        raise UsageError(f"{path}: an empty folder")
    reader = found.pop()
    if reader is JsonlSource and (pairs := preferences_at(path)) is not None:
        return pairs
    return ChatSource(path=path) if reader is JsonlSource and holds_chats(path) else reader(path=path)


FileReader = type[TextSource | JsonlSource | TsvSource | CsvSource | ParquetSource | ConllSource]
READERS: dict[str, FileReader] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), JsonlSource),
    ".tsv": TsvSource,
    ".csv": CsvSource,
    ".parquet": ParquetSource,
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), ConllSource),
}


def corpus_for(path: str) -> CorpusConfig:
    """Return a corpus for a path."""
    if not path.strip():
        raise ConfigError("data", want="a file, a folder or a pattern such as '*.txt'", got=path)
    return CorpusConfig(sources=(source_for(path),))
