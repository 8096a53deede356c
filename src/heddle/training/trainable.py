"""Trainable weights: adapters (LoRA), frozen and unfrozen names, and new rows for tokens that the model lacks."""

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from heddle.core import ConfigError, diff, nearest
from heddle.models.networks import Model, ModelConfig
from heddle.models.surgery import (
    add_adapters,
    choose_layers,
    exchange_vocab,
    merge_adapters,
    replace_output,
    resize_vocab,
    with_adapters,
    with_layers,
    with_vocab,
)
from heddle.training.run_config import RunConfig


def initial_config(base: ModelConfig, config: RunConfig, vocab: int) -> ModelConfig:
    """Return the model of a run that starts from another: its layers, rows for its tokens, and its adapters."""
    full = base.expand() if config.init_layers is None else with_layers(base, config.init_layers)
    if full.vocab is not None and (full.vocab < vocab or config.init_vocabulary.changes):
        full = with_vocab(full, vocab)
    full = config.objective.model_for(full)
    return full if config.adapters is None else with_adapters(full, config.adapters)


def initial_model(parent: Model, config: RunConfig, pieces: Sequence[Sequence[int]] | None = None) -> Model:
    """Return the model of a run, from the weights of the one that it starts from.

    `pieces` are the parent's tokens that each token of another vocabulary is made of.
    Adapters of the parent stay trainable, unless the run has its own: then the parent's are merged first.
    """
    wanted = config.model.expand()
    model = parent if config.adapters is None else merge_adapters(parent)
    if config.init_layers is not None:
        model = choose_layers(model, config.init_layers)
    if pieces is not None:
        model = exchange_vocab(model, pieces, config.seed)
    elif wanted.vocab is not None:
        model = resize_vocab(model, wanted.vocab, config.seed)
    model = replace_output(model, config.objective.model_for(model.config), config.seed)
    if config.adapters is not None:
        model = add_adapters(model, config.adapters, seed=config.seed)
    if changes := diff(model.config, wanted):
        want = f"{changes[0].before}, the value of the model in init"
        raise ConfigError(f"model.{changes[0].path}", want=want, got=changes[0].after)
    return model


def choose_trainable(model: Model, frozen: Sequence[str], unfrozen: Sequence[str], new: Sequence[str] = ()) -> None:
    """Freeze the weights whose names match `frozen`, then unfreeze those that match `unfrozen`.

    Names that begin with one of `new` are those of an objective's own output, which learns beside adapters.
    """
    for name, weight in model.named_parameters():
        if any(name.startswith(prefix) for prefix in new):
            weight.requires_grad_(True)
    for field, patterns, learns in (("frozen", frozen, False), ("unfrozen", unfrozen, True)):
        for number, pattern in enumerate(patterns):
            for weight in _matching(model, pattern, f"{field}.{number}"):
                weight.requires_grad_(learns)
    if not model.trainable():
        raise ConfigError("frozen", f"all weights are frozen by {list(frozen)}; nothing is left to train")


def _matching(model: Model, pattern: str, field: str) -> Iterator[nn.Parameter]:
    """Yield the weights that a pattern names; a tied one by any of its names."""
    names = {name: weight for name, weight in model.named_parameters(remove_duplicate=False)}
    found = [weight for name, weight in names.items() if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise ConfigError(field, want="a pattern of names of weights", got=pattern, near=nearest(pattern, names))
    yield from found


def describe_trainable(model: Model) -> str | None:
    """Return how many weights are trained, where not all are."""
    learned, total = (sum(p.numel() for p in found) for found in (model.trainable().values(), model.parameters()))
    return None if learned == total else f"training {learned:,} of {total:,} weights"
