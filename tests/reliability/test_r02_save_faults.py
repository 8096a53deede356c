"""R2: a save is broken off at every one of its steps, in four ways; an older checkpoint always loads."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import pytest
import torch

from heddle.checkpoints.store import Snapshot, Store
from heddle.checkpoints.store.disk import LocalDisk
from heddle.core import EnvironmentFault

Way = Literal["full", "once", "crash", "power"]


class Crash(BaseException):
    """The process is gone: nothing that it would still have done on disk happens."""


class FaultyDisk:
    """A disk that fails at its n-th call.

    full: that call and all later ones that need room find none. once: only that call fails.
    crash: the process dies in the middle of that call. power: so does the machine, and what was not synced is lost.
    """

    def __init__(self, way: Way, at: int) -> None:
        self.way, self.at, self.calls, self.dead = way, at, 0, False
        self.real = LocalDisk()
        self.log: list[str] = []
        self.unsynced: set[Path] = set()
        self.renamed: list[tuple[Path, Path]] = []

    @contextmanager
    def _call(self, name: str, path: Path) -> Iterator[bool]:
        """Yield whether this call is the one to break off half-way."""
        if self.dead:
            raise Crash
        self.calls += 1
        self.log.append(f"{name} {path.name}")
        broken = self.calls == self.at or (self.way == "full" and self.calls > self.at > 0)
        if broken and self.way in ("full", "once") and name != "remove":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        dies = broken and self.way in ("crash", "power")
        yield dies
        if dies:
            self.dead = True
            if self.way == "power":
                self._lose()
            raise Crash

    def _lose(self) -> None:
        for old, new in reversed(self.renamed):
            new.rename(old)
        for path in self.unsynced:
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)

    def make(self, folder: Path) -> None:
        with self._call("make", folder):
            self.real.make(folder)

    def create(self, path: Path) -> BinaryIO:
        with self._call("create", path) as broken:
            self.unsynced.add(path)
            file = self.real.create(path)
            if broken:
                file.close()
            return file

    def write(self, file: BinaryIO, data: memoryview) -> None:
        with self._call("write", Path(file.name)) as broken:
            self.real.write(file, data[: len(data) // 2] if broken else data)
            file.flush()

    def sync(self, file: BinaryIO) -> None:
        with self._call("sync", Path(file.name)) as broken:
            if not broken:
                self.real.sync(file)
                self.unsynced.discard(Path(file.name))

    def sync_folder(self, folder: Path) -> None:
        with self._call("sync_folder", folder) as broken:
            if not broken:
                self.real.sync_folder(folder)
                self.renamed = [pair for pair in self.renamed if pair[1].parent != folder]

    def rename(self, old: Path, new: Path) -> None:
        with self._call("rename", old):
            self.real.rename(old, new)
            self.renamed.append((old, new))

    def remove(self, folder: Path) -> None:
        with self._call("remove", folder) as broken:
            if not broken:
                return self.real.remove(folder)
            for path in sorted(folder.iterdir())[::2]:
                path.unlink()


def snapshot(step: int) -> Snapshot:
    weights = {"a": torch.full((64,), float(step)), "b": torch.full((3, 3), float(step)).bfloat16()}
    moments = {"m": torch.full((64,), -float(step))}
    state = {"rows": step, "loss": [0.5] * step}
    return Snapshot(step, {"model": weights, "optimizer": moments}, state, {"config.json": "{}"}, metric=1 / step)


def is_whole(store: Store, oldest: int) -> int:
    """Check that the newest checkpoint loads and is one that was saved, at a step that may be asked for."""
    found = store.newest()
    assert found is not None and store.damaged == (), store.damaged
    assert found.step >= oldest and found.state == {"rows": found.step, "loss": [0.5] * found.step}
    assert torch.equal(found.tensors()["a"], torch.full((64,), float(found.step)))
    assert torch.equal(found.tensors("optimizer")["m"], torch.full((64,), -float(found.step)))
    return found.step


def break_off(folder: Path, way: Way, at: int, background: bool) -> str:
    """Break a third save off at one call; check what is left; then save again. Return the call."""
    keep = Store(folder, keep_last=2, keep_best=0)
    for step in (1, 2):
        keep.save(snapshot(step))
    disk = FaultyDisk(way, at)
    store = Store(folder, keep_last=2, keep_best=0, background=background, disk=disk)
    try:
        store.save(snapshot(3))
        store.wait()
        raise AssertionError(f"{way} at {at} passed unseen: {disk.log[-1]}")
    except EnvironmentFault as fault:
        assert way in ("full", "once") and "No space left on device" in str(fault) and "\n" not in str(fault)
        assert fault.exit_code == 3
        assert [p.name for p in folder.iterdir() if p.name.startswith(".saving")] == []
    except Crash:
        assert way in ("crash", "power")
    is_whole(Store(folder), oldest=2)
    assert all(p.name.startswith((".saving-", ".gone-")) or p.name[5:].isdigit() for p in folder.iterdir())
    later = Store(folder, keep_last=2, keep_best=0)
    later.save(snapshot(4))
    assert is_whole(later, oldest=4) == 4
    assert len(list(folder.iterdir())) == 2, "what the broken save left behind is cleared away"
    return disk.log[at - 1]


def points(folder: Path) -> list[str]:
    """Return every call that a save makes of its disk."""
    for step in (1, 2):
        Store(folder, keep_last=2).save(snapshot(step))
    disk = FaultyDisk("once", 0)
    Store(folder, keep_last=2, keep_best=0, disk=disk).save(snapshot(3))
    return disk.log


def run(tmp_path: Path, ways: tuple[Way, ...], backgrounds: tuple[bool, ...]) -> tuple[int, int]:
    calls = points(tmp_path / "count")
    assert len(calls) >= 20
    assert {c.split()[0] for c in calls} == {"make", "create", "write", "sync", "sync_folder", "rename", "remove"}
    passed = 0
    for way in ways:
        for background in backgrounds:
            for at in range(1, len(calls) + 1):
                if calls[at - 1].startswith("remove") and way in ("full", "once"):
                    continue  # removing needs no room
                folder = tmp_path / f"{way}-{background}-{at}"
                break_off(folder, way, at, background)
                shutil.rmtree(folder)
                passed += 1
    return passed, len(calls)


def test_r02_a_save_broken_off_anywhere_leaves_an_older_one_to_load(tmp_path: Path) -> None:
    passed, calls = run(tmp_path, ("once", "crash"), (False,))
    print(f"R2: {passed}/{passed} faults survived at {calls} points of a save")


@pytest.mark.full
def test_r02_full(tmp_path: Path) -> None:
    passed, calls = run(tmp_path, ("full", "once", "crash", "power"), (False, True))
    print(f"R2: {passed}/{passed} faults survived at {calls} points of a save, in four ways, fore- and background")


def test_r02_the_harness_sees_a_store_that_does_not_sync(tmp_path: Path) -> None:
    """A save that skips its syncs must be caught by the power loss, or the test above proves nothing."""

    class Careless(FaultyDisk):
        def sync(self, file: BinaryIO) -> None:
            file.flush()

    for step in (1, 2):
        Store(tmp_path, keep_last=1, keep_best=0).save(snapshot(step))
    disk = Careless("power", 10**6)
    Store(tmp_path, keep_last=1, keep_best=0, disk=disk).save(snapshot(3))
    disk.unsynced = {tmp_path / "step-00000003" / path.name for path in disk.unsynced}
    disk._lose()
    store = Store(tmp_path)
    assert store.newest() is None and len(store.damaged) == 1


def test_r02_a_refusal_by_the_kernel_is_one_clear_line(tmp_path: Path) -> None:
    """The kernel's own refusal, by a limit on the size of files."""
    import resource
    import signal

    store = Store(tmp_path)
    store.save(snapshot(1))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises(EnvironmentFault, match="step-00000002: not saved: File too large; older"):
            store.save(Snapshot(2, {"model": {"w": torch.ones(100_000)}}, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert is_whole(Store(tmp_path), 1) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
