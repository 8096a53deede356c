"""Frozen base: which weights the checkpoints of a run leave out, since the model that it started from holds them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from heddle.checkpoints import BASE, BaseReference, FrozenWeights, RunSource, Source, checksum
from heddle.checkpoints.store import Checkpoint, run_config_of
from heddle.models.networks import Model
from heddle.training.run_config import RunConfig


def find_frozen(
    config: RunConfig, model: Model, init: Source | None, parent: Mapping[str, Tensor], folder: Path
) -> FrozenWeights | None:
    """Return what the checkpoints of a new run leave out: frozen weights that are bit for bit those of `init`.

    Where `init` is a run that leaves out weights itself, its base is the base of the new run, too.
    """
    if init is None or config.init is None or not _leaves_out(config, model):
        return None
    held = parent.keys() if init.frozen_base is None else init.missing()
    names = frozenset(
        name for name, p in model.named_parameters() if not p.requires_grad and name in held and _same(p, parent[name])
    )
    if not names:
        return None
    base = init.frozen_base
    name, source = (config.init, init) if base is None or base.source is None else (base.reference.name, base.source)
    return FrozenWeights(names, BaseReference.of(name, source, folder, checksum(parent, names)), source)


def load_frozen(config: RunConfig, found: Checkpoint | None) -> tuple[FrozenWeights | None, dict[str, Tensor]]:
    """Return what the checkpoints of a resumed run leave out, and those weights; `init` may name their new place."""
    if found is None or BASE not in found.state:
        return None, {}
    run = RunSource(found.path)
    names, base = run.missing(), run.frozen_base
    assert base is not None
    weights = base.weights(names, config.init if config.init != run_config_of(found).get("init") else None)
    assert base.source is not None
    return FrozenWeights(names, base.reference, base.source), weights


def _leaves_out(config: RunConfig, model: Model) -> bool:
    has_adapters = bool(model.config.expand().adapters)
    return config.keep.weights == "trained" or (config.keep.weights == "auto" and has_adapters)


def _same(weight: Tensor, other: Tensor) -> bool:
    shared = weight.shape == other.shape and weight.data_ptr() == other.data_ptr()
    return shared or torch.equal(weight, other)
