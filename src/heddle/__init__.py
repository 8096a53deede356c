"""Heddle: one library for the whole line of neural language models. `heddle.load`, `heddle.build`, `heddle.presets`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.core import HeddleError
    from heddle.decoding.speculative import LookupDraft
    from heddle.lm import LM, load
    from heddle.models.presets import build, presets
    from heddle.tasks.generation import make_constraints as rules

__version__ = "0.1.0"
__all__ = ["LM", "HeddleError", "LookupDraft", "build", "load", "presets", "rules"]

_ROOMS = {
    "HeddleError": ("heddle.core", "HeddleError"),
    "LM": ("heddle.lm", "LM"),
    "LookupDraft": ("heddle.decoding.speculative", "LookupDraft"),
    "build": ("heddle.models.presets", "build"),
    "load": ("heddle.lm", "load"),
    "presets": ("heddle.models.presets", "presets"),
    "rules": ("heddle.tasks.generation", "make_constraints"),
}


def __getattr__(name: str) -> Any:
    """Open a room when its name is first used: `import heddle` alone costs nothing."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'heddle' has no attribute {name!r}")
    room, own = _ROOMS[name]
    return getattr(import_module(room), own)


def __dir__() -> list[str]:
    """List what the front door offers."""
    return sorted([*__all__, "__version__"])
