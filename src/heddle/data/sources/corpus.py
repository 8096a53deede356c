"""Corpus: sources, train/validation split and deduplication, as one config."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from heddle.core import (
    Config,
    ConfigError,
    DataError,
    Purpose,
    encode,
    key,
    part,
    replace,
    settings,
    within,
)
from heddle.data.files import find_files
from heddle.data.sources.builtin import BuiltinSource
from heddle.data.sources.chat_encoding import ChatEncoder, Learn
from heddle.data.sources.chats import ChatSource
from heddle.data.sources.documents import (
    DigestSet,
    Document,
    DocumentCounter,
    DocumentsChecksum,
    SkipReason,
    SourceConfig,
    absolute_path,
)
from heddle.data.sources.labels import LabelKind
from heddle.data.sources.preferences import ChatPreferenceSource
from heddle.data.sources.prepared import PreparedSource
from heddle.data.sources.readers import TextSource
from heddle.text.chat import find_template
from heddle.text.tokenizers import Tokenizer, split_into_chunks

BUFFER = 256  # documents whose digests are looked up together
BUFFER_LETTERS = 1 << 20
SAMPLE = 1 << 25  # characters from which a tokenizer learns: more changes its vocabulary little
FEW_FILES = 200  # files; of fewer, one in twenty by its hash may by chance be none
LABELLED = 0.1  # share of labelled documents, and of sounds and the like, that is held out, for there are few
GOLDEN = 0x9E3779B97F4A7C15  # multiples of it, modulo 2**64, fill the range evenly


class Split(StrEnum):
    """Which part of a corpus a document is in."""

    TRAIN = "train"
    VALID = "valid"


Sources = tuple[SourceConfig, ...]
SplitDocument = tuple[Split, Document]
DocumentReader = Callable[[Sources, DocumentCounter, DigestSet], Iterator[Document]]


class SplitConfig(Config):
    """Family of splits: how documents are held out for validation."""

    @abstractmethod
    def divide(self, sources: Sources, read: DocumentReader, counter: DocumentCounter) -> Iterator[SplitDocument]:
        """Yield each document with its split."""

    def absolute(self) -> Self:
        """Return the split with absolute paths."""
        return self

    def resolve(self, sources: Sources) -> "SplitConfig":
        """Return the split that this one stands for; most stand for themselves."""
        return self

    def with_columns(self, wanted: LabelKind | None) -> Self:
        """Return the split whose own source, if it has one, has the columns that hold what is wanted."""
        return self


Fraction = Annotated[float, within("above 0 and below 1", lambda fraction: 0 < fraction < 1)]


@part("hash")
class HashSplit(SplitConfig):
    """Hold out whole documents by a keyed hash of each: adding data never moves a document.

    fraction: share of the documents that is held out for validation.
    seed: keys the hash; another seed holds out other documents.
    """

    fraction: Fraction = 0.05
    seed: int = 0

    def divide(self, sources: Sources, read: DocumentReader, counter: DocumentCounter) -> Iterator[SplitDocument]:
        """Yield documents in their order, each placed by its group's name, or its content."""
        salt, bound = key(self.seed, Purpose.DATA, "held out"), self.fraction * 2.0**64
        for document in read(sources, counter, DigestSet()):
            held = (document.split_digest ^ salt) * GOLDEN % (1 << 64) < bound
            yield (Split.VALID if held else Split.TRAIN), document


@part("tail")
class TailSplit(SplitConfig):
    """Hold out the last fraction of all characters, as is usual for one long text; the corpus is read twice.

    fraction: share of all characters, at the end, that is held out for validation.
    """

    fraction: Fraction = 0.1

    def divide(self, sources: Sources, read: DocumentReader, counter: DocumentCounter) -> Iterator[SplitDocument]:
        """Yield documents in their order; a text that straddles the edge becomes two, all else goes whole."""
        total = sum(len(document.text) for document in read(sources, DocumentCounter(), DigestSet()))
        left = int(total * (1 - self.fraction))
        for document in read(sources, counter, DigestSet()):
            size = len(document.text)
            if 0 < left < size and document.divisible:
                yield Split.TRAIN, Document(document.text[:left], document.origin, document.group)
                yield Split.VALID, Document(document.text[left:], document.origin, document.group)
            else:
                yield (Split.TRAIN if left > 0 else Split.VALID), document
            left -= size


@part("file")
class FileSplit(SplitConfig):
    """Hold out a source of its own; a training document that is also in it is a duplicate.

    source: where the held-out documents come from.
    """

    source: SourceConfig

    def absolute(self) -> Self:
        """Return the split with absolute paths."""
        return replace(self, source=self.source.absolute())

    def with_columns(self, wanted: LabelKind | None) -> Self:
        """Return the split with the columns of its source."""
        return replace(self, source=self.source.resolve(wanted))

    def divide(self, sources: Sources, read: DocumentReader, counter: DocumentCounter) -> Iterator[SplitDocument]:
        """Yield what is held out first, so that its copies are known before training documents come."""
        seen = DigestSet()
        for document in read((self.source,), counter, seen):
            yield Split.VALID, document
        for document in read(sources, counter, seen):
            yield Split.TRAIN, document


@part("auto")
class AutoSplit(SplitConfig):
    """The split that suits the sources: the tail of one or few texts, otherwise whole documents by a hash of each.

    Texts are few where each file is a document, and there are fewer than 200.

    fraction: share of the text that is held out; None: the default of the split.
    seed: random seed of the hash.
    """

    fraction: Fraction | None = None
    seed: int = 0

    def divide(self, sources: Sources, read: DocumentReader, counter: DocumentCounter) -> Iterator[SplitDocument]:
        """Yield documents as the split does that suits them."""
        return self.resolve(sources).divide(sources, read, counter)

    def resolve(self, sources: Sources) -> SplitConfig:
        """Return that split."""
        texts = [source for source in sources if isinstance(source, TextSource) and source.split == "file"]
        if len(texts) == len(sources) and sum(len(find_files(text.path, text.pattern)) for text in texts) < FEW_FILES:
            return TailSplit() if self.fraction is None else TailSplit(fraction=self.fraction)
        builtin = all(isinstance(source, BuiltinSource) for source in sources)
        few = any(source.labelled or source.medium is not None for source in sources)
        usual = 0.07 if builtin else LABELLED if few else HashSplit.fraction
        return HashSplit(fraction=self.fraction or usual, seed=self.seed)


@settings
class CorpusConfig(Config):
    """What to learn from: sources, a split, and which documents to leave out.

    sources: where documents come from; several are read one after the other.
    split: which documents are held out for validation.
    shortest: fewest characters of a document; shorter ones are left out.
    unique: whether exact copies of a document count once.
    template: chat template of conversations: a built-in one or a file; None: that of the model.
    learn: what counts towards the loss in conversations: the answers, or all.
    """

    sources: Sources = (BuiltinSource(),)
    split: SplitConfig = AutoSplit()
    shortest: int = 1
    unique: bool = True
    template: str | None = None
    learn: Learn = "answers"

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("sources", want="at least one", got="none")
        if self.template is not None and not self.chats:
            raise ConfigError("template", want="null, because no source is of the kind chat", got=self.template)

    @property
    def every(self) -> Sources:
        """Return all sources, the one that is held out included."""
        return (*self.sources, self.split.source) if isinstance(self.split, FileSplit) else self.sources

    def identity(self) -> dict[str, Any]:
        """Return what tells the corpus from others, as plain data."""
        held = {"source": self.split.source.identity()} if isinstance(self.split, FileSplit) else {}
        sources = [source.identity() for source in self.sources]
        return encode(self) | {"sources": sources, "split": encode(self.split) | held}

    def absolute(self) -> Self:
        """Return the corpus with absolute paths, so that it means the same files in any working folder."""
        template = self.template
        if template is not None and Path(template).is_file():
            template = absolute_path(template)
        sources = tuple(source.absolute() for source in self.sources)
        return replace(self, sources=sources, split=self.split.absolute(), template=template)

    def resolve(self, wanted: LabelKind | None = None) -> Self:
        """Return the corpus with the split that its own stands for, and the columns that hold what is wanted."""
        if self.prepared is not None:
            return self
        sources = tuple(source.resolve(wanted) for source in self.sources)
        for number, source in enumerate(sources):
            if wanted not in (None, "target", "texts") and not source.labelled:
                want = f"one with {wanted}: CSV, TSV or JSON lines with named columns, conll or squad"
                raise ConfigError(f"sources.{number}", want=want, got=source.kind)
        return replace(self, sources=sources, split=self.split.resolve(sources).with_columns(wanted))

    @property
    def labelled(self) -> bool:
        """Tell whether this corpus holds labelled documents."""
        return any(source.labelled for source in self.every)

    @property
    def edits(self) -> bool:
        """Tell whether this corpus holds pairs with prototypes, for an editor."""
        return any(source.edits for source in self.every)

    @property
    def medium(self) -> str | None:
        """Return the medium of this corpus: sound, array; None: it holds text alone."""
        return next((source.medium for source in self.every if source.medium is not None), None)

    @property
    def chats(self) -> bool:
        """Say whether this corpus holds conversations."""
        return any(isinstance(source, ChatSource | ChatPreferenceSource) for source in self.every)

    def chat_encoder(self, tokenizer: Tokenizer, template: str | None) -> ChatEncoder | None:
        """Return the encoder of conversations, by the corpus's own template or else this one; None: there are none."""
        if not self.chats:
            return None
        if self.template is not None:
            template = find_template(self.template, tokenizer)
        if template is None:
            want = "a chat template, since the model has none: chatml, llama2, llama3, plain or a file"
            raise ConfigError("template", want=want, got=None)
        return ChatEncoder(template, tokenizer, self.learn)

    @property
    def prepared(self) -> Path | None:
        """Return the folder of prepared data that this corpus is, if it is one."""
        source = self.sources[0]
        return Path(source.path).expanduser() if len(self.sources) == 1 and isinstance(source, PreparedSource) else None

    def split_documents(self, counter: DocumentCounter) -> Iterator[SplitDocument]:
        """Yield the documents that are kept, each with its split."""
        return self.split.divide(self.sources, self._read, counter)

    def held_out(self, counter: DocumentCounter | None = None) -> Iterator[Document]:
        """Yield the validation documents as text, in the order of the shards; `counter` counts both splits."""
        split_documents = self.split_documents(DocumentCounter() if counter is None else counter)
        return (document for split, document in split_documents if split is Split.VALID)

    def held_out_checksum(self) -> str:
        """Return the checksum of the validation documents as they are now."""
        checksum = DocumentsChecksum()
        for document in self.held_out():
            checksum.add(document)
        return checksum.value

    def sample(self, limit: int = SAMPLE, counter: DocumentCounter | None = None) -> Iterator[str]:
        """Yield training text for a tokenizer: all of it, or a limited number of characters taken evenly.

        A corpus without any is refused, saying what became of its documents.
        """
        return _sampled(self._training_texts(DocumentCounter() if counter is None else counter), limit)

    def check_splits(self, counts: dict[Split, int], counter: DocumentCounter) -> None:
        """Refuse a corpus, read to its end, that has no documents for one of these splits."""
        if not counter.balanced:
            raise AssertionError(f"documents lost count: {counter}")
        if not counter.kept:
            raise DataError(f"no documents to learn from: {counter}")
        for split, count in counts.items():
            if not count:
                fix = (
                    "hold out more (data.split.fraction), the tail (data.split.kind=tail), or a file"
                    if split is Split.VALID
                    else "hold out less"
                )
                lost = f"documents: {counter}; " if counter.faulty else ""
                raise DataError(f"{lost}split {self.split.kind}: none of {counter.kept} documents for {split}; {fix}")

    def _training_texts(self, counter: DocumentCounter) -> Iterator[str]:
        count = 0
        for split, document in self.split_documents(counter):
            if split is Split.TRAIN:
                count += 1
                yield from document.texts
        self.check_splits({Split.TRAIN: count}, counter)

    def _read(self, sources: Sources, counter: DocumentCounter, seen: DigestSet) -> Iterator[Document]:
        for source in sources:
            for batch in _buffered(source.documents(counter)):
                fresh = seen.fresh([d.digest for d in batch]) if self.unique else [True] * len(batch)
                for document, new in zip(batch, fresh, strict=True):
                    if len(document.text) < self.shortest:
                        counter.skip(SkipReason.TOO_SHORT, document.origin)
                    elif not new:
                        counter.skip(SkipReason.DUPLICATE, document.origin)
                    else:
                        counter.keep()
                        yield document


def _buffered(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    letters = 0
    for document in documents:
        batch.append(document)
        letters += len(document.text)
        if len(batch) >= BUFFER or letters >= BUFFER_LETTERS:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


def _sampled(texts: Iterator[str], limit: int) -> Iterator[str]:
    """Keep an even sample in bounded memory and one pass: whenever it grows too large, half of it goes."""
    share, size, number = 1 << 64, 0, 0
    kept: list[tuple[int, str]] = []
    for text in texts:
        for chunk in split_into_chunks(text):
            rank = number * GOLDEN % (1 << 64)
            number += 1
            if rank < share:
                kept.append((rank, chunk))
                size += len(chunk)
        while size > limit and len(kept) > 1:
            share //= 2
            kept = [(rank, chunk) for rank, chunk in kept if rank < share]
            size = sum(len(chunk) for _, chunk in kept)
    return (chunk for _, chunk in kept)
