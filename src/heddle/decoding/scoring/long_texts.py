"""Scoring long texts from state to state, past the trained context too: whole, or with attention sinks and a window.

A text is read once, in pieces; each token sees what the state holds of all that came before it. With the whole text in
the KV cache, that is all of it; with sinks (StreamingLLM, Xiao et al. 2023), memory is constant; a recurrent model has
its hidden state.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import UsageError
from heddle.core.shapes import Ids, Stream
from heddle.decoding.runtime import Streaming, StreamingConfig, device_of, eval_mode, pad_rows
from heddle.decoding.scoring.scoring import (
    AHEAD,
    BATCH,
    Continuation,
    Document,
    Losses,
    TokenLoss,
    document_ids,
    length_batches,
)
from heddle.models.networks import LanguageModel

PIECE = 512  # tokens of each row read at once where all of the text is kept

Row = tuple[NDArray[np.int64], int]  # ids, and how many of their targets are context


@torch.inference_mode()
def nll_long_texts(
    model: LanguageModel,
    documents: Iterable[Document | Continuation],
    begin: int,
    streaming: StreamingConfig | None = None,
    token_loss: TokenLoss | None = None,
) -> Iterator[Losses]:
    """Yield each document's losses in nats, for each token; it is read once, however long it is."""
    if model.sight != "past":
        raise UsageError("scoring: want a model that sees the past only; this one sees the whole text")
    reader = None if streaming is None else Streaming(model, streaming)
    token_loss = model.head.nll if token_loss is None else token_loss
    for rows in _gathered(model, documents, begin):
        losses = [torch.empty(0)] * len(rows)
        with eval_mode(model):
            for numbers in length_batches([len(ids) for ids, _ in rows]):
                found = _read(model, reader, [rows[number] for number in numbers], token_loss)
                for number, loss in zip(numbers, found, strict=True):
                    losses[number] = loss
        yield from losses


def _gathered(model: LanguageModel, documents: Iterable[Document | Continuation], begin: int) -> Iterator[list[Row]]:
    rows: list[Row] = []
    held = 0
    for document in documents:
        rows.append(document_ids(model, document, begin))
        held += len(rows[-1][0])
        if held >= AHEAD * BATCH:
            yield rows
            rows, held = [], 0
    yield rows


def _read(model: LanguageModel, reader: Streaming | None, rows: list[Row], token_loss: TokenLoss) -> list[Tensor]:
    ids, _ = pad_rows([row.tolist() for row, _ in rows], device_of(model))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    ends, starts = (torch.tensor(edge) for edge in zip(*((len(row) - 1, known) for row, known in rows), strict=True))
    lengths = None if int(ends.min()) == inputs.shape[1] else ends.to(ids.device)
    found: list[list[Tensor]] = [[] for _ in rows]
    for start, vectors in _pieces(model, reader, inputs, lengths):
        place = torch.arange(start, start + vectors.shape[1])
        counted = (place >= starts[:, None]) & (place < ends[:, None])
        on = counted.to(ids.device)
        losses = token_loss(vectors[on], targets[:, start : start + vectors.shape[1]][on]).float().cpu()
        for pieces, own in zip(found, losses.split(counted.sum(1).tolist()), strict=True):
            pieces.append(own)
    return [torch.cat(pieces) if pieces else torch.empty(0) for pieces in found]


def _pieces(
    model: LanguageModel, reader: Streaming | None, inputs: Ids, lengths: Int[Tensor, " batch"] | None
) -> Iterator[tuple[int, Stream]]:
    """Yield the vectors of consecutive pieces of rows, and where each begins."""
    if not inputs.shape[1]:
        return
    if reader is not None:
        for start, vectors, _ in reader.read(inputs, lengths, reader.new_state(len(inputs))):
            yield start, vectors
        return
    state = model.new_state(len(inputs), inputs.shape[1])
    for start in range(0, inputs.shape[1], PIECE):
        piece = inputs[:, start : start + PIECE]
        new = None if lengths is None else (lengths - start).clamp(0, piece.shape[1])
        vectors, state = model.step(piece, state, lengths=new)
        yield start, vectors
