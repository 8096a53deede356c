"""Disk: every call by which the store changes a file system, in one place, so that a test can make any of them fail."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO, Protocol, final

from heddle.core.system import sync_folder


class Disk(Protocol):
    """What the store asks of a file system; each step may raise OSError."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it."""

    def create(self, path: Path) -> BinaryIO:
        """Open a new file to write."""

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Write bytes at the end of a file."""

    def sync(self, file: BinaryIO) -> None:
        """Bring a file's bytes to the medium."""

    def sync_folder(self, folder: Path) -> None:
        """Bring a folder's list of names to the medium."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename in one step."""

    def remove(self, folder: Path) -> None:
        """Remove a folder and all that it holds."""


@final
class LocalDisk:
    """The file system of this machine."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it."""
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        """Open a new file to write."""
        return path.open("xb")

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Write bytes at the end of a file."""
        file.write(data)

    def sync(self, file: BinaryIO) -> None:
        """Bring a file's bytes to the medium."""
        file.flush()
        os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        """Bring a folder's list of names to the medium."""
        sync_folder(folder)

    def rename(self, old: Path, new: Path) -> None:
        """Rename in one step."""
        old.rename(new)

    def remove(self, folder: Path) -> None:
        """Remove a folder and all that it holds."""
        shutil.rmtree(folder)
