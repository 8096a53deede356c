"""Scoring: how probable is each token of a document, read through a window that slides by a stated stride.

Each token is scored once. The first window of a document scores all that it holds; each later one starts `stride`
tokens further on and scores the tokens that the one before did not reach, so that they have at least `length - stride`
tokens of context. A document always begins from one given id, as it does in training. A target of an encoder-decoder
is read whole, beside its source.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import Config, ConfigError, UsageError, settings
from heddle.decoding.reach import at_rest, device_of, grows, padded, readable, readable_source
from heddle.models import EncoderDecoder, LanguageModel
from heddle.nn import Context

Document = Sequence[int] | NDArray[Any]
Losses = Float[Tensor, " length"]

BATCH = 1 << 13  # tokens read at once
AHEAD = 16  # batches gathered before any is read, so that windows of one length meet


@settings
class Windows(Config):
    """How a document is read: `length` tokens at a time, each window `stride` tokens after the one before."""

    length: int
    stride: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError("window", want="at least 1", got=self.length)
        if not 1 <= self.stride <= self.length:
            raise ConfigError("stride", want=f"1 to the window of {self.length}", got=self.stride)


def windows_for(model: LanguageModel, length: int | None = None, stride: int | None = None) -> Windows:
    """Return the windows asked for; by default the model's context, sliding by half."""
    length = model.context if length is None else length
    if length > model.context and grows(model):
        raise UsageError(f"window: want at most the model's context of {model.context} tokens, got {length}")
    return Windows(length=length, stride=max(1, length // 2) if stride is None else stride)


@dataclass(frozen=True)
class _Window:
    """One window of one document: its ids, and from which of its targets on it scores."""

    document: int
    start: int
    skip: int
    ids: NDArray[np.int64]  # one more than it has targets: the token before the first comes first


@torch.inference_mode()
def nll_of(model: LanguageModel, documents: Iterable[Document], windows: Windows, begin: int) -> Iterator[Losses]:
    """Yield each document's losses in nats, one for each token, in float32 on the CPU, in order.

    Documents are read as they come, so that a corpus need not fit in memory.
    """
    if model.sight != "past":
        raise UsageError("scoring needs a model that sees the past only, and this one sees all")
    model.position.reach(windows.length)
    losses: list[Tensor] = []  # of the documents gathered
    gathered: list[_Window] = []
    held = 0
    for document in documents:
        ids = checked(model, document, begin)
        gathered += _cut(len(losses), ids, windows)
        losses.append(torch.empty(len(ids) - 1))
        held += len(ids)
        if held >= AHEAD * BATCH:
            _fill(model, gathered, losses)
            yield from losses
            losses, gathered, held = [], [], 0
    _fill(model, gathered, losses)
    yield from losses


def checked(model: LanguageModel, document: Document, begin: int) -> NDArray[np.int64]:
    """Return a document's ids after the one that it begins from; refuse those that the model does not know."""
    ids = np.concatenate([[begin], np.asarray(document, dtype=np.int64)])
    if not 0 <= ids.min() <= ids.max() < model.vocab:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise UsageError(f"document: want ids from 0 to {model.vocab - 1}, got {wrong}")
    return ids


def _cut(document: int, ids: NDArray[np.int64], windows: Windows) -> Iterator[_Window]:
    targets = len(ids) - 1
    scored = start = 0
    while scored < targets:
        stop = min(start + windows.length, targets)
        yield _Window(document, start, scored - start, ids[start : stop + 1])
        scored, start = stop, start + windows.stride


def _fill(model: LanguageModel, gathered: list[_Window], losses: list[Tensor]) -> None:
    """Read all windows, those of near length side by side, and put each loss in its place."""
    ordered = sorted(gathered, key=lambda w: len(w.ids))
    with at_rest(model):
        while ordered:
            count = max(1, BATCH // len(ordered[-1].ids))
            batch, ordered = ordered[-count:], ordered[:-count]
            for window, found in zip(batch, _read(model, batch), strict=True):
                first = window.start + window.skip
                losses[window.document][first : first + len(found)] = found


def _read(model: LanguageModel, batch: list[_Window]) -> list[Tensor]:
    longest = max(len(w.ids) for w in batch) - 1
    padded = np.zeros((len(batch), longest + 1), dtype=np.int64)  # on the right, where the past cannot see it
    counts = torch.zeros(len(batch), longest, dtype=torch.bool)
    for i, window in enumerate(batch):
        padded[i, : len(window.ids)] = window.ids
        counts[i, window.skip : len(window.ids) - 1] = True
    ids, counted = (t.to(device_of(model)) for t in (torch.from_numpy(padded), counts))
    vectors = model(ids[:, :-1])
    found = model.head.nll(vectors[counted], ids[:, 1:][counted]).float().cpu()
    return list(found.split(counts.sum(1).tolist()))


# --- given a source ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def nll_given(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], begin: int
) -> list[Losses]:
    """Return each target's losses in nats given its source, one for each token, in float32 on the CPU, in order."""
    if len(sources) != len(targets):
        raise UsageError(f"source: want {len(targets)}, one for each target, got {len(sources)}")
    read = [readable_source(model, source, begin) for source in sources]
    whole = [[begin, *readable(model, target, begin)] if len(target) else [begin] for target in targets]
    losses = [torch.empty(0)] * len(whole)
    order = sorted((i for i in range(len(whole)) if len(whole[i]) > 1), key=lambda i: (len(whole[i]), len(read[i])))
    longest = max(map(len, read), default=0)
    with at_rest(model):
        while order:
            count = max(1, BATCH // (len(whole[order[-1]]) + longest))
            batch, order = order[-count:], order[:-count]
            found = _read_given(model, [read[i] for i in batch], [whole[i] for i in batch])
            for index, loss in zip(batch, found, strict=True):
                losses[index] = loss
    return losses


def _read_given(model: EncoderDecoder, sources: list[Sequence[int]], targets: list[list[int]]) -> list[Tensor]:
    memory = model.encode(*padded(sources, device_of(model)))
    ids, _ = padded(targets, device_of(model))
    counts = torch.tensor([len(target) - 1 for target in targets])
    counted = (torch.arange(ids.shape[1] - 1) < counts[:, None]).to(ids.device)
    vectors = model(ids[:, :-1], Context(memory=memory))
    found = model.head.nll(vectors[counted], ids[:, 1:][counted]).float().cpu()
    return list(found.split(counts.tolist()))
