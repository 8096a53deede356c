"""Scoring: how probable is each token of a document, read through a window that slides by a stated stride.

Each token is scored once. The first window of a document scores all that it holds; each later one starts `stride`
tokens further on and scores the tokens that the one before did not reach, so that they have at least `length - stride`
tokens of context. A document always begins from one given id, as it does in training. A target of an encoder-decoder
is read whole, beside its source. Either may go on from a context, whose own tokens are not scored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import Config, ConfigError, UsageError, check_at_least, settings
from heddle.decoding.runtime import check_source, device_of, eval_mode, has_kv_cache, pad_rows
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, LanguageModel
from heddle.nn.base import Context

Document = Sequence[int] | NDArray[Any]
Losses = Float[Tensor, " length"]
Measure = Callable[[Float[Tensor, "count width"], Int[Tensor, " count"]], Float[Tensor, " count"]]

BATCH = 1 << 13  # tokens read at once
AHEAD = 16  # batches gathered before any is read, so that windows of one length meet
FEW = 1 << 9  # places whose odds of the whole vocabulary exist at once


@dataclass(frozen=True)
class Continuation:
    """Ids to score, and those that come before them in the same document."""

    ids: Document
    after: Document = ()


@settings
class Windows(Config):
    """How a document is read: `length` tokens at a time, each window `stride` tokens after the one before."""

    length: int
    stride: int

    def __post_init__(self) -> None:
        check_at_least(1, window=self.length)
        if not 1 <= self.stride <= self.length:
            raise ConfigError("stride", want=f"1 to the window of {self.length}", got=self.stride)


def scoring_windows(model: LanguageModel, length: int | None = None, stride: int | None = None) -> Windows:
    """Return the windows asked for; by default the model's context, sliding by half."""
    length = model.context if length is None else length
    if length > model.context and has_kv_cache(model):
        raise UsageError(f"window: want at most the model's context of {model.context} tokens, got {length}")
    return Windows(length=length, stride=max(1, length // 2) if stride is None else stride)


@dataclass(frozen=True)
class _Window:
    """One window of one document: its ids, from which of its targets on it scores, and where these losses go."""

    document: int
    place: int
    skip: int
    ids: NDArray[np.int64]  # one more than it has targets: the token before the first comes first


@torch.inference_mode()
def nll_sliding_window(
    model: LanguageModel,
    documents: Iterable[Document | Continuation],
    windows: Windows,
    begin: int,
    measure: Measure | None = None,
) -> Iterator[Losses]:
    """Yield each document's losses in nats, one for each token, in float32 on the CPU, in order.

    Documents are read as they come, so that a corpus need not fit in memory. Another `measure` than the head's loss
    may be taken of the vector before each token and the token itself.
    """
    if model.sight != "past":
        raise UsageError("scoring needs a model that sees the past only, and this one sees all")
    model.position.reserve(windows.length)
    measure = model.head.nll if measure is None else measure
    losses: list[Tensor] = []  # of the documents gathered
    gathered: list[_Window] = []
    held = 0
    for document in documents:
        ids, known = row_of(model, document, begin)
        gathered += _cut(len(losses), *_near(ids, known, windows), windows)
        losses.append(torch.empty(len(ids) - 1 - known))
        held += len(ids)
        if held >= AHEAD * BATCH:
            _fill(model, gathered, losses, measure)
            yield from losses
            losses, gathered, held = [], [], 0
    _fill(model, gathered, losses, measure)
    yield from losses


def row_of(model: AutoregressiveModel, document: Document | Continuation, begin: int) -> tuple[NDArray[np.int64], int]:
    """Return a document's ids after the one that it begins from, and how many of these targets are but context."""
    if not isinstance(document, Continuation):
        return checked(model, document, begin), 0
    before, after = (np.asarray(ids, dtype=np.int64) for ids in (document.after, document.ids))
    return checked(model, np.concatenate([before, after]), begin), len(before)


def checked(model: AutoregressiveModel, document: Document, begin: int) -> NDArray[np.int64]:
    """Return a document's ids after the one that it begins from; refuse those that the model does not know."""
    ids = np.concatenate([[begin], np.asarray(document, dtype=np.int64)])
    if not 0 <= ids.min() <= ids.max() < model.vocab:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise UsageError(f"document: want ids from 0 to {model.vocab - 1}, got {wrong}")
    return ids


def _near(ids: NDArray[np.int64], known: int, windows: Windows) -> tuple[NDArray[np.int64], int]:
    """Drop what no window need hold of a context: what is scored keeps `length - stride` tokens before it or more."""
    wanted = len(ids) - 1 - known
    spare = known + 1 - max(windows.length - wanted + 1, windows.length - windows.stride, 1)
    return (ids[spare:], known - spare) if known and spare > 0 else (ids, known)


def _cut(document: int, ids: NDArray[np.int64], known: int, windows: Windows) -> Iterator[_Window]:
    targets = len(ids) - 1
    scored, start = known, 0
    while scored < targets:
        stop = min(start + windows.length, targets)
        yield _Window(document, scored - known, scored - start, ids[start : stop + 1])
        scored, start = stop, start + windows.stride


def length_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of rows to be read at once: those of near length, few where they are long, the longest first.

    So memory does not grow with how many there are, nor one long row with all the others.
    """
    ordered = sorted(range(len(lengths)), key=lambda number: lengths[number])
    while ordered:
        count = max(1, BATCH // max(1, lengths[ordered[-1]]))
        yield ordered[-count:]
        del ordered[-count:]


def _fill(model: LanguageModel, gathered: list[_Window], losses: list[Tensor], measure: Measure) -> None:
    """Read all windows, those of near length side by side, and put each loss in its place."""
    with eval_mode(model):
        for numbers in length_batches([len(window.ids) for window in gathered]):
            batch = [gathered[number] for number in numbers]
            for window, found in zip(batch, _read(model, batch, measure), strict=True):
                losses[window.document][window.place : window.place + len(found)] = found


def _read(model: LanguageModel, batch: list[_Window], measure: Measure) -> list[Tensor]:
    longest = max(len(w.ids) for w in batch) - 1
    pad_rows = np.zeros((len(batch), longest + 1), dtype=np.int64)  # on the right, where the past cannot see it
    counts = torch.zeros(len(batch), longest, dtype=torch.bool)
    for i, window in enumerate(batch):
        pad_rows[i, : len(window.ids)] = window.ids
        counts[i, window.skip : len(window.ids) - 1] = True
    ids, counted = (t.to(device_of(model)) for t in (torch.from_numpy(pad_rows), counts))
    vectors = model(ids[:, :-1])
    found = measure(vectors[counted], ids[:, 1:][counted]).float().cpu()
    return list(found.split(counts.sum(1).tolist()))


def any_token_loss(model: AutoregressiveModel, members: Sequence[int]) -> Measure:
    """Return a measure: what it costs that one of these ids comes, whichever, where one does; 0 where none does."""
    member = torch.zeros(model.vocab, dtype=torch.bool, device=device_of(model))
    member[list(members)] = True

    def measure(vectors: Float[Tensor, "count width"], targets: Int[Tensor, " count"]) -> Losses:
        losses = torch.zeros(len(targets), device=targets.device)
        comes: Bool[Tensor, " count"] = member[targets]
        chunks = [_cost(model, few, member) for few in vectors[comes].split(FEW)]
        losses[comes] = torch.cat(chunks) if chunks else losses[:0]
        return losses

    return measure


def _cost(model: AutoregressiveModel, vectors: Tensor, member: Tensor) -> Tensor:
    odds = model.head.logits(vectors).float().log_softmax(-1)
    return -odds[:, member].logsumexp(-1)


# --- given a source ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def nll_given_source(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Document | Continuation],
    begin: int,
    measure: Measure | None = None,
) -> list[Losses]:
    """Return each target's losses in nats given its source, one for each token, in float32 on the CPU, in order."""
    if len(sources) != len(targets):
        raise UsageError(f"source: want {len(targets)}, one for each target, got {len(sources)}")
    measure = model.head.nll if measure is None else measure
    read = [check_source(model, source, begin) for source in sources]
    rows = [_whole(model, target, begin) for target in targets]
    losses = [torch.empty(0)] * len(rows)
    asked = [i for i, (ids, known) in enumerate(rows) if len(ids) > 1 + known]
    order = sorted(asked, key=lambda i: (len(rows[i][0]), len(read[i])))
    longest = max(map(len, read), default=0)
    with eval_mode(model):
        while order:
            count = max(1, BATCH // (len(rows[order[-1]][0]) + longest))
            batch, order = order[-count:], order[:-count]
            found = _read_given(model, [read[i] for i in batch], [rows[i] for i in batch], measure)
            for index, loss in zip(batch, found, strict=True):
                losses[index] = loss
    return losses


def _whole(model: EncoderDecoder, target: Document | Continuation, begin: int) -> tuple[NDArray[np.int64], int]:
    ids, known = row_of(model, target, begin)
    if len(ids) - 1 > model.context and has_kv_cache(model.decoder):
        raise UsageError(f"text: {len(ids) - 1} tokens are more than the model's context of {model.context}")
    return ids, known


def _read_given(
    model: EncoderDecoder,
    sources: list[Sequence[int]],
    rows: list[tuple[NDArray[np.int64], int]],
    measure: Measure,
) -> list[Tensor]:
    memory = model.encode(*pad_rows(sources, device_of(model)))
    ids, _ = pad_rows([row.tolist() for row, _ in rows], device_of(model))
    ends, starts = (torch.tensor(edge) for edge in zip(*((len(row) - 1, known) for row, known in rows), strict=True))
    place = torch.arange(ids.shape[1] - 1)
    counted = ((place >= starts[:, None]) & (place < ends[:, None])).to(ids.device)
    vectors = model(ids[:, :-1], Context(memory=memory))
    found = measure(vectors[counted], ids[:, 1:][counted]).float().cpu()
    return list(found.split((ends - starts).tolist()))
