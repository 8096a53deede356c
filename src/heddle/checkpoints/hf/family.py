"""Family: one kind of model of another library, read and written; each has a file with its names and its config."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.weight_map import WeightMap
from heddle.core import Config, UsageError, find
from heddle.models.networks import LanguageModelConfig, ModelConfig

C = TypeVar("C", bound=Config)


def unchanged(config: ModelConfig) -> ModelConfig:
    """Return a config unchanged."""
    return config


@dataclass(frozen=True)
class Family:
    """How a kind of model is described there and here, and which weights are which."""

    name: str  # their `model_type`
    architectures: tuple[str, ...]  # their classes that we know; the first is meant where a config names none
    read: Callable[[HfConfig], ModelConfig]
    write: Callable[[ModelConfig], Mapping[str, Any]]
    weight_maps: Callable[[ModelConfig], Iterable[WeightMap]]
    ignored_keys: frozenset[str] = frozenset()  # keys of theirs that say nothing of how logits are computed
    ignored_weights: frozenset[str] = (
        frozenset()
    )  # weights that a folder may hold beside the model's: other heads, copies
    config_type: type[ModelConfig] = LanguageModelConfig  # of ours that it can express
    old_suffixes: Mapping[str, str] = field(default_factory=dict)  # ends of names in older files, and what they are now
    as_stored: Callable[[ModelConfig], ModelConfig] = (
        unchanged  # ours in their form, where links move a factor into weights
    )


class NoCounterpart(UsageError):
    """A part of ours that a family of theirs does not have."""


def one(config: Config, kind: type[C]) -> C:
    """Return the first part of a kind in a tree; what differs between several is found when the config is read back."""
    found = find(config, kind)
    if not found:
        raise NoCounterpart(f"it wants a part like {kind.kind or kind.__name__}")
    return found[0]
