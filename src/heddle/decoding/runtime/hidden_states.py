"""Reading: rows -> the vectors of all their tokens, a chunk at a time, and the state after them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core.shapes import Stream
from heddle.decoding.runtime.limits import device_of, pad_rows
from heddle.decoding.runtime.prefill import Prefill, Prompt
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import State


def read_all(
    model: AutoregressiveModel, start: Prefill, rows: Sequence[Prompt]
) -> tuple[Stream, Int[Tensor, " batch"], State]:
    """Read rows that begin as the prompts do; return their vectors, padded on the right, their lengths, the state."""
    ids, new = pad_rows(rows, device_of(model))
    state, pieces = start.first_state(model, ids.shape[1]), []
    for first in range(0, ids.shape[1], start.chunk):
        piece = ids[:, first : first + start.chunk]
        real = None if new is None else (new - first).clamp(0, piece.shape[1])
        vectors, state = model.step(piece, state, new=real)
        pieces.append(vectors)
    lengths = torch.full((len(ids),), ids.shape[1], device=ids.device) if new is None else new
    return torch.cat(pieces, 1), lengths, state
