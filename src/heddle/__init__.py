"""Heddle: one library for the whole line of neural language models. `heddle.train`, `heddle.load`, `heddle.build`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.comparing import compare
    from heddle.core import HeddleError
    from heddle.core.user_code import use
    from heddle.decoding.speculative import LookupDraft
    from heddle.lm import LM, load
    from heddle.models.presets import build, presets, register_preset
    from heddle.recipes import register_recipe
    from heddle.run import Run, train
    from heddle.scaling import scale
    from heddle.tasks.evaluation import EvaluationTask, register_task
    from heddle.tasks.generation import make_constraints as rules

__version__ = "0.1.0"
__all__ = [
    "LM",
    "EvaluationTask",
    "HeddleError",
    "LookupDraft",
    "Run",
    "build",
    "compare",
    "load",
    "presets",
    "register_preset",
    "register_recipe",
    "register_task",
    "rules",
    "scale",
    "train",
    "use",
]

_EXPORTS = {
    "EvaluationTask": ("heddle.tasks.evaluation", "EvaluationTask"),
    "HeddleError": ("heddle.core", "HeddleError"),
    "LM": ("heddle.lm", "LM"),
    "LookupDraft": ("heddle.decoding.speculative", "LookupDraft"),
    "Run": ("heddle.run", "Run"),
    "build": ("heddle.models.presets", "build"),
    "compare": ("heddle.comparing", "compare"),
    "load": ("heddle.lm", "load"),
    "presets": ("heddle.models.presets", "presets"),
    "register_preset": ("heddle.models.presets", "register_preset"),
    "register_recipe": ("heddle.recipes", "register_recipe"),
    "register_task": ("heddle.tasks.evaluation", "register_task"),
    "rules": ("heddle.tasks.generation", "make_constraints"),
    "scale": ("heddle.scaling", "scale"),
    "train": ("heddle.run", "train"),
    "use": ("heddle.core.user_code", "use"),
}
_AFTER_PLUGINS = {
    "build",
    "compare",
    "load",
    "presets",
    "scale",
    "train",
}  # what knows more when installed packages are loaded


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `import heddle` costs nothing."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'heddle' has no attribute {name!r}")
    if name in _AFTER_PLUGINS:
        import_module("heddle.core.user_code").load_plugins()
    module, own = _EXPORTS[name]
    return getattr(import_module(module), own)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])
