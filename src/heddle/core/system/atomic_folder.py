"""Atomic folders: they appear at once and complete, however many processes make the same one."""

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
    """Hold the lock of a folder; yield whether it was acquired.

    It is not when another process holds it and we do not wait, or where the file system has no locks.
    """
    handle, given = os.open(folder, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            given = True
        yield given
    finally:
        if given:  # explicitly, since a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the wanted one, removed in the end; first remove what crashed processes left."""
    with contextlib.ExitStack() as stack:
        with lock_folder(folder.parent):  # so that no other process removes ours before we hold its lock
            _remove_stale(folder)
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            stack.enter_context(lock_folder(made))
        yield made


@contextlib.contextmanager
def _parents(path: Path) -> Iterator[None]:
    """Make the folders above a path; after a fault, remove those that were not there before and are still empty."""
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes the one at a path once it is complete and on the disk.

    The path must be free, or an empty folder. A crash or a fault leaves it as it was.
    """
    path = path.resolve()
    with _parents(path), temporary_folder(path) as shop:
        new = shop / path.name  # whose name is known to what is written into it
        new.mkdir()
        try:
            yield new
            for file in new.rglob("*"):
                _sync(file)
            _sync(new)
        except OSError as error:
            if error.filename is not None and str(error.filename).startswith(str(new)):  # what the user knows of
                error.filename = str(path / Path(error.filename).relative_to(new))
            raise
        new.rename(path)
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the medium."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_stale(folder: Path) -> None:
    """Remove temporary folders whose lock is free: only a crashed process leaves one behind."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.[a-z0-9_]{{8}}\.tmp")
    for path in [path for path in folder.parent.iterdir() if name.fullmatch(path.name)]:
        with (
            contextlib.suppress(OSError),
            lock_folder(path, wait=False) as free,
        ):  # one that cannot be removed is no error
            if free:
                shutil.rmtree(path)
