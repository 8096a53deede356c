"""The store: checkpoints in a folder, each saved whole or not at all, verified before use, pruned by age and by merit.

A save writes a hidden folder, syncs it, and renames it; a removal renames first and deletes after. So at every instant
a folder named `step-…` is complete, and whatever a dead process left behind is hidden and known by its name.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from heddle.checkpoints.store.background import Background
from heddle.checkpoints.store.checkpoint import Checkpoint, open_checkpoint
from heddle.checkpoints.store.disk import Disk, LocalDisk
from heddle.checkpoints.store.manifest import MANIFEST, FileDigest, new_manifest, read_manifest, write_manifest
from heddle.checkpoints.store.snapshot import FrozenSnapshot, Snapshot, freeze
from heddle.core import ConfigError, DamageError, EnvironmentFault, HeddleError

FOLDER = re.compile(r"step-([0-9]{8,15})(?:-([0-9]{1,6}))?")  # the second number: a step saved again
HIDDEN = re.compile(r"\.(?:saving|gone)-([0-9]{1,9})-[0-9a-f]+")
_in_use: set[str] = set()  # names of hidden folders that this process is at work on


class DamagedCheckpoint(NamedTuple):
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


class CheckpointEntry(NamedTuple):
    """A checkpoint as its manifest tells it, its files not yet compared."""

    path: Path
    step: int
    metric: float | None


class Store:
    """Saves and finds the checkpoints of one run; reading never writes."""

    def __init__(
        self,
        folder: Path,
        keep_last: int = 3,
        keep_best: int = 1,
        background: bool = False,
        disk: Disk | None = None,
    ) -> None:
        for name, number, least in (("keep_last", keep_last, 1), ("keep_best", keep_best, 0)):
            if number < least:
                raise ConfigError(name, want=f"{least} or more", got=number)
        self.folder, self.keep_last, self.keep_best = Path(folder), keep_last, keep_best
        self.damaged: tuple[DamagedCheckpoint, ...] = ()  # what the latest search passed over
        self._disk: Disk = disk if disk is not None else LocalDisk()
        self._background = Background() if background else None
        self._swept = False

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot) -> Path:
        """Save a snapshot as it is at this moment, and return its folder.

        In the background the folder appears later, when all of it is on disk; a failure is raised by the next call.
        """
        self.wait()
        frozen = freeze(snapshot, copy=self._background is not None)
        target = self._target(frozen.step)
        if self._background is None:
            self._save(frozen, target)
        else:
            self._background.start(lambda: self._save(frozen, target))
        return target

    def wait(self) -> None:
        """Wait for a save in the background, and raise its failure."""
        if self._background is not None:
            self._background.wait()

    def _target(self, step: int) -> Path:
        """Name the new folder. A step saved again gets a number: swapping two folders could not be done in one step."""
        taken = [again for path, number, again in self._folders() if number == step]
        name = f"step-{step:08d}"
        return self.folder / (f"{name}-{max(taken) + 1}" if taken else name)

    def _save(self, frozen: FrozenSnapshot, target: Path) -> None:
        try:
            if not self.folder.is_dir():
                self._disk.make(self.folder)
                self._disk.sync_folder(self.folder.parent)
            if not self._swept:
                self.sweep()
            self._write(frozen, target)
        except OSError as error:
            raise EnvironmentFault(f"{target}: not saved: {_fault(error)}; older checkpoints are untouched") from error
        try:
            self._prune(target, frozen.step)
        except OSError as error:
            raise EnvironmentFault(f"{target}: saved, but older ones could not be removed: {_fault(error)}") from error

    def _write(self, frozen: FrozenSnapshot, target: Path) -> None:
        with self._hidden("saving") as hidden:
            try:
                self._disk.make(hidden)
                digests = {name: self._write_file(hidden / name, blocks) for name, blocks in frozen.files()}
                manifest = write_manifest(new_manifest(frozen.step, frozen.metric, digests))
                self._write_file(hidden / MANIFEST, [memoryview(manifest)])
                self._disk.sync_folder(hidden)
                self._disk.rename(hidden, target)
            except BaseException:
                with contextlib.suppress(OSError):  # the first fault is the one to tell
                    self._disk.remove(hidden)
                raise
        self._disk.sync_folder(self.folder)

    def _write_file(self, path: Path, blocks: Iterable[memoryview]) -> FileDigest:
        """Write one file, hashing the bytes that were meant rather than those that came back from the disk."""
        digest, size = hashlib.sha256(), 0
        with self._disk.create(path) as file:
            for block in blocks:
                self._disk.write(file, block)
                digest.update(block)
                size += len(block)
            self._disk.sync(file)
        return FileDigest(bytes=size, sha256=digest.hexdigest())

    # --- finding ------------------------------------------------------------------------------------------------------

    def newest(self, step: int | None = None) -> Checkpoint | None:
        """Open the newest checkpoint that verifies, at or before a step if one is given; `damaged` names the others."""
        self._join()
        folders = [f for f in self._folders() if step is None or f[1] <= step]
        return self._first_good((path, number) for path, number, _ in reversed(folders))

    def best(self) -> Checkpoint | None:
        """Open the checkpoint of lowest metric that verifies; `damaged` names better ones that do not."""
        ranked = sorted(reversed(self.list()), key=_metric_or_infinity)
        return self._first_good((entry.path, entry.step) for entry in ranked if entry.metric is not None)

    def list(self) -> tuple[CheckpointEntry, ...]:
        """Return every checkpoint whose manifest is whole, oldest first."""
        self._join()
        return tuple(self._entries())

    def _first_good(self, folders: Iterable[tuple[Path, int]]) -> Checkpoint | None:
        passed: list[DamagedCheckpoint] = []
        found = None
        for path, step in folders:
            try:
                found = _open(path, step)
                break
            except DamageError as error:
                if path.exists():  # else another process has pruned it meanwhile
                    passed.append(DamagedCheckpoint(path, str(error)))
        self.damaged = tuple(passed)
        return found

    def _folders(self) -> Sequence[tuple[Path, int, int]]:
        """Return each checkpoint folder with its step and how often that step was saved before, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = [(path, FOLDER.fullmatch(path.name)) for path in self.folder.iterdir()]
        found = [(path, int(match[1]), int(match[2] or 1)) for path, match in matches if match]
        return sorted(found, key=lambda item: item[1:])

    def _entries(self) -> Iterator[CheckpointEntry]:
        for path, step, _ in self._folders():
            with contextlib.suppress(HeddleError):  # what cannot be read is told by `newest`, and never removed
                manifest, _ = read_manifest(path)
                if manifest.step == step:
                    yield CheckpointEntry(path, step, manifest.metric)

    def _join(self) -> None:
        if self._background is not None:
            self._background.join()

    # --- removing -----------------------------------------------------------------------------------------------------

    def _prune(self, saved: Path, step: int) -> None:
        known = {damage.path for damage in self.damaged}
        entries = [entry for entry in self._entries() if entry.path not in known]
        older = [entry for entry in entries if entry.path != saved and entry.step != step]
        keep = {saved} | {entry.path for entry in older[max(0, len(older) - self.keep_last + 1) :]}
        ranked = sorted((e for e in reversed(entries) if e.metric is not None), key=_metric_or_infinity)
        keep |= {entry.path for entry in ranked[: self.keep_best]}
        for entry in entries:
            if entry.path not in keep:
                self._remove(entry.path)

    def _remove(self, path: Path) -> None:
        with self._hidden("gone") as hidden:
            self._disk.rename(path, hidden)
            self._disk.sync_folder(self.folder)
            self._disk.remove(hidden)

    def sweep(self) -> None:
        """Remove the hidden folders of processes that have died; the first save does so by itself."""
        self._swept = True
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            match = HIDDEN.fullmatch(path.name)
            if match and path.name not in _in_use and _has_ended(int(match[1])):
                with contextlib.suppress(OSError):  # rubbish that will not go must not stop a save
                    self._disk.remove(path)

    @contextlib.contextmanager
    def _hidden(self, purpose: str) -> Iterator[Path]:
        path = self.folder / f".{purpose}-{os.getpid()}-{secrets.token_hex(4)}"
        _in_use.add(path.name)
        try:
            yield path
        finally:
            _in_use.discard(path.name)


def _open(path: Path, step: int) -> Checkpoint:
    if path.is_symlink() or not path.is_dir():
        raise DamageError(f"{path}: want a folder, found a link or a file")
    manifest, _ = read_manifest(path)
    if manifest.step != step:
        raise DamageError(f"{path / MANIFEST}: want step {step} as in the folder's name, found step {manifest.step}")
    return open_checkpoint(path)


def _metric_or_infinity(entry: CheckpointEntry) -> float:
    return float("inf") if entry.metric is None else entry.metric


def _fault(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _has_ended(process: int) -> bool:
    """Tell whether a process has ended. One of our own number that is not us: we are a restarted container's."""
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
