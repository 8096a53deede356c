"""Pseudo-log-likelihood (PLL) of masked language modelling: the loss of each token of a text, masked one at a time.

The sum over a text is its pseudo-log-likelihood (Salazar et al. 2020). Other tokens of its word can be masked with a
token, since they would give it away (Kauf & Ivanova 2023). A text is read whole, once for each of its tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import device_of, eval_mode, has_kv_cache, pad_rows
from heddle.decoding.scoring.scoring import AHEAD, BATCH, Document, Losses, length_batches
from heddle.models.networks import Encoder, Model
from heddle.nn.base import Context


@dataclass(frozen=True)
class MaskedText:
    """Ids to score, the context around them, and for each id the span of ids that is masked with it."""

    ids: Document
    left: Document = ()  # context before them
    spans: Sequence[tuple[int, int]] | None = None  # None: each alone
    right: Document = ()  # context after them


@dataclass(frozen=True)
class _MaskedCopy:
    """A text in which some tokens are masked, one of which is scored."""

    document: int
    token: int  # index in the ids
    place: int  # of the token in the row
    masked: tuple[int, int]


@torch.inference_mode()
def nll_masked(model: Encoder, texts: Iterable[MaskedText], mask: int, begin: int) -> Iterator[Losses]:
    """Yield the losses in nats of each text's tokens, each predicted from all others, in float32 on the CPU.

    A row begins with `begin`, as in training. Texts are read as they come.
    """
    model.masked_output()  # refuses an encoder without one
    rows: list[NDArray[np.int64]] = []
    losses: list[Tensor] = []
    copies: list[_MaskedCopy] = []
    held = 0
    for text in texts:
        row = check_encoder_input(model, [begin, *text.left, *text.ids, *text.right])
        copies += _copies(len(rows), text)
        rows.append(row)
        losses.append(torch.empty(len(text.ids)))
        held += len(row) * len(text.ids)
        if held >= AHEAD * BATCH:
            _fill(model, rows, copies, losses, mask)
            yield from losses
            rows, losses, copies, held = [], [], [], 0
    _fill(model, rows, copies, losses, mask)
    yield from losses


def check_encoder_input(model: Model, ids: Document) -> NDArray[np.int64]:
    """Return the ids as an array; refuse what the encoder cannot read at once."""
    row = np.asarray(ids, dtype=np.int64)
    if model.vocab is None:
        raise UsageError("want an encoder of tokens; this one sees images")
    if not len(row):
        raise UsageError("text: want one id or more, got none")
    if not 0 <= row.min() <= row.max() < model.vocab:
        wrong = row.min() if row.min() < 0 else row.max()
        raise UsageError(f"text: want ids from 0 to {model.vocab - 1}, got {wrong}")
    if len(row) > model.context and has_kv_cache(model):
        counted = f"{len(row)} tokens, the beginning counted,"
        raise UsageError(f"text: {counted} are more than the model's context of {model.context}")
    return row


def _copies(document: int, text: MaskedText) -> Iterator[_MaskedCopy]:
    start = 1 + len(text.left)
    for token in range(len(text.ids)):
        first, last = (token, token + 1) if text.spans is None else text.spans[token]
        yield _MaskedCopy(document, token, start + token, (start + first, start + last))


def _fill(
    model: Encoder, rows: list[NDArray[np.int64]], copies: list[_MaskedCopy], losses: list[Tensor], mask: int
) -> None:
    """Read all copies, those of similar length in one batch, and put each loss in its place."""
    with eval_mode(model):
        for numbers in length_batches([len(rows[copy.document]) for copy in copies]):
            batch = [copies[number] for number in numbers]
            found = _read(model, [rows[copy.document] for copy in batch], batch, mask)
            for copy, loss in zip(batch, found.tolist(), strict=True):
                losses[copy.document][copy.token] = loss


def _read(model: Encoder, rows: list[NDArray[np.int64]], copies: list[_MaskedCopy], mask: int) -> Losses:
    ids, lengths = pad_rows([row.tolist() for row in rows], device_of(model))
    places = torch.tensor([copy.place for copy in copies], device=ids.device)
    edges = torch.tensor([copy.masked for copy in copies], device=ids.device)
    targets = ids.gather(1, places[:, None])
    along = torch.arange(ids.shape[1], device=ids.device)
    masked = ids.masked_fill((along >= edges[:, :1]) & (along < edges[:, 1:]), mask)
    vectors, ctx = model.run(masked, Context(lengths=lengths))
    if vectors.shape[1] != ids.shape[1]:
        raise UsageError("want an encoder with a vector for each token; this one pools them")
    hidden = vectors.take_along_dim(places[:, None, None], dim=1)
    return model.output(model.masked_output()).nll(hidden, targets, ctx)[:, 0].float().cpu()
