"""Family: a Hugging Face `model_type`: how its config is read and written, and which weights are which."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.hf.weight_map import WeightMap
from heddle.core import Config, UsageError, find
from heddle.models.networks import LanguageModelConfig, ModelConfig, NetworkConfig

C = TypeVar("C", bound=Config)
N = TypeVar("N", bound=NetworkConfig)


def unchanged(config: ModelConfig) -> ModelConfig:
    """Return a config unchanged."""
    return config


@dataclass(frozen=True)
class Family:
    """One `model_type`: conversion of its config in both directions, and its weight maps."""

    name: str  # the `model_type`
    architectures: tuple[str, ...]  # known classes; the first is the default
    read: Callable[[HfConfig], ModelConfig]
    write: Callable[[ModelConfig], Mapping[str, Any]]
    weight_maps: Callable[[ModelConfig], Iterable[WeightMap]]
    ignored_keys: frozenset[str] = frozenset()  # config keys that do not change the logits
    ignored_weights: frozenset[str] = frozenset()  # tensors that a folder may also hold: other heads, copies
    config_type: type[ModelConfig] | tuple[type[ModelConfig], ...] = LanguageModelConfig  # what it can express
    old_suffixes: Mapping[str, str] = field(default_factory=dict)  # ends of names in older files -> today's
    as_stored: Callable[[ModelConfig], ModelConfig] = unchanged  # for transforms that move a factor into weights
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of missing keys, where not those of `read`

    def reader(self, config: Mapping[str, Any], where: str = "config.json") -> HfConfig:
        """Return a reader of one of its configs; a missing key has the default of `transformers`."""
        return HfConfig({**self.defaults, **config}, where)


class NoCounterpart(UsageError):
    """A part that a Hugging Face family cannot express."""


def expect(config: ModelConfig, kind: type[N]) -> N:
    """Return a config as one of a kind of model, or refuse a kind that the family does not express."""
    if not isinstance(config, kind):
        raise NoCounterpart(f"it is {kind.noun}")
    return config


def one(config: Config, kind: type[C]) -> C:
    """Return the first part of a type in a config; differing others are found when the written config is read back."""
    found = find(config, kind)
    if not found:
        raise NoCounterpart(f"it needs a part like {kind.kind or kind.__name__}")
    return found[0]
