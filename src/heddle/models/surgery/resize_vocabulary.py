"""Resize the vocabulary: add or remove tokens; the others keep their embeddings and logits (Hewitt 2021)."""

import torch
from torch import Tensor

from heddle.core import ConfigError, Purpose, generator, replace
from heddle.models.networks import Model, ModelConfig, NetworkConfig
from heddle.models.summary import build_meta
from heddle.models.surgery.rebuild import rebuild

NOISE = 0.01  # share of each column's deviation: enough to tell new tokens apart


def with_vocab(config: ModelConfig, vocab: int) -> NetworkConfig:
    """Return a config with another vocabulary; refuse tables without a row for each token."""
    full = config.expand()
    if full.vocab is None:
        raise ConfigError("vocab", want="a model that reads tokens, to resize it", got="one that reads images")
    changed = replace(full, vocab=vocab)
    before, after = (dict(build_meta(each).named_parameters()) for each in (full, changed))
    for name, weight in after.items():
        old = before[name].shape
        by_token = old == weight.shape or (old[0] == full.vocab and weight.shape == (vocab, *old[1:]))
        if not by_token:
            want = f"{full.vocab}, because {name} does not have one row per token"
            raise ConfigError("vocab", want=want, got=vocab)
    return changed


@torch.no_grad()
def resize_vocab(model: Model, vocab: int, seed: int = 0) -> Model:
    """Return a model with another vocabulary: rows beyond it are removed, new ones are the mean of the old rows.

    With the mean row, a new token has the mean logit, so that it takes little probability from the others; small random
    rows would give a logit of 0, which takes nearly all of it where all other logits are far below. A little noise lets
    new tokens learn different things. All other weights are shared with the given model.
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
    """Return new rows: the mean of the old ones, with noise."""
    table = old.double()
    noise = torch.empty(count, *old.shape[1:]).normal_(generator=draw)  # on the CPU: the same on every device
    return table.mean(0) + NOISE * table.std(0, correction=0) * noise.to(table)
