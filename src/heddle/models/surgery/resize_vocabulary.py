"""Resizing: a model with more tokens or fewer, whose old ones keep their vectors and scores (Hewitt 2021)."""

import torch
from torch import Tensor

from heddle.core import ConfigError, Purpose, generator, replace
from heddle.models.networks import Model, ModelConfig, NetworkConfig
from heddle.models.summary import build_meta
from heddle.models.surgery.rebuild import rebuild

NOISE = 0.01  # of each column's deviation: enough to tell new tokens apart, too little to be heard


def with_vocab(config: ModelConfig, vocab: int) -> NetworkConfig:
    """Return a config with another vocabulary; one whose tables have no row for each token is refused."""
    full = config.expand()
    if full.vocab is None:
        raise ConfigError("vocab", want="a model that reads tokens, to resize it", got="one that reads images")
    changed = replace(full, vocab=vocab)
    before, after = (dict(build_meta(each).named_parameters()) for each in (full, changed))
    for name, weight in after.items():
        old = before[name].shape
        by_token = old == weight.shape or (old[0] == full.vocab and weight.shape == (vocab, *old[1:]))
        if not by_token:
            raise ConfigError("vocab", want=f"{full.vocab}, for {name} has no row for each token", got=vocab)
    return changed


@torch.no_grad()
def resize_vocab(model: Model, vocab: int, seed: int = 0) -> Model:
    """Return a model with another vocabulary: rows beyond it are cut off, new ones begin as the mean of the old.

    With the mean as its vector, a new token scores what tokens score on average, so that it takes as little from the
    old ones as can be said without knowing it; random small rows would score 0, which among scores that are all far
    below takes nearly everything. A little noise lets two new tokens learn different things. All other weights are
    shared with the given model.
    """
    config = with_vocab(model.config, vocab)
    if config == model.config:
        return model
    own = model.weights()
    made, changed = rebuild(model, config)
    for name, weight in changed.items():
        kept = own[name][:vocab]
        rows = _rows(own[name], vocab - len(kept), generator(seed, Purpose.INIT, name, "resize"))
        weight.data = torch.cat((kept, rows.to(kept)))
    for name, weight in made.named_parameters():
        weight.requires_grad_(model.get_parameter(name).requires_grad)
    return made


def _rows(old: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return new rows like the old ones' mean."""
    table = old.double()
    noise = torch.empty(count, *old.shape[1:]).normal_(generator=draw)  # on the CPU: the same on every device
    return table.mean(0) + NOISE * table.std(0, correction=0) * noise.to(table)
