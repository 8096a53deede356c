"""Growth: how much longer a tokenizer's file can make a text, known before the file is let near one."""

import math
from collections.abc import Mapping
from typing import Any

from heddle.core import DataError

MOST = 1000  # times; those in use stay below ten


def check_expansion(data: Mapping[str, Any], where: str) -> None:
    """Refuse replacements that blow a text up one after another: a few lines of them fill all memory."""
    for part in ("normalizer", "decoder"):
        if growth(data.get(part)) > MOST:
            raise DataError(f"{where}: its {part} makes texts more than {MOST} times as long")


def growth(step: object) -> float:
    """Return by what a step, in the library's own words, multiplies the length of a text at most."""
    match step:
        case {"type": "Sequence", "normalizers": list(inner)} | {"type": "Sequence", "decoders": list(inner)}:
            return math.prod(map(growth, inner), start=1.0)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:  # an expression may match between any two letters
            return 1.0 + len(content)
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
    return 1.0
