"""Video: folders of frames, animated GIF, MP4 and the like (by PyAV), and arrays of frames, as pixels of one size."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import MissingExtra
from heddle.data.media.images import (
    IMAGES,
    MOST_PIXELS,
    WHOLE,
    PictureSize,
    Pixels,
    check_pixels,
    opened,
    picture_faults,
    read_image,
    read_picture_file,
    to_pixels,
)
from heddle.data.media.media import Media, MediaFault, MediaFormat, file_digest, media_faults

ANIMATIONS = (".gif", ".webp", ".png")  # by Pillow
FILMS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".mpg", ".m4v")  # by PyAV
FRAME_ARRAYS = (".npy",)  # of NumPy: [frames, rows, columns] or [frames, rows, columns, 3], of eight bits
VIDEOS = (".gif", *FILMS, *FRAME_ARRAYS)
DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class VideoMedia(Media):
    """A video, as pixels of eight bits: [frames, rows, columns, channels].

    start, length: the part of it, in frames.
    every: 2: every second frame alone, and so on.
    longest: frames; a longer video is not decoded.
    """

    size: PictureSize = WHOLE
    every: int = 1
    longest: int = 256

    def decode(self) -> NDArray[Any]:
        with media_faults():
            if not self.path.exists():
                raise MediaFault("no_file", str(self.path))
        frames: list[Pixels] = []
        for frame in self._chosen():
            if len(frames) == self.longest:
                raise MediaFault("too_long", f"more than {self.longest} frames")
            frames.append(frame)
        if not frames:
            raise MediaFault("empty")
        if self.length is not None and len(frames) < len(range(int(self.start), self._stop or 0, self.every)):
            raise MediaFault("bad_media", f"want frames {self.start:g} on, for {self.length:g}; it ends before")
        return np.stack(frames)

    @property
    def _stop(self) -> int | None:
        return None if self.length is None else int(self.start + self.length)

    def _chosen(self) -> Iterator[Pixels]:
        """Yield the frames one by one, so that what is too long is not read to its end."""
        ending = self.path.suffix.lower()
        part = slice(int(self.start), self._stop, self.every)
        if self.path.is_dir():
            return (read_image(path, self.size) for path in frame_files(self.path)[part])
        if ending in FRAME_ARRAYS:
            return _array_frames(self.path, self.size, part)
        frames = (_animation if ending in ANIMATIONS else _film)(self.path, self.size)
        return islice(frames, part.start, part.stop, part.step)

    @property
    def digest(self) -> bytes:
        if not self.path.is_dir():
            return super().digest
        hashed = hashlib.blake2b(digest_size=16)
        for path in frame_files(self.path):
            hashed.update(file_digest(path))
        return hashed.digest() + repr((self.start, self.length)).encode()


def video_media(
    path: Path, size: PictureSize, span: tuple[float, float | None], every: int, longest: int
) -> VideoMedia:
    """Return the video at a path, or the part of some frames."""
    return VideoMedia(path, MediaFormat(medium="video", dtype="uint8"), *span, size=size, every=every, longest=longest)


def frame_files(folder: Path) -> list[Path]:
    """Return the pictures of a folder in the order of the numbers in their names."""
    with media_faults():
        found = [path for path in folder.iterdir() if path.suffix.lower() in IMAGES]
    return sorted(found, key=lambda path: [int(t) if t.isdigit() else t for t in DIGITS.split(path.name)])


def _animation(path: Path, size: PictureSize) -> Iterator[Pixels]:
    """Yield the frames of an animated GIF, WebP or PNG."""
    raw = read_picture_file(path)
    if path.suffix.lower() == ".gif" and not raw.rstrip(b"\0").endswith(b";"):
        raise MediaFault("bad_media", "ends in the middle of a frame")
    with picture_faults(), opened(raw) as picture:
        check_pixels(picture.size)
        number = 0
        while True:
            try:
                picture.seek(number)
            except EOFError:
                return
            yield to_pixels(picture, size)
            number += 1


def _array_frames(path: Path, size: PictureSize, part: slice) -> Iterator[Pixels]:
    """Yield some frames of an array, each at the wanted size."""
    from PIL import Image

    with media_faults():
        try:
            whole = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise MediaFault("bad_media", f"not an array of NumPy: {str(error).splitlines()[0][:80]}") from None
    good = isinstance(whole, np.ndarray) and whole.dtype == np.uint8 and whole.ndim in (3, 4)
    if not good or (whole.ndim == 4 and whole.shape[3] not in (1, 3)):
        found = f"{whole.dtype} {whole.shape}" if isinstance(whole, np.ndarray) else "several arrays"
        raise MediaFault("bad_media", f"want uint8 [frames, rows, columns] or [..., 3], found {found}")
    if 0 in whole.shape:
        raise MediaFault("empty")
    check_pixels((whole.shape[2], whole.shape[1]))
    for frame in whole[part]:
        plain = np.array(frame[..., 0] if frame.ndim == 3 and frame.shape[2] == 1 else frame)
        if plain.size == size.rows * size.columns * size.channels and plain.shape[:2] == (size.rows, size.columns):
            yield plain.reshape(size.rows, size.columns, size.channels)
        else:
            yield to_pixels(Image.fromarray(plain), size)


def _film(path: Path, size: PictureSize) -> Iterator[Pixels]:
    """Yield the frames of a film, decoded by PyAV (FFmpeg)."""
    try:
        import av
    except ImportError:
        raise MissingExtra("av", "media", f"reading {path.suffix or path.name} video") from None
    try:
        with av.open(str(path), metadata_errors="ignore") as film:
            if not film.streams.video:
                raise MediaFault("bad_media", "has no pictures")
            stream = film.streams.video[0]
            if stream.width * stream.height > MOST_PIXELS:
                check_pixels((stream.width, stream.height))
            for frame in film.decode(stream):
                check_pixels((frame.width, frame.height))
                yield to_pixels(frame.to_image(), size)
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        raise MediaFault("bad_media", str(error).split(":")[0][:120]) from None
