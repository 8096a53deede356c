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

_EXPORTS = {
    "HeddleError": ("heddle.core", "HeddleError"),
    "LM": ("heddle.lm", "LM"),
    "LookupDraft": ("heddle.decoding.speculative", "LookupDraft"),
    "build": ("heddle.models.presets", "build"),
    "load": ("heddle.lm", "load"),
    "presets": ("heddle.models.presets", "presets"),
    "rules": ("heddle.tasks.generation", "make_constraints"),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `import heddle` costs nothing."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'heddle' has no attribute {name!r}")
    module, own = _EXPORTS[name]
    return getattr(import_module(module), own)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
