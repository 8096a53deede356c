"""Media files: a folder with a text beside each file, or a manifest (JSON lines, TSV: path, text, speaker, split)."""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from heddle.core import Config, DataError, Positive, decode, part, settings, within
from heddle.data.files import (
    UnreadableFile,
    file_extension,
    file_stamp,
    find_files,
    open_text,
    printable_path,
)
from heddle.data.media import ARRAYS, SOUNDS, Media, array_media, sound_media
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, read_bytes
from heddle.data.sources.labels import Label
from heddle.data.sources.records import numbered, parse_row

MANIFESTS = (".jsonl", ".ndjson", ".tsv")
LONGEST_LINE = 1 << 20
LONGEST_TEXT = 1 << 20  # bytes of the text beside a file
HEADER = 1 << 16
Cells = Mapping[str, object]
Seconds = Annotated[float, within("above 0 and at most 3600 seconds", lambda seconds: 0 < seconds <= 3600)]


@settings
class ManifestColumns(Config):
    """The names of a manifest's columns, or of the fields of its JSON lines; only the first two must be there.

    file: the path of the file, seen from the manifest's folder.
    text: the text that belongs to it.
    speaker: who speaks, or another group whose documents stay on one side of a split.
    split: which split the row belongs to.
    start: where in the file it begins: seconds of a sound, rows of an array.
    length: how long it is, in the same unit.
    """

    file: str = "path"
    text: str = "text"
    speaker: str = "speaker"
    split: str = "split"
    start: str = "start"
    length: str = "length"


@dataclass(frozen=True)
class MediaEntry:
    """One file with its text, and the part of the file that it is about."""

    origin: str
    path: Path
    text: str | SkipReason
    group: str = ""
    start: float = 0.0
    length: float | None = None


class MediaSource(SourceConfig):
    """What sources of media share: finding the files, their texts and, of a manifest, their speakers and parts.

    extensions: how the names of its files end.
    alone: whether a folder that also holds other files is no such source.
    beside: how the names of files end that may stand beside them.
    """

    extensions: ClassVar[tuple[str, ...]]
    alone: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = (".txt",)

    path: str
    split: str | None
    columns: ManifestColumns

    @classmethod
    def at(cls, path: str) -> SourceConfig | None:
        """Return the source, if a folder holds such files, or the first row of a manifest names one."""
        files = find_files(path)
        if files and all(file_extension(file).lower() in MANIFESTS for file in files):
            name = _first_file(files[0])
            files = [] if name is None else [Path(name)]
        endings = {file.suffix.lower() for file in files}
        others = endings - {*cls.extensions, *cls.beside} if cls.alone else set()
        return None if others or not endings & {*cls.extensions} else decode(cls, {"path": path})

    @abstractmethod
    def open(self, path: Path, start: float, length: float | None) -> Media:
        """Return the medium at a path, to be decoded later."""

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield one document for each file, or each row of a manifest."""
        for entry in self.entries(counter):
            counter.see()
            if isinstance(entry.text, SkipReason):
                counter.skip(entry.text, entry.origin)
            else:
                media = self.open(entry.path, entry.start, entry.length)
                yield Document(entry.text, entry.origin, entry.group, media=media, label=self.label(entry.text))

    def label(self, text: str) -> Label | None:
        """Return the label that the text of a file stands for; None: the text is what belongs to it."""
        return None

    def texts(self, path: Path) -> Sequence[str | SkipReason]:
        """Return the texts of a file in a folder: one, or why there is none."""
        return [text_beside(path)]

    def lines_beside(self, path: Path) -> list[str | SkipReason]:
        """Return the lines of the file of the same name that ends in .txt: each is a text for itself: a caption."""
        found = _read_beside(path)
        if isinstance(found, SkipReason):
            return [found]
        return [" ".join(line.split()) for line in found.split("\n") if line.strip()]

    def parts(self, path: Path) -> list[Path]:
        """Return the files that a medium consists of."""
        return [path]

    def media_paths(self) -> list[Path]:
        """Return the files, in order; of a manifest, each as often as it has rows."""
        return [entry.path for entry in self.entries(DocumentCounter())]

    def stamps(self) -> list[FileStamp]:
        """Return name, size and time of each file, of its text and of the manifest."""
        manifests = self._manifests()
        if manifests is not None:
            found = [*manifests, *(p for path in dict.fromkeys(self.media_paths()) for p in self.parts(path))]
        else:
            found = [p for path in self.files() for p in (*self.parts(path), _text_file(path))]
        return [file_stamp(path) for path in found]

    def _manifests(self) -> list[Path] | None:
        """Return the manifests that the path means; None: it means media."""
        found = find_files(self.path)
        chosen = [path for path in found if file_extension(path).lower() in MANIFESTS]
        return chosen if chosen and len(chosen) == len(found) else None

    def files(self) -> list[Path]:
        return [path for path in find_files(self.path) if path.suffix.lower() in self.extensions]

    def entries(self, counter: DocumentCounter) -> Iterator[MediaEntry]:
        """Yield what there is, with its text or why there is none; rows that cannot be read are counted."""
        manifests = self._manifests()
        if manifests is None:
            for path in self.files():
                texts = self.texts(path)
                group = os.path.relpath(path, self.path) if len(texts) > 1 else ""  # which stay on one side of a split
                yield from (MediaEntry(printable_path(path), path, text, group) for text in texts)
            return
        for manifest in manifests:
            rows = _tsv_rows if file_extension(manifest).lower() == ".tsv" else _json_rows
            for origin, cells in rows(manifest, counter):
                entry = self._entry(manifest, origin, cells)
                if entry is not None:
                    yield entry

    def _entry(self, manifest: Path, origin: str, cells: Cells | SkipReason) -> MediaEntry | None:
        """Return what a row of a manifest says; None: it belongs to another split."""
        if isinstance(cells, SkipReason):
            return MediaEntry(origin, manifest, cells)
        names = self.columns
        if self.split is not None and cells.get(names.split) != self.split:
            if names.split not in cells:
                listed = ", ".join(map(str, cells))[:120]
                raise DataError(
                    f"{origin}: no column {names.split!r} to choose the split {self.split} by; it has {listed}"
                )
            return None
        name, text = cells.get(names.file), cells.get(names.text)
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            return MediaEntry(origin, manifest, SkipReason.MISSING_FIELD)
        if not isinstance(text, str) or not text.strip():
            text = SkipReason.NO_TEXT
        elif isinstance(checked := read_bytes(text.encode("utf-8", "surrogatepass")), SkipReason):
            text = checked
        start, length = (_number(cells.get(column), origin, column) for column in (names.start, names.length))
        group = str(cells.get(names.speaker) or "")
        path = manifest.parent / Path(name).expanduser()
        if not group and not self.labelled:  # all captions of a picture stay on one side of a split
            shown = printable_path(Path(os.path.relpath(path, manifest.parent)))
            group = f"{shown} {start or 0.0:g} {length}"
        return MediaEntry(origin, path, text, group, start or 0.0, length)


def _first_file(manifest: Path) -> str | None:
    """Return what the first row of a manifest names in its column of files; None: it has no such column."""
    reader = _tsv_rows if file_extension(manifest).lower() == ".tsv" else _json_rows
    first = next((cells for _, cells in reader(manifest, DocumentCounter())), None)
    name = first.get(ManifestColumns().file) if isinstance(first, Mapping) else None
    return name if isinstance(name, str) else None


def text_beside(path: Path) -> str | SkipReason:
    """Return the text in the file of the same name that ends in .txt, or why there is none."""
    found = _read_beside(path)
    return found if isinstance(found, SkipReason) else " ".join(found.split())


def _text_file(path: Path) -> Path:
    return path.parent / f"{path.name}.txt" if path.is_dir() else path.with_suffix(".txt")


def _read_beside(path: Path) -> str | SkipReason:
    beside = _text_file(path)
    try:
        with open_text(beside) as stream:
            raw = stream.read(LONGEST_TEXT + 1)
    except UnreadableFile as fault:
        return SkipReason.NO_TEXT if not beside.exists() else fault.reason
    if len(raw) > LONGEST_TEXT:
        return SkipReason.TOO_LONG
    found = read_bytes(raw)
    return SkipReason.NO_TEXT if found is SkipReason.EMPTY else found


def _number(cell: object, origin: str, column: str) -> float | None:
    """Return the number in a cell; None: there is none."""
    if cell is None or cell == "":
        return None
    try:
        found = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found < 1e9:
        raise DataError(f"{origin}: {column}: want a number of at least 0, got {str(cell)[:30]!r}")
    return found


def _json_rows(manifest: Path, counter: DocumentCounter) -> Iterator[tuple[str, Cells | SkipReason]]:
    for origin, raw in _lines(manifest, counter):
        row = parse_row(raw)
        yield origin, row if isinstance(row, dict | SkipReason) else SkipReason.MISSING_FIELD


def _tsv_rows(manifest: Path, counter: DocumentCounter) -> Iterator[tuple[str, Cells | SkipReason]]:
    header: Sequence[str] | None = None
    for origin, raw in _lines(manifest, counter):
        try:
            cells = raw.decode().split("\t")
        except UnicodeDecodeError:
            yield origin, SkipReason.NOT_UTF8
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
        else:
            yield origin, dict(zip(header, cells, strict=False))


def _lines(manifest: Path, counter: DocumentCounter) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a manifest; those that cannot be read are counted, the others when they are used."""
    ledger = DocumentCounter()
    yield from numbered(manifest, LONGEST_LINE, ledger)
    for reason, count in ledger.skipped.items():
        if reason is not SkipReason.EMPTY:
            for _ in range(count):
                counter.see()
                counter.skip(reason, ledger.examples[reason])


@part("sound")
class SoundSource(MediaSource):
    """Sounds with transcripts: a folder with a text beside each file, or a manifest that names files and texts.

    path: a folder, or a manifest (.jsonl, or .tsv with a header).
    split: which rows of a manifest are read, by its column of splits; null: all.
    columns: the names of the manifest's columns.
    sample_rate: samples a second; sounds at another rate are resampled.
    longest: seconds; longer sounds are left out and counted.
    """

    extensions = SOUNDS

    path: str
    split: str | None = None
    columns: ManifestColumns = ManifestColumns()
    sample_rate: Positive = 16_000
    longest: Seconds = 60.0

    @property
    def medium(self) -> str | None:
        """Return that they are sounds."""
        return "sound"

    def open(self, path: Path, start: float, length: float | None) -> Media:
        return sound_media(path, self.sample_rate, start, length, self.longest)


@part("array")
class ArraySource(MediaSource):
    """Features that another program computed, with texts: files of NumPy [rows, features] in place of sounds.

    path: a folder with a text beside each .npy file, or a manifest (.jsonl, or .tsv with a header).
    split: which rows of a manifest are read, by its column of splits; null: all.
    columns: the names of the manifest's columns; start and length count rows of the array.
    """

    extensions = ARRAYS
    alone = True

    path: str
    split: str | None = None
    columns: ManifestColumns = ManifestColumns()

    @property
    def medium(self) -> str | None:
        """Return that they are arrays."""
        return "array"

    def open(self, path: Path, start: float, length: float | None) -> Media:
        return array_media(path, start, length)
