"""kNN-LM over texts (Khandelwal et al. 2020): a datastore of a model and its tokenizer, and the model that uses it."""

from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import Literal, TypedDict

from heddle.core import Config, ConfigError, Positive, UsageError, nearest, settings
from heddle.data.shards import Shards
from heddle.decoding.knn import (
    BuildOptions,
    Datastore,
    ExactSearch,
    KnnConfig,
    NeighbourSearch,
    build_datastore,
    check_precision,
    open_datastore,
    open_index,
    with_knn,
)
from heddle.decoding.runtime import device_of
from heddle.decoding.scoring import scoring_windows
from heddle.models.networks import LanguageModel, Model, require
from heddle.tasks.scoring import Counts, documents_of
from heddle.text.tokenizers import Tokenizer


@settings
class MemoryConfig(Config):
    """How a memory is used.

    neighbours: weight, number and temperature of the neighbours.
    search: exact, or by the index of Faiss beside the datastore.
    probes: lists of the index that are searched; None: as it was built.
    """

    neighbours: KnnConfig = field(default_factory=KnnConfig)
    search: Literal["exact", "index"] = "exact"
    probes: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search not in ("exact", "index"):
            raise ConfigError("search", want="exact or index", got=self.search)
        if self.probes is not None and self.search != "index":
            raise ConfigError("probes", want="none, since only an index has lists", got=self.probes)


class MemoryOptions(TypedDict, total=False):
    """How a memory is used, as keyword arguments; None: the default."""

    weight: float | None
    k: int | None
    temperature: float | None
    search: str | None
    probes: int | None


def memory_config(options: MemoryOptions) -> MemoryConfig:
    """Return a config from keyword arguments; refuse an unknown one and suggest the nearest."""
    known = MemoryOptions.__annotations__
    for name in options:
        if name not in known:
            raise ConfigError(name, want=f"one of {', '.join(known)}", got=name, near=nearest(name, known))
    given = {name: value for name, value in options.items() if value is not None}
    mix = {name: given.pop(name) for name in ("weight", "k", "temperature") if name in given}
    return MemoryConfig(neighbours=KnnConfig(**mix), **given)  # type: ignore[arg-type]


@settings
class BuildMemoryConfig(Config):
    """How a memory is built.

    precision: of the keys: float16 or float32.
    window: sliding window in tokens; None: the model's context.
    stride: None: half a window, so that a key has at least as much context.
    most: tokens of the text; None: all.
    """

    precision: str = "float16"
    window: int | None = None
    stride: int | None = None
    most: Positive | None = None


class BuildMemoryOptions(TypedDict, total=False):
    """The fields of `BuildMemoryConfig` as keyword arguments."""

    precision: str
    window: int | None
    stride: int | None
    most: int | None


def build_memory(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str] | Shards,
    folder: str | Path,
    config: BuildMemoryConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Datastore:
    """Build a datastore of texts, each token with the state in which the model expects it, or continue a build.

    A text is read as an evaluation reads it, the end of each document included. `progress` is called with documents
    and bytes.
    """
    reader = _language_model(model)
    options = BuildOptions(
        tokenizer=tokenizer.fingerprint,
        start=tokenizer.special_tokens.document_start,
        windows=scoring_windows(reader, config.window, config.stride),
        precision=check_precision(config.precision),
        most=config.most,
        progress=progress,
    )
    return build_datastore(reader, documents_of(texts, tokenizer, Counts()), folder, options)


def with_memory(model: Model, tokenizer: Tokenizer, folder: str | Path, config: MemoryConfig) -> LanguageModel:
    """Return a model with the same weights that mixes in its nearest neighbours; the given one stays as it is."""
    reader = _language_model(model)
    datastore = open_memory(tokenizer, folder)
    return with_knn(reader, datastore, _search(reader, datastore, config), config.neighbours)


def open_memory(tokenizer: Tokenizer, folder: str | Path) -> Datastore:
    """Open a datastore; refuse that of another tokenizer."""
    datastore = open_datastore(folder)
    if datastore.record.tokenizer != tokenizer.fingerprint:
        raise ConfigError("memory", f"{folder} was built with another tokenizer; its values are other tokens here")
    return datastore


def _search(model: LanguageModel, datastore: Datastore, config: MemoryConfig) -> NeighbourSearch:
    if config.search == "index":
        return open_index(datastore, device_of(model), config.probes)
    return ExactSearch(datastore.keys, device_of(model))


def _language_model(model: Model) -> LanguageModel:
    return require(model, LanguageModel, UsageError(f"memory: want a language model, got {model.config.noun}"))
