"""LoRA on existing models: adapters as an edit of a config, added to a model, and merged into its weights."""

from collections.abc import Callable

import torch

from heddle.core import UsageError, replace
from heddle.models.networks import Model, ModelConfig, NetworkConfig
from heddle.models.surgery.rebuild import rebuild
from heddle.nn.adapters import AdapterConfig, LoraConfig, find_linears
from heddle.nn.base import initialize, merged_weight


def lora(
    rank: int = 8, alpha: float = 16.0, targets: tuple[str, ...] | None = None, layers: tuple[int, ...] | None = None
) -> Callable[[ModelConfig], NetworkConfig]:
    """Return an edit that adds LoRA to linear layers, by default those of attention and feed-forward parts."""
    return lambda config: with_adapters(config, LoraConfig(rank=rank, alpha=alpha, targets=targets, layers=layers))


def with_adapters(config: ModelConfig, *adapters: AdapterConfig) -> NetworkConfig:
    """Return a config with these adapters only."""
    return replace(config.expand(), adapters=adapters)


def add_adapters(model: Model, *adapters: AdapterConfig, seed: int = 0) -> Model:
    """Return a model with adapters, which at first computes the same; its other weights are shared and frozen.

    Existing adapters are merged into the weights first.
    """
    if not adapters:
        raise UsageError("adapters: want at least one, got none")
    base = merge_adapters(model)
    config = with_adapters(base.config, *adapters)
    made, empty = rebuild(base, config)
    initialize(made, config.init, made.depth, seed, only=empty)  # the adapters only
    return made


@torch.no_grad()
def merge_adapters(model: Model) -> Model:
    """Return a model without adapters that computes the same: each product is added to its matrix.

    The given model does not change, and shares all other weights.
    """
    config = model.config.expand()
    if not config.adapters:
        return model
    made, _ = rebuild(model, replace(config, adapters=()))
    for found in find_linears(model):
        if found.module.adapter is not None:
            made.get_parameter(f"{found.path}.weight").data = merged_weight(found.module.weight, found.module.adapter)
    return made
