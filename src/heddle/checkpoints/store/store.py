"""Store: atomic checkpoints. Each is saved whole or not at all, verified before use, and pruned by age and metric.

A save writes a hidden folder, syncs it, and renames it. A removal renames the folder first and deletes it afterwards.
So a folder named `step-…` is always complete, and what a crashed process left behind is hidden, with a known name.
"""

import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from heddle.checkpoints.store.checkpoint import Checkpoint, open_checkpoint
from heddle.checkpoints.store.disk import Disk, LocalDisk
from heddle.checkpoints.store.manifest import MANIFEST, FileDigest, new_manifest, read_manifest, write_manifest
from heddle.checkpoints.store.snapshot import FrozenSnapshot, Snapshot, freeze
from heddle.core import ConfigError, DamageError, EnvironmentFault, HeddleError
from heddle.core.system import open_to_append

FOLDER = re.compile(r"step-([0-9]{8,15})(?:-([0-9]{1,6}))?")  # the second number: a step saved again
HIDDEN = re.compile(r"\.(?:saving|gone)-([0-9]{1,9})-[0-9a-f]+")
HELD = ".held-"  # before the name of a checkpoint: a file that lists the runs which need it
LOOKS = 100  # at checkpoints that a trainer prunes meanwhile
_in_use: set[str] = set()  # hidden folders that this process is writing or deleting


class DamagedCheckpoint(NamedTuple):
    """A checkpoint that was skipped, and why."""

    path: Path
    reason: str


class CheckpointEntry(NamedTuple):
    """A checkpoint as its manifest describes it; its files have not been verified."""

    path: Path
    step: int
    metric: float | None


class Store:
    """Saves and finds the checkpoints of one run; reading never writes."""

    def __init__(
        self, folder: Path, keep_last: int = 3, keep_best: int = 1, background: bool = False, disk: Disk | None = None
    ) -> None:
        for name, number, least in (("keep_last", keep_last, 1), ("keep_best", keep_best, 0)):
            if number < least:
                raise ConfigError(name, want=f"{least} or more", got=number)
        self.folder, self.keep_last, self.keep_best = Path(folder), keep_last, keep_best
        self.damaged: tuple[DamagedCheckpoint, ...] = ()  # what the latest search skipped
        self._disk: Disk = disk if disk is not None else LocalDisk()
        self._background = Background() if background else None
        self._swept = False
        self._run = _identity(self.folder.parent)  # which may be moved or removed while this store is in use

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot) -> Path:
        """Save a snapshot atomically and return its folder.

        In the background, the folder appears once all of it is on disk, and a failure is raised by the next call.
        """
        self.wait()
        frozen = freeze(snapshot, copy=self._background is not None)
        target = self._target(frozen.step)
        if self._background is None:
            self._save(frozen, target)
        else:
            self._background.start(lambda: self._save(frozen, target))
        return target

    @property
    def in_background(self) -> bool:
        """Tell whether a save goes on after `save` has returned."""
        return self._background is not None

    def wait(self) -> None:
        """Wait for the save in the background, and raise its failure."""
        if self._background is not None:
            self._background.wait()

    def _target(self, step: int) -> Path:
        """Name the new folder. A step that is saved again gets a number, since no call swaps two folders atomically."""
        taken = [again for path, number, again in self._folders() if number == step]
        name = f"step-{step:08d}"
        return self.folder / (f"{name}-{max(taken) + 1}" if taken else name)

    def _save(self, frozen: FrozenSnapshot, target: Path) -> None:
        run = self.folder.parent
        if self._run is not None and _identity(run) != self._run:
            raise EnvironmentFault(f"{target}: not saved: {run} was moved or removed since the run was started")
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
                with contextlib.suppress(OSError):  # report the first error
                    self._disk.remove(hidden)
                raise
        self._disk.sync_folder(self.folder)

    def _write_file(self, path: Path, blocks: Iterable[memoryview]) -> FileDigest:
        """Write one file and hash the bytes as they are written, not as they are read back."""
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
        """Open the newest checkpoint that verifies, at or before `step` if given; `damaged` lists those skipped."""
        self._join()
        return self._first_good(
            lambda: ((path, n) for path, n, _ in reversed(self._folders()) if step is None or n <= step)
        )

    def best(self) -> Checkpoint | None:
        """Open the checkpoint with the lowest metric that verifies; `damaged` lists better ones that do not."""
        self._join()

        def ranked() -> Iterator[tuple[Path, int]]:
            entries = sorted(reversed(list(self._entries())), key=_metric_or_infinity)
            return ((entry.path, entry.step) for entry in entries if entry.metric is not None)

        return self._first_good(ranked)

    def list(self) -> tuple[CheckpointEntry, ...]:
        """Return every checkpoint with a valid manifest, oldest first."""
        self._join()
        return tuple(self._entries())

    def _first_good(self, folders: Callable[[], Iterable[tuple[Path, int]]]) -> Checkpoint | None:
        """Open the first that verifies; when another process has just pruned one of them, look again."""
        for _ in range(LOOKS):
            skipped: list[DamagedCheckpoint] = []
            found, pruned = None, False
            for path, step in folders():
                try:
                    found = _open(path, step)
                    break
                except DamageError as error:
                    pruned = not path.exists()
                    if pruned:
                        break
                    skipped.append(DamagedCheckpoint(path, str(error)))
            self.damaged = tuple(skipped)
            if not pruned:
                break
        return found

    def _folders(self) -> Sequence[tuple[Path, int, int]]:
        """Return each checkpoint folder with its step and its number among saves of that step, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = [(path, FOLDER.fullmatch(path.name)) for path in self.folder.iterdir()]
        found = [(path, int(match[1]), int(match[2] or 1)) for path, match in matches if match]
        return sorted(found, key=lambda item: item[1:])

    def _entries(self) -> Iterator[CheckpointEntry]:
        for path, step, _ in self._folders():
            if path.is_symlink():
                continue  # to another run's, perhaps: it is not ours to count or to remove
            with contextlib.suppress(HeddleError):  # `newest` reports unreadable ones; they are never removed
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
        keep |= {entry.path for entry in entries if _is_held(entry.path)}
        for entry in entries:
            if entry.path not in keep:
                self._remove(entry.path)

    def _remove(self, path: Path) -> None:
        with self._hidden("gone") as hidden:
            self._disk.rename(path, hidden)
            self._disk.sync_folder(self.folder)
            self._disk.remove(hidden)

    def sweep(self) -> None:
        """Remove the hidden folders that crashed processes left behind; the first save calls this."""
        self._swept = True
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            match = HIDDEN.fullmatch(path.name)
            if match and path.name not in _in_use and _has_ended(int(match[1])):
                with contextlib.suppress(OSError):  # leftovers that cannot be removed must not stop a save
                    self._disk.remove(path)

    @contextlib.contextmanager
    def _hidden(self, purpose: str) -> Iterator[Path]:
        path = self.folder / f".{purpose}-{os.getpid()}-{secrets.token_hex(4)}"
        _in_use.add(path.name)
        try:
            yield path
        finally:
            _in_use.discard(path.name)


def hold(checkpoint: Path, run: Path) -> None:
    """Keep a checkpoint from being pruned as long as another run, which needs its weights, exists."""
    mark, line = checkpoint.with_name(HELD + checkpoint.name), f"{run.resolve()}\n"
    with contextlib.suppress(OSError):  # where nothing can be written, nothing is pruned either
        if FOLDER.fullmatch(checkpoint.name) and line not in _holders(mark):
            with open_to_append(mark) as file:
                file.write(line)


def _holders(mark: Path) -> Sequence[str]:
    return mark.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if mark.is_file() else []


def _is_held(checkpoint: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(Path(line.rstrip("\n")).is_dir() for line in _holders(checkpoint.with_name(HELD + checkpoint.name)))
    return False


def _open(path: Path, step: int) -> Checkpoint:
    if path.is_symlink() or not path.is_dir():
        raise DamageError(f"{path}: want a folder, found a link or a file")
    manifest, _ = read_manifest(path)
    if manifest.step != step:
        raise DamageError(f"{path / MANIFEST}: want step {step} as in the folder's name, found step {manifest.step}")
    return open_checkpoint(path)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another at the same path; None: there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _metric_or_infinity(entry: CheckpointEntry) -> float:
    return float("inf") if entry.metric is None else entry.metric


def _fault(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _has_ended(process: int) -> bool:
    """Tell whether a process has ended. After a container restarts, an old process can have had our own id."""
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


class Background:
    """Runs one save at a time on a thread, which is not a daemon: a program that ends lets the save finish."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Start the work; earlier work must have been waited for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised by wait
                self._failure = error

        self._thread = threading.Thread(target=run, name="heddle-save")
        self._thread.start()

    def join(self) -> None:
        """Wait for the work to end, whether or not it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait for the work to end and raise its failure, once."""
        self.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
