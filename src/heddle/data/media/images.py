"""Images: PNG, JPEG, GIF, WebP and BMP as pixels of one size, by Pillow; bombs are refused before they are decoded."""

import io
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from heddle.core import MissingExtra
from heddle.data.media.media import Media, MediaFault, MediaFormat, media_faults

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
MOST_PIXELS = 25_000_000  # of a picture before it is made smaller; a larger one would fill the memory
MOST_BYTES = 1 << 28  # of a file
EXIF_FAULTS = (struct.error, OSError, SyntaxError, ValueError, LookupError, ArithmeticError, TypeError, EOFError)
Fit = Literal["squeeze", "crop", "pad"]
Channels = Literal[1, 3]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class PictureSize:
    """What every picture becomes: rows and columns of pixels, numbers of each pixel, and how another shape fits in.

    fit: squeeze changes the shape, crop cuts off what sticks out, pad fills up with white.
    """

    rows: int = 112
    columns: int = 112
    channels: Channels = 3
    fit: Fit = "squeeze"


WHOLE = PictureSize()


@dataclass(frozen=True)
class ImageMedia(Media):
    """An image, as pixels of eight bits: [rows, columns, channels]."""

    size: PictureSize = WHOLE

    def decode(self) -> NDArray[Any]:
        return read_image(self.path, self.size)


def image_media(path: Path, size: PictureSize) -> ImageMedia:
    """Return the image at a path."""
    return ImageMedia(path, MediaFormat(medium="image", dtype="uint8"), size=size)


def read_image(path: Path, size: PictureSize) -> Pixels:
    """Return the pixels of an image; of an animation the first; raise MediaFault."""
    return decode_image(read_picture_file(path), size)


def read_picture_file(path: Path) -> bytes:
    """Return the bytes of a file that is not too large; raise MediaFault."""
    with media_faults():
        if not path.is_file():
            raise MediaFault("no_file" if not path.exists() else "unreadable", str(path))
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise MediaFault("too_large", f"{size:,} bytes; want at most {MOST_BYTES:,}")
        raw = path.read_bytes()
    if not raw:
        raise MediaFault("empty")
    return raw


def decode_image(raw: bytes, size: PictureSize) -> Pixels:
    """Return the pixels of a whole image file; raise MediaFault."""
    with picture_faults(), opened(raw) as picture:
        check_pixels(picture.size)
        picture.draft("RGB" if size.channels == 3 else "L", (2 * size.columns, 2 * size.rows))  # JPEG: decode it small
        return to_pixels(picture, size)


@contextmanager
def opened(raw: bytes) -> "Iterator[Picture]":
    """Open the bytes of a picture, of one of a few formats that only hold pixels."""
    Image = _pillow()
    # Pillow warns of large pictures, which are refused in a line of our own
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # of damaged EXIF, which is left out
    with Image.open(io.BytesIO(raw), formats=FORMATS) as picture:
        yield picture


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow", "media", "reading images") from None
    return Image


@contextmanager
def picture_faults() -> Iterator[None]:
    """Turn what Pillow raises for a damaged or hostile file into MediaFault."""
    Image = _pillow()
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaFault("too_large", str(error)[:120]) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise MediaFault("bad_media", str(error).split("<")[0].strip()[:120] or type(error).__name__) from None


def check_pixels(size: tuple[int, int], frames: int = 1) -> None:
    """Refuse a picture without pixels, and one that would fill the memory."""
    across, down = size
    if across < 1 or down < 1:
        raise MediaFault("empty")
    if across * down * frames > MOST_PIXELS:
        shape = f"{across} x {down} pixels" + (f" in {frames} frames" if frames > 1 else "")
        raise MediaFault("too_large", f"{shape}; want at most {MOST_PIXELS:,} pixels")


def to_pixels(picture: "Picture", size: PictureSize) -> Pixels:
    """Return the pixels of an opened picture at a size, upright, on white where it is transparent."""
    from PIL import ImageOps

    picture.load()  # what is wrong with the pixels is told before EXIF is read
    with suppress(*EXIF_FAULTS):
        ImageOps.exif_transpose(picture, in_place=True)
    whole, mode = _opaque(picture), "RGB" if size.channels == 3 else "L"
    whole = whole if whole.mode == mode else whole.convert(mode)
    shaped = FITS[size.fit](whole, (size.columns, size.rows))
    return np.asarray(shaped, np.uint8).reshape(size.rows, size.columns, size.channels)


def _opaque(picture: "Picture") -> "Picture":
    """Return a picture of eight bits without transparency, on white."""
    Image = _pillow()
    if picture.mode.startswith("I") or picture.mode == "F":
        return cast("Picture", Image.fromarray(_eight_bits(np.asarray(picture))))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        whole = picture.convert("RGBA")
        ground = Image.new("RGBA", whole.size, (255, 255, 255, 255))
        ground.alpha_composite(whole)
        return cast("Picture", ground)
    return picture


def _eight_bits(values: NDArray[Any]) -> Pixels:
    """Return grey values of sixteen bits, or between 0 and 1, as eight bits."""
    if values.dtype.kind == "f":
        finite = np.nan_to_num(values.astype(np.float64))
        return np.asarray(np.clip(finite * (255 if finite.max(initial=0) <= 1 else 1), 0, 255), np.uint8)
    return np.asarray(np.clip(values, 0, 65535) // 257, np.uint8)


def _squeeze(picture: "Picture", size: tuple[int, int]) -> "Picture":
    return picture if picture.size == size else picture.resize(size, _pillow().Resampling.BILINEAR)


def _crop(picture: "Picture", size: tuple[int, int]) -> "Picture":
    from PIL import ImageOps

    return ImageOps.fit(picture, size, _pillow().Resampling.BILINEAR)


def _pad(picture: "Picture", size: tuple[int, int]) -> "Picture":
    from PIL import ImageOps

    return ImageOps.pad(picture, size, _pillow().Resampling.BILINEAR, color="white")


FITS: dict[Fit, Callable[["Picture", tuple[int, int]], "Picture"]] = {"squeeze": _squeeze, "crop": _crop, "pad": _pad}
