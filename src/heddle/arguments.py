"""Arguments of the library: converted to plain types, or refused in one line."""

from collections.abc import Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from heddle.core import UsageError, brief


def as_text(caller: str, given: object) -> str:
    """Return one text."""
    if not isinstance(given, str):
        raise UsageError(f"{caller}: want a text, got {brief(given)}")
    return given


def as_texts(caller: str, given: object, expected: str = "a list of texts") -> list[str]:
    """Return several texts; a single one would be read as a list of its letters."""
    if isinstance(given, str):
        raise UsageError(f"{caller}: want {expected}, got one text")
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise UsageError(f"{caller}: want {expected}, got {brief(given)}")
    found = list(given)
    for each in found:
        if not isinstance(each, str):
            raise UsageError(f"{caller}: want {expected}, got {brief(each)} among them")
    return found


def one_or_more(caller: str, given: object) -> tuple[list[str], bool]:
    """Return texts, and whether one was given alone."""
    alone = isinstance(given, str)
    return ([given] if alone and isinstance(given, str) else as_texts(caller, given)), alone


def as_id_rows(caller: str, given: object) -> list[list[int]]:
    """Return rows of ids, from lists, arrays or a tensor."""
    plain: Any = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    try:
        return [[index(id) for id in row] for row in plain]
    except TypeError:
        raise UsageError(f"{caller}: want rows of ids, such as [[1, 2, 3]], got {brief(given)}") from None


def check_words(**given: object) -> None:
    """Refuse anything but strings."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise UsageError(f"{name}: want a word, such as 'auto', got {brief(value)}")


def as_path(given: object) -> str | Path | None:
    """Return a path, or None."""
    if given is not None and not isinstance(given, str | Path):
        raise UsageError(f"path: want a path or a name, got {brief(given)}")
    return given
