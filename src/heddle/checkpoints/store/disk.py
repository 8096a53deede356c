"""Disk: every file-system call by which the store changes files, behind one interface, so tests can make any fail."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO, Protocol, final

from heddle.core.system import sync_folder


class Disk(Protocol):
    """The file-system calls of the store; each may raise OSError."""

    def make(self, folder: Path) -> None:
        """Make a folder and its parents."""

    def create(self, path: Path) -> BinaryIO:
        """Open a new file to write."""

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Write bytes at the end of a file."""

    def sync(self, file: BinaryIO) -> None:
        """Flush a file to the disk (fsync)."""

    def sync_folder(self, folder: Path) -> None:
        """Flush a folder's entries to the disk (fsync)."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename atomically."""

    def remove(self, folder: Path) -> None:
        """Remove a folder and everything in it."""


@final
class LocalDisk:
    """The local file system."""

    def make(self, folder: Path) -> None:
        """Make a folder and its parents."""
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        """Open a new file to write."""
        return path.open("xb")

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Write bytes at the end of a file."""
        file.write(data)

    def sync(self, file: BinaryIO) -> None:
        """Flush a file to the disk (fsync)."""
        file.flush()
        os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        """Flush a folder's entries to the disk (fsync)."""
        sync_folder(folder)

    def rename(self, old: Path, new: Path) -> None:
        """Rename atomically."""
        old.rename(new)

    def remove(self, folder: Path) -> None:
        """Remove a folder and everything in it."""
        shutil.rmtree(folder)
