"""Resize the vocabulary: add or remove tokens; the others keep their embeddings and logits (Hewitt 2021).

Or exchange it: a new token begins as the mean of the old ones that it is made of (Gee et al. 2022, FVT).
"""

from collections.abc import Sequence

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


@torch.no_grad()
def exchange_vocab(model: Model, pieces: Sequence[Sequence[int]], seed: int = 0) -> Model:
    """Return a model with another vocabulary, given the old ids that each new token is made of.

    In every table with a row for each token (embeddings, outputs and their biases), tied ones once, the row of a token
    is the mean of those of its pieces: of one piece its row, bit for bit. Of none it is the mean of all old rows, with
    noise, as for `resize_vocab`. All other weights are shared with the given model.
    """
    config = with_vocab(model.config, len(pieces))
    own, full = model.weights(), model.config.expand()
    made, _ = rebuild(model, config)
    larger = dict(build_meta(replace(full, vocab=(full.vocab or 0) + 1)).named_parameters())
    count = torch.tensor([len(one) for one in pieces])
    flat = torch.tensor([id for one in pieces for id in one], dtype=torch.long)
    for name, weight in made.named_parameters():
        if larger[name].shape != own[name].shape:
            old = own[name]
            at = (flat.to(old.device), count.repeat_interleave(count).to(old))
            owner = torch.arange(len(pieces)).repeat_interleave(count).to(old.device)
            parts = old[at[0]] / at[1].view(-1, *[1] * (old.dim() - 1))
            rows = old.new_zeros(len(pieces), *old.shape[1:]).index_add_(0, owner, parts)
            unknown = (count == 0).nonzero().flatten()
            draw = generator(seed, Purpose.INIT, name, "resize")
            rows[unknown.to(old.device)] = _rows(old, len(unknown), draw).to(old)
            weight.data = rows
        weight.requires_grad_(model.get_parameter(name).requires_grad)
    return made


def _rows(old: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return new rows: the mean of the old ones, with noise."""
    table = old.double()
    noise = torch.empty(count, *old.shape[1:]).normal_(generator=draw)  # on the CPU: the same on every device
    return table.mean(0) + NOISE * table.std(0, correction=0) * noise.to(table)
