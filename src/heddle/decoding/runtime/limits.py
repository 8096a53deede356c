"""Limits of a model (ids, context length, KV cache), padding of rows, and evaluation mode."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import overload

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import UsageError
from heddle.core.shapes import Ids
from heddle.decoding.runtime.requests import Source
from heddle.models.networks import AutoregressiveModel, BaseTower, Model
from heddle.nn.base import Module


def check_prompt(
    model: AutoregressiveModel, prompt: Sequence[int], begin: int | None = None, endless: bool = False
) -> Sequence[int]:
    """Return the prompt, or `begin` if it is empty; refuse unknown ids and, unless `endless`, more than the context."""
    return _check_ids(model, None if endless else model.decoder_tower, prompt, begin, "prompt")


@overload
def check_source(model: AutoregressiveModel, source: Sequence[int], begin: int | None = None) -> Sequence[int]: ...
@overload
def check_source(model: AutoregressiveModel, source: Source, begin: int | None = None) -> Source: ...
def check_source(model: AutoregressiveModel, source: Source, begin: int | None = None) -> Source:
    """Return the source, or `begin` if it is empty; refuse what the encoder cannot read, such as ids for features."""
    if isinstance(source, Tensor):
        model.source_tower.embedding.check_input(source)
        return source
    if model.reads != "ids":
        raise UsageError(f"source: want {model.reads} of features, because the model reads no text, got ids of tokens")
    return _check_ids(model, model.source_tower, source, begin, "source")


def _check_ids(
    model: AutoregressiveModel, reader: BaseTower | None, ids: Sequence[int], begin: int | None, what: str
) -> Sequence[int]:
    if not len(ids):
        if begin is None:
            raise UsageError(f"an empty {what} needs an id to begin from, and none is given")
        ids = [begin]
    for id in ids:
        if not 0 <= id < model.vocab:
            raise UsageError(f"{what}: want ids from 0 to {model.vocab - 1}, got {id}")
    if reader is not None and not _within(model, reader, len(ids)):
        raise UsageError(f"{what}: {len(ids)} tokens are more than the model's context of {model.context}")
    return ids


def fits_context(model: AutoregressiveModel, length: int) -> bool:
    """Tell whether a model can continue a prompt of this length."""
    return _within(model, model.decoder_tower, length)


def _within(model: AutoregressiveModel, reader: BaseTower, length: int) -> bool:
    return length <= model.context or not has_kv_cache(reader)


def has_kv_cache(reader: Module) -> bool:
    """Tell whether a stack has a KV cache, which grows with every token; a recurrent stack has no limit of length."""
    return any(m.state_elements() for m in reader.modules() if isinstance(m, Module))


def longest_row(model: AutoregressiveModel) -> int | None:
    """Return the largest number of tokens that a row may have, as for a prompt; None: no limit."""
    limits = [model.context] if has_kv_cache(model.decoder_tower) else []
    return min(limits if model.max_length is None else [*limits, model.max_length], default=None)


def decodes_with_kv_cache(model: AutoregressiveModel) -> bool:
    """Tell whether a model generates with a KV cache."""
    return has_kv_cache(model.decoder_tower)


def device_of(model: Model) -> torch.device:
    """Return the device of the model's weights."""
    return next(model.parameters()).device


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Ids, Int[Tensor, " batch"] | None]:
    """Return rows as one tensor, padded on the right, and their lengths; None if all lengths are equal.

    Without lengths, attention needs no mask and recurrent layers need no sorting.
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids = torch.tensor([[*row, *(0,) * (longest - len(row))] for row in rows], device=device)
    return ids, None if min(lengths) == longest else torch.tensor(lengths, device=device)


def pad_sources(sources: Sequence[Source], device: torch.device) -> tuple[Tensor, Int[Tensor, " batch"] | None]:
    """Return sources as one tensor, padded, and their lengths, as `pad_rows` does; images are all of one shape."""
    features = [source for source in sources if isinstance(source, Tensor)]
    if len(features) < len(sources):
        return pad_rows([source for source in sources if not isinstance(source, Tensor)], device)
    lengths = [len(source) for source in features]
    padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True).to(device)
    return padded, None if min(lengths) == max(lengths) else torch.tensor(lengths, device=device)


@contextlib.contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Put a model into evaluation mode (no dropout) and restore the mode of each module afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
