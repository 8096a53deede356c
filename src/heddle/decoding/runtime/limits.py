"""Reach: what a model can take (ids, lengths, room), and how it is held while it is used."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import UsageError
from heddle.core.shapes import Ids
from heddle.models.networks import AutoregressiveModel, BaseTower, Model
from heddle.nn.base import Module


def check_prompt(model: AutoregressiveModel, prompt: Sequence[int], begin: int | None = None) -> Sequence[int]:
    """Return a prompt that the model can go on from, an empty one begun with `begin`; refuse any other."""
    return _checked(model, model.decoder_tower, prompt, begin, "prompt")


def check_source(model: AutoregressiveModel, source: Sequence[int], begin: int | None = None) -> Sequence[int]:
    """Return a source that the encoder can read, an empty one made of `begin` alone; refuse any other."""
    return _checked(model, model.source_tower, source, begin, "source")


def _checked(
    model: AutoregressiveModel, reader: BaseTower, ids: Sequence[int], begin: int | None, what: str
) -> Sequence[int]:
    if not len(ids):
        if begin is None:
            raise UsageError(f"an empty {what} needs an id to begin from, and none is given")
        ids = [begin]
    for id in ids:
        if not 0 <= id < model.vocab:
            raise UsageError(f"{what}: want ids from 0 to {model.vocab - 1}, got {id}")
    if not _within(model, reader, len(ids)):
        raise UsageError(f"{what}: {len(ids)} tokens are more than the model's context of {model.context}")
    return ids


def fits_context(model: AutoregressiveModel, length: int) -> bool:
    """Tell whether a model can go on from so many tokens."""
    return _within(model, model.decoder_tower, length)


def _within(model: AutoregressiveModel, reader: BaseTower, length: int) -> bool:
    return length <= model.context or not has_kv_cache(reader)


def has_kv_cache(reader: Module) -> bool:
    """Tell whether a stack keeps something of every token, as attention does; a recurrent one reads on for ever."""
    return any(m.state_elements() for m in reader.modules() if isinstance(m, Module))


def decodes_with_kv_cache(model: AutoregressiveModel) -> bool:
    """Tell whether what a model writes goes through caches."""
    return has_kv_cache(model.decoder_tower)


def device_of(model: Model) -> torch.device:
    """Return where the model's weights are."""
    return next(model.parameters()).device


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Ids, Int[Tensor, " batch"] | None]:
    """Return rows as one tensor, padded on the right, and their lengths; None where all are of one length.

    Rows of one length spare attention the masking and recurrent parts the sorting.
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([[*row, *(0,) * (longest - len(row))] for row in rows], device=device)
    return ids, None if min(lengths) == longest else torch.tensor(lengths, device=device)


@contextlib.contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Switch dropout off for a while."""
    busy = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in busy:
            module.training = True
