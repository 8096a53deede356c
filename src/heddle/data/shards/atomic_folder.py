"""Placing: folders that appear at once and whole, however many processes make the same one at the same time."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def lock_folder(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a folder, which ends with the process at the latest, and say whether it was given.

    It is not when another holds it and we do not wait, or where the disk, as some over a network, knows no locks.
    """
    handle, given = os.open(folder, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            given = True
        yield given
    finally:
        if given:  # by name, for a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Give a hidden folder beside the wanted one, gone when all is done; those that the dead have left go first."""
    with contextlib.ExitStack() as stack:
        with lock_folder(folder.parent):  # so that nobody sweeps ours before we hold its lock
            _remove_stale(folder)
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            stack.enter_context(lock_folder(made))
        yield made


def _remove_stale(folder: Path) -> None:
    """Remove workshops whose lock is free: only a dead process has let go of one and left it there."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.[a-z0-9_]{{8}}\.tmp")
    for path in [path for path in folder.parent.iterdir() if name.fullmatch(path.name)]:
        with contextlib.suppress(OSError), lock_folder(path, wait=False) as free:  # one that will not go stops nobody
            if free:
                shutil.rmtree(path)
