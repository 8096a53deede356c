"""Prepare: documents to token shards in one pass, reading, encoding and writing at once, in memory that stays flat."""

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heddle.core import ConfigError, DamageError, DataError, HeddleError, decode, encode
from heddle.core.system import check_writable, lock_folder, parse_json, read_text, temporary_folder, write_json
from heddle.data.media import MediaFormat
from heddle.data.shards.encoding import DecodedMedia, EncodingResult, encode_all
from heddle.data.shards.label_sets import LabelSet, NoLabels, find_labels
from heddle.data.shards.media_shards import MediaWriter
from heddle.data.shards.shard_manifest import disk_faults
from heddle.data.shards.shard_writer import ShardWriter
from heddle.data.sources import (
    RECORD,
    ChatEncoder,
    CorpusConfig,
    Document,
    DocumentCounter,
    DocumentsChecksum,
    EncodedDocument,
    RejectedDocument,
    Split,
    SplitDocument,
)
from heddle.text.chat import TEMPLATE, load_template
from heddle.text.tokenizers import TOKENIZER, Tokenizer, load_tokenizer

FORMAT = 1

ProgressCallback = Callable[[int, int], None]  # documents and bytes so far


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data: `train` and `valid` shards.

    Of pairs, each holds `source` and `target`; of preference pairs, the chosen and the rejected answers in their place;
    of labelled texts `text`, `labels` and, where there is one, `second`; of media `target`, beside their arrays.
    """

    folder: Path
    fingerprint: str
    pairs: bool
    counter: DocumentCounter  # what became of the documents of both splits
    reused: bool = False
    tokenizer_fingerprint: str = ""  # of the tokenizer that made the ids
    template_hash: str | None = None  # of the chat template; None: there is none, or an earlier version prepared it
    held_out: str | None = None  # checksum of the text of `valid`; None: an earlier version prepared it
    labels: LabelSet | None = None  # of labelled texts
    second: bool = False  # whether labelled texts come in twos
    media: MediaFormat | None = None  # of sounds and the like: how their arrays are stored

    def shard_folders(self, split: Split) -> tuple[Path, ...]:
        """Return the folders of token shards of one split; the first has the texts, of pairs the sources."""
        if self.media is not None and self.labels is None:
            return (self.folder / split / "target",)
        names = ("source", "target") if self.pairs else ("",) if self.labels is None else ("text", "second")
        return tuple(self.folder / split / name for name in (names if self.second or self.pairs else names[:1]))

    @property
    def train(self) -> Path:
        """Return the folder of what to learn from."""
        return self.folder / Split.TRAIN

    @property
    def valid(self) -> Path:
        """Return the folder of what is held out."""
        return self.folder / Split.VALID

    @property
    def tokenizer(self) -> Path:
        """Return the file of the tokenizer that made the ids."""
        return self.folder / TOKENIZER

    @property
    def template(self) -> str | None:
        """Return the chat template that made them, where they were conversations."""
        found = load_template(self.folder)
        if self.template_hash is not None and (found is None or _hash(found) != self.template_hash):
            raise DamageError(f"{self.folder / TEMPLATE}: not the chat template that made the ids")
        return found

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the ids; refuse another in its place."""
        found = load_tokenizer(self.tokenizer)
        if found.fingerprint != self.tokenizer_fingerprint:
            raise DamageError(f"{self.tokenizer}: not the tokenizer that made the ids")
        return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def prepare(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    folder: Path,
    on_progress: ProgressCallback | None = None,
    template: str | None = None,
    examples: bool = False,
) -> Prepared:
    """Write a corpus as token shards, or return the folder as it is when nothing has changed since it was written.

    The folder appears at once and complete. A stale one is replaced; one that holds anything else is refused.
    Conversations are written by the template that the corpus names, or else by this one. `examples` stores texts
    without labels as if they had some.
    """
    chat_encoder = corpus.chat_encoder(tokenizer, template)
    fingerprint = corpus_fingerprint(corpus, tokenizer, chat_encoder, examples)
    with disk_faults(folder, "written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder.parent):
            found = _existing(folder, fingerprint)
        if found is not None:
            return found
        with temporary_folder(folder) as shop:
            new = shop / "new"
            new.mkdir()
            counter = DocumentCounter()
            labels = find_labels(corpus) if corpus.labelled else NoLabels() if examples else None
            writers = _Writers(new, tokenizer, fingerprint, labels)
            with (
                contextlib.closing(encode_all(tokenizer, chat_encoder, corpus.split_documents(counter))) as rows,
                writers,
            ):
                for split_documents, result in rows:
                    writers.add(split_documents, result, counter)
                    if on_progress is not None:
                        on_progress(writers.documents, writers.bytes)
                corpus.check_splits(writers.counts, counter)
            tokenizer.save(new / TOKENIZER)
            if chat_encoder is not None:
                (new / TEMPLATE).write_text(chat_encoder.template, encoding="utf-8")
            marks = tokenizer.fingerprint, None if chat_encoder is None else _hash(chat_encoder.template)
            found = Prepared(folder, fingerprint, writers.form in IN_TWOS, counter, False, *marks)
            made = writers.completed(replace(found, labels=labels))
            write_json(new / RECORD, _record(made, corpus))
            return _publish(new, made)


def open_prepared(folder: Path) -> Prepared | None:
    """Return a finished folder of prepared data, or None where there is none."""
    try:
        record = parse_json(read_text(folder / RECORD), str(folder / RECORD))
        if record["format"] != FORMAT or not (folder / Split.TRAIN).is_dir() or not (folder / Split.VALID).is_dir():
            return None
        marks = record["tokenizer"], record.get("template")
        counter = DocumentCounter.from_plain(record["ledger"])
        labels = None if record.get("labels") is None else decode(LabelSet, record["labels"])
        second = bool(record.get("second", False))
        media = None if record.get("media") is None else decode(MediaFormat, record["media"])
        known = folder, record["fingerprint"], record["pairs"], counter, True, *marks, record.get("held_out")
        return Prepared(*known, labels=labels, second=second, media=media)
    except (HeddleError, KeyError, TypeError, ValueError, AttributeError):
        return None


def corpus_fingerprint(
    corpus: CorpusConfig, tokenizer: Tokenizer, chat_encoder: ChatEncoder | None, examples: bool = False
) -> str:
    """Return a name for exactly these sources as they are now, this split, this tokenizer and this template."""
    plain = [FORMAT, corpus.identity(), [source.stamps() for source in corpus.every], tokenizer.fingerprint]
    if chat_encoder is not None:
        plain.append(chat_encoder.template)
    if examples and not corpus.labelled:
        plain.append("examples")
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def _record(made: Prepared, corpus: CorpusConfig) -> dict[str, Any]:
    marks: dict[str, Any] = {} if made.template_hash is None else {"template": made.template_hash}
    if made.labels is not None:
        marks |= {"labels": encode(made.labels), "second": made.second}
    if made.media is not None:
        marks |= {"media": encode(made.media)}
    return marks | {
        "format": FORMAT,
        "fingerprint": made.fingerprint,
        "tokenizer": made.tokenizer_fingerprint,
        "pairs": made.pairs,
        "corpus": encode(corpus),
        "ledger": made.counter.plain(),
        "held_out": made.held_out,
    }


def check_target(folder: Path) -> Prepared | None:
    """Return the prepared data that stand at a folder; refuse to replace anything else, or a place to write nothing at.

    `prepare` checks it too; check first where long work comes before it.
    """
    found = open_prepared(folder)
    if found is None:
        check_writable(folder)
    if found is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists and is not prepared data; choose another folder or remove it")
    return found


def _existing(folder: Path, fingerprint: str) -> Prepared | None:
    """Return what stands at a folder if it is this very data."""
    found = check_target(folder)
    return found if found is not None and found.fingerprint == fingerprint else None


def _publish(new: Path, made: Prepared) -> Prepared:
    """Put a finished folder in its place; where another process was first with the same data, that stays."""
    with lock_folder(made.folder.parent):
        found = _existing(made.folder, made.fingerprint)
        if found is not None:
            return found
        if made.folder.exists():
            made.folder.rename(new.with_name("old"))
        new.rename(made.folder)
    return made


# --- writing ----------------------------------------------------------------------------------------------------------


DocumentForm = Literal["texts", "pairs", "conversations", "preferences", "chat_preferences", "labelled", "media"]
IN_TWOS = ("pairs", "preferences", "chat_preferences")  # forms that are stored as two documents under one number


class _Writers:
    """The shard writers of both splits, made when the first document shows what there is to write."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, fingerprint: str, labels: LabelSet | None) -> None:
        self._labels, self.second = labels, False
        self._label_writers: dict[Split, ShardWriter] = {}
        self.media: MediaFormat | None = None
        self._media_writers: dict[Split, MediaWriter] = {}
        self._folder, self._tokenizer, self._fingerprint = folder, tokenizer, fingerprint
        self._stack = contextlib.ExitStack()
        self._open: dict[Split, list[tuple[ShardWriter, tuple[int, ...]]]] = {}  # with what stands before each text
        self.form: DocumentForm | None = None
        self.documents = self.bytes = 0
        self.counts = dict.fromkeys(Split, 0)
        self.held_out = DocumentsChecksum()

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, *fault: Any) -> None:
        self._stack.__exit__(*fault)

    def add(self, split_documents: SplitDocument, result: EncodingResult, counter: DocumentCounter) -> None:
        """Write one document, or the two texts of a pair under one number; count one that was rejected."""
        split, document = split_documents
        if split is Split.VALID:
            self.held_out.add(document)
        form = _form(document) if self._labels is None else "labelled"
        if self.form is None:
            self.second = document.pair is not None
            self.media = None if document.media is None else document.media.format
            self._start(form)
        if self.form != form:
            want = "either texts, pairs, preference pairs, conversations or media"
            raise ConfigError("sources", want=want, got=f"{self.form} and {form}")
        self._check_alike(document)
        bad = next((found for found in result if isinstance(found, RejectedDocument)), None)
        if bad is not None:  # of two sides neither is written
            counter.drop(bad.reason, f"{document.origin} ({bad.words})" if bad.words else document.origin)
            return
        if isinstance(result[0], DecodedMedia):
            self._media_writers[split].add(result[0].array)
        encoded = [found for found in result if isinstance(found, EncodedDocument)]
        for (writer, before), found in zip(self._open[split], encoded, strict=True):
            stored = np.concatenate([np.asarray(before, found.ids.dtype), found.ids]) if before else found.ids
            writer.add(stored, bytes=found.bytes, words=found.words, counts=found.counts, lost=found.lost)
            self.bytes += found.bytes
        if self._labels is not None:
            numbers = np.asarray(self._labels.encode(document, self._tokenizer), np.uint32)
            self._label_writers[split].add(numbers, bytes=0, words=0)
        self.documents += 1
        self.counts[split] += 1

    def completed(self, made: Prepared) -> Prepared:
        """Return the prepared data with what the documents turned out to be."""
        return replace(made, held_out=self.held_out.value, second=self.second, media=self.media)

    def _check_alike(self, document: Document) -> None:
        """Refuse pairs as examples, labelled texts of which only some have a label, and media of several formats."""
        if document.media is not None and document.media.format != self.media:
            raise ConfigError("sources", want=f"media that are all stored as {self.media}", got=document.media.format)
        if self._labels is None:
            return
        if document.target is not None:
            want = "texts, or texts with labels, because rows.kind is examples"
            raise ConfigError("sources", want=want, got=_form(document))
        if (document.pair is not None) != self.second:
            want = "a second text, as the first one has" if self.second else "one text, as the first one is"
            raise DataError(f"{document.origin}: want {want}")
        if document.label is None and not isinstance(self._labels, NoLabels):
            raise DataError(f"{document.origin}: want a label, as others have it, found none")

    def _start(self, form: DocumentForm) -> None:
        self.form = form
        for split in Split:
            folder, special_tokens = self._folder / split, self._tokenizer.special_tokens
            start = special_tokens.decoder_start
            if form == "pairs":
                source = self._writer(folder / "source", special_tokens.end), special_tokens.source.before
                self._open[split] = [source, (self._writer(folder / "target", start[0]), start[1:])]
            elif form == "media":
                assert self.media is not None
                self._media_writers[split] = self._media_writer(folder, self.media)
                self._open[split] = [(self._writer(folder / "target", start[0]), start[1:])]
            elif form in ("preferences", "chat_preferences"):  # conversations open with what their template writes
                begin = special_tokens.document_start[0] if form == "preferences" else special_tokens.end
                self._open[split] = [(self._writer(folder / name, begin), ()) for name in ("source", "target")]
            elif form == "labelled":
                names = ("text", "second") if self.second else ("text",)
                self._open[split] = [(self._writer(folder / name, special_tokens.end), ()) for name in names]
                self._label_writers[split] = self._label_writer(folder / "labels")
                if self.media is not None:
                    self._media_writers[split] = self._media_writer(folder, self.media)
            elif form == "conversations":  # they open with what their template writes
                self._open[split] = [(self._writer(folder, special_tokens.end), ())]
            else:
                self._open[split] = [
                    (self._writer(folder, special_tokens.document_start[0]), special_tokens.document_start[1:])
                ]

    def _media_writer(self, folder: Path, format: MediaFormat) -> MediaWriter:
        return self._stack.enter_context(MediaWriter(folder, format, self._fingerprint))

    def _label_writer(self, folder: Path) -> ShardWriter:
        """Return a writer of labels as numbers; each document of them closes with 0, as shards need it."""
        assert self._labels is not None
        writer = ShardWriter(folder, vocab=self._labels.values, end=0, fingerprint=self._fingerprint)
        return self._stack.enter_context(writer)

    def _writer(self, folder: Path, begin: int) -> ShardWriter:
        """Return a writer of documents that open with an id as a model reads them; what else does is stored."""
        known = self._tokenizer
        writer = ShardWriter(folder, vocab=known.vocab, end=known.end, fingerprint=self._fingerprint, begin=begin)
        return self._stack.enter_context(writer)


def _form(document: Document) -> DocumentForm:
    if document.conversation is not None:
        return "conversations" if document.rejected_conversation is None else "chat_preferences"
    if document.rejected is not None:
        return "preferences"
    if document.media is not None:
        return "media"
    return "texts" if document.target is None else "pairs"
