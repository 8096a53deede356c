"""Heddle: one library for the whole line of neural language models. `heddle.load`, `heddle.build`, `heddle.presets`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.lm import LM, load
    from heddle.models import build, presets

__version__ = "0.1.0"
__all__ = ["LM", "build", "load", "presets"]

_ROOMS = {"LM": "heddle.lm", "load": "heddle.lm", "build": "heddle.models", "presets": "heddle.models"}


def __getattr__(name: str) -> Any:
    """Open a room when its name is first used: `import heddle` alone costs nothing."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'heddle' has no attribute {name!r}")
    return getattr(import_module(_ROOMS[name]), name)
