"""Arrays as sources: features that another program computed, in files of NumPy: [rows, features]."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.data.media.media import Media, MediaFault, MediaFormat, check_finite, media_faults

ARRAYS = (".npy",)
MOST = 1 << 22  # rows of one array


@dataclass(frozen=True)
class ArrayMedia(Media):
    """Rows of a file of NumPy; files that hold Python objects are refused."""

    def decode(self) -> NDArray[Any]:
        with media_faults():
            try:
                whole = np.load(self.path, mmap_mode="r", allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise MediaFault("bad_media", f"not an array of NumPy: {str(error).splitlines()[0][:80]}") from None
            if not isinstance(whole, np.ndarray) or whole.ndim != 2 or whole.dtype.kind not in "fiu":
                found = f"{whole.dtype} {whole.shape}" if isinstance(whole, np.ndarray) else "several arrays"
                raise MediaFault("bad_media", f"want an array of numbers [rows, features], found {found}")
            rows = whole[_span(self, len(whole))]
            if not rows.size:
                raise MediaFault("empty")
            with np.errstate(over="ignore"):
                stored = np.array(rows, self.format.dtype)
        check_finite(stored)
        return stored


def _span(media: Media, rows: int) -> slice:
    """Return the rows of a part; refuse one that the file does not have."""
    start, length = media.start, media.length
    stop = rows if length is None else start + length
    if not float(start).is_integer() or not float(stop).is_integer() or not 0 <= start <= stop <= rows:
        raise MediaFault("bad_media", f"rows {start:g} to {stop:g} of {rows}")
    if stop - start > MOST:
        raise MediaFault("too_long", f"{stop - start:g} rows")
    return slice(int(start), int(stop))


def array_media(path: Path, start: float = 0.0, length: float | None = None) -> ArrayMedia:
    """Return the array at a path, stored in float32."""
    return ArrayMedia(path, MediaFormat(medium="array", dtype="float32"), start, length)
