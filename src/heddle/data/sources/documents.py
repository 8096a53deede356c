"""Documents: what readers yield, the counter of documents kept and skipped, and deduplication by digests."""

import glob
import hashlib
import json
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, encode, replace
from heddle.data.files import FileStamp, SkipReason
from heddle.data.media import Media
from heddle.data.sources.labels import Label, LabelKind

CONTROLS = bytes(b for b in range(32) if b not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
CONTROL_SHARE = 0.1  # beyond this share of control characters a document is not text


@dataclass(frozen=True)
class Conversation:
    """The messages of a conversation, and the tools that it may use."""

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[object, ...] | None = None

    @cached_property
    def plain(self) -> str:
        """Return all of it as canonical JSON."""
        return json.dumps([self.messages, self.tools], sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Document:
    """A text and where it came from; `target` makes it a pair, `conversation` messages, `label` a labelled document.

    `rejected` makes it a preference pair: the answer that is worse than the target, to the same prompt, and
    `rejected_conversation` one of conversations. A labelled document may have a second text, `pair`; a pair a
    `prototype`, which an editor reads after the text, and which may be empty. `media` makes it a sound or the like, of
    which the text is the transcript. Documents of one `group` stay on one side of a split, and so does a document whose
    text is the group's name.
    """

    text: str
    origin: str
    group: str = ""
    target: str | None = None
    conversation: Conversation | None = None
    pair: str | None = None
    label: Label | None = None
    rejected: str | None = None
    prototype: str | None = None
    rejected_conversation: Conversation | None = None
    media: Media | None = None

    @cached_property
    def digest(self) -> int:
        """Return a 64-bit hash of the content."""
        hashed = hashlib.blake2b(self.text.encode(), digest_size=8)
        if self.target is not None:
            hashed.update(b"\xff" + self.target.encode())  # no UTF-8 text holds the byte 0xff
        if self.conversation is not None:
            hashed.update(b"\xfe" + self.conversation.plain.encode())
        if self.pair is not None:
            hashed.update(b"\xfd" + self.pair.encode())
        if self.label is not None:
            hashed.update(b"\xfc" + self.label.plain.encode())
        if self.rejected is not None:
            hashed.update(b"\xfb" + self.rejected.encode())
        if self.prototype is not None:
            hashed.update(b"\xfa" + self.prototype.encode())
        if self.rejected_conversation is not None:
            hashed.update(b"\xf9" + self.rejected_conversation.plain.encode())
        if self.media is not None:
            hashed.update(b"\xf8" + self.media.digest)
        return int.from_bytes(hashed.digest(), "little")

    @property
    def divisible(self) -> bool:
        """Tell whether it is a text alone, which may be divided in two."""
        return self.target is None and self.conversation is None and self.label is None and self.media is None

    @property
    def texts(self) -> list[str]:
        """Return its texts: one, two where it is a pair or has a second one, three of a preference pair."""
        return [text for text in (self.text, self.target, self.rejected, self.pair) if text is not None]

    @property
    def split_digest(self) -> int:
        """Return what places the document in a split: its group, its medium, or its content without the label."""
        if self.group:
            return Document(self.group, "").digest
        if self.prototype is not None:
            return Document(self.text, "", target=self.target).digest
        if self.media is not None:  # so that all captions of a picture stay on one side
            return Document("", "", media=self.media).digest
        return self.digest if self.label is None else Document(self.text, "", pair=self.pair).digest


class DocumentCounter:
    """Counts documents seen, kept, and skipped by reason; in the end seen = kept + skipped."""

    def __init__(self) -> None:
        self.seen = 0
        self.kept = 0
        self.skipped: Counter[SkipReason] = Counter()
        self.examples: dict[SkipReason, str] = {}

    def see(self) -> None:
        """Count a document that was read, before it is kept or skipped."""
        self.seen += 1

    def keep(self) -> None:
        """Count a document as used."""
        self.kept += 1

    def skip(self, reason: SkipReason, origin: str) -> None:
        """Count a document as skipped; the first of each reason is kept as an example."""
        self.skipped[reason] += 1
        self.examples.setdefault(reason, origin)

    def drop(self, reason: SkipReason, origin: str) -> None:
        """Count a document as skipped that had been counted as kept."""
        self.kept -= 1
        self.skip(reason, origin)

    @property
    def balanced(self) -> bool:
        """Tell whether every document seen was kept or skipped."""
        return self.seen == self.kept + self.skipped.total()

    def plain(self) -> dict[str, object]:
        """Return the counts as plain data."""
        return {
            "seen": self.seen,
            "kept": self.kept,
            "skipped": {str(reason): count for reason, count in sorted(self.skipped.items())},
            "examples": {str(reason): origin for reason, origin in sorted(self.examples.items())},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the counter whose `plain` this is."""
        counter = cls()
        counter.seen, counter.kept = int(plain["seen"]), int(plain["kept"])
        counter.skipped.update({SkipReason(reason): int(count) for reason, count in plain["skipped"].items()})
        counter.examples |= {SkipReason(reason): str(origin) for reason, origin in plain["examples"].items()}
        return counter

    @property
    def faulty(self) -> bool:
        """Tell whether a document was skipped because something is wrong with it."""
        return any(reason.fault for reason in self.skipped)

    def __str__(self) -> str:
        """Return the counts as a line: `4 seen, 1 kept, 3 skipped (3 bad json, the first at a.jsonl:2)`."""
        reasons = [
            f"{count:,} {reason.words}, the first at {self.examples[reason]}"
            for reason, count in self.skipped.most_common()
        ]
        skipped = f", {self.skipped.total():,} skipped ({'; '.join(reasons)})" if reasons else ""
        return f"{self.seen:,} seen, {self.kept:,} kept{skipped}"


class DocumentsChecksum:
    """A checksum of documents in their order, by which held-out text is known again."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, document: Document) -> None:
        """Add a document's content; where it came from does not matter."""
        self._hash.update(document.digest.to_bytes(8, "little"))

    @property
    def value(self) -> str:
        """Return the checksum."""
        return self._hash.hexdigest()[:32]


class SourceConfig(Config):
    """Family of sources: where documents come from.

    path_fields: the fields that may hold a path.
    later_fields: fields that came after the first version; at their defaults, fingerprints are as they were without.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    later_fields: ClassVar[tuple[str, ...]] = ("encoding",)

    @classmethod
    def at(cls, path: str) -> "SourceConfig | None":
        """Return the source of this kind that a plain path means, where its files alone tell so, as media do."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return what tells the source from others, as plain data."""
        defaults = {field.name: field.default for field in fields(self)}  # type: ignore[arg-type]
        plain = encode(self)
        return {k: v for k, v in plain.items() if k not in self.later_fields or v != defaults[k]}

    @property
    def labelled(self) -> bool:
        """Tell whether its documents have labels, or second texts."""
        return False

    @property
    def edits(self) -> bool:
        """Tell whether its documents are pairs with prototypes, for an editor."""
        return False

    @property
    def medium(self) -> str | None:
        """Return the medium of its documents, such as sound; None: they are texts."""
        return None

    def absolute(self) -> Self:
        """Return the source with absolute paths, so that it means the same files in any working folder."""
        paths = {name: value for name, value in encode(self).items() if name in self.path_fields}
        return replace(self, **{name: absolute_path(value) for name, value in paths.items()})

    def resolve(self, wanted: LabelKind | None) -> "SourceConfig":
        """Return the source with the columns that hold what an objective wants, found where they are not named."""
        return self

    @abstractmethod
    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield documents in a fixed order; each one is counted as seen, then skipped or yielded."""

    @abstractmethod
    def stamps(self) -> list[FileStamp]:
        """Return what the source holds now, so that a change can be noticed without reading it."""


def absolute_path(path: str) -> str:
    """Return a path or a pattern of paths from the root on."""
    here = os.path.expanduser(path)
    if glob.has_magic(here) and not os.path.lexists(here) and not os.path.isabs(here):
        return os.path.join(glob.escape(os.getcwd()), here)  # the folder's own name is no pattern
    return os.path.abspath(here)


class DigestSet:
    """A set of 64-bit digests, for exact deduplication: sorted runs of eight bytes each, merged into few."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def fresh(self, digests: list[int]) -> NDArray[np.bool_]:
        """Return which digests are new, and add them; of equal ones in the list the first is new."""
        values, first = np.unique(np.array(digests, np.uint64), return_index=True)
        new = np.ones(len(values), np.bool_)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, values), len(run) - 1)
            new &= run[place] != values
        mask = np.zeros(len(digests), np.bool_)
        mask[first[new]] = True
        self._add(values[new])
        return mask

    def _add(self, run: NDArray[np.uint64]) -> None:
        if len(run):
            self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            joined = np.concatenate([self._runs.pop(), self._runs.pop()])
            joined.sort(kind="stable")  # two sorted runs: a merge
            self._runs.append(joined)


def read_bytes(raw: bytes) -> str | SkipReason:
    """Return a document's text, or why it has none: binary is what holds NUL or many other control characters."""
    if b"\0" in raw:
        return SkipReason.BINARY
    if len(raw) - len(raw.translate(None, CONTROLS)) > CONTROL_SHARE * len(raw):
        return SkipReason.BINARY
    try:
        text = raw.replace(b"\r\n", b"\n").decode()  # line ends of Windows are no text
    except UnicodeDecodeError:
        return SkipReason.NOT_UTF8
    return SkipReason.EMPTY if not text or text.isspace() else text


def check_text(text: str) -> SkipReason | None:
    """Return why a text from a table or a JSON line cannot be used, if it cannot."""
    if not text or text.isspace():
        return SkipReason.EMPTY
    if "\0" in text:
        return SkipReason.BINARY
    try:
        text.encode()
    except UnicodeEncodeError:
        return SkipReason.NOT_UTF8
    return None
