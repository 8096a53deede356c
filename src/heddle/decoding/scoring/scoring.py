"""Scoring: the negative log-likelihood of each token of a document, read through a sliding window.

Each token is scored once. The first window of a document scores all its tokens; each later one starts `stride` tokens
further on and scores the tokens that the previous one did not reach, so that they have at least `length - stride`
tokens of context. A document always begins from one given id, as in training. A recurrent model can carry its state
from document to document instead. A target of an encoder-decoder is read whole, with its source. A continuation has a
context that is read but not scored.
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
from heddle.decoding.runtime import check_source, device_of, eval_mode, has_kv_cache, pad_rows, pad_sources
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, LanguageModel
from heddle.nn.base import Context

Document = Sequence[int] | NDArray[Any]
Losses = Float[Tensor, " length"]
TokenLoss = Callable[[Float[Tensor, "count width"], Int[Tensor, " count"]], Float[Tensor, " count"]]

BATCH = 1 << 13  # tokens read at once
AHEAD = 16  # batches gathered before any is read, so that windows of similar length share a batch
CHUNK = 1 << 9  # positions whose logits of the whole vocabulary exist at once
CARRIED_CHUNK = 1 << 12  # tokens read at once with carried state; changes nothing but memory


@dataclass(frozen=True)
class Continuation:
    """Ids to score, and the context before them in the same document."""

    ids: Document
    context: Document = ()


@settings
class ScoringWindows(Config):
    """A sliding window over a document: `length` tokens, each window `stride` tokens after the previous one."""

    length: int
    stride: int

    def __post_init__(self) -> None:
        check_at_least(1, window=self.length)
        if not 1 <= self.stride <= self.length:
            raise ConfigError("stride", want=f"1 to the window of {self.length}", got=self.stride)


def scoring_windows(model: LanguageModel, length: int | None = None, stride: int | None = None) -> ScoringWindows:
    """Return the requested windows; by default the model's context, with a stride of half of it."""
    length = model.context if length is None else length
    if length > model.context and has_kv_cache(model):
        raise UsageError(f"window: want at most the model's context of {model.context} tokens, got {length}")
    return ScoringWindows(length=length, stride=max(1, length // 2) if stride is None else stride)


@dataclass(frozen=True)
class _Window:
    """One window of one document: its ids, how many of its targets it skips, and where its losses go."""

    document: int
    place: int
    skip: int
    ids: NDArray[np.int64]  # one more than its targets: the token before the first comes first


@torch.inference_mode()
def nll_sliding_window(
    model: LanguageModel,
    documents: Iterable[Document | Continuation],
    windows: ScoringWindows,
    begin: int,
    token_loss: TokenLoss | None = None,
) -> Iterator[Losses]:
    """Sliding window evaluation: yield each document's losses in nats, for each token, in float32 on the CPU.

    Documents are read as they come, so that a corpus need not fit in memory. `token_loss` may replace the head's loss
    of a token given the hidden state before it.
    """
    yield from _by_window(model, documents, windows, begin, model.head.nll if token_loss is None else token_loss)


@torch.inference_mode()
def hidden_sliding_window(
    model: LanguageModel, documents: Iterable[Document | Continuation], windows: ScoringWindows, begin: int
) -> Iterator[Float[Tensor, "length width"]]:
    """Yield the hidden states before each document's tokens, as the head reads them, in float32 on the CPU."""
    yield from _by_window(model, documents, windows, begin, lambda vectors, targets: vectors, (model.config.width,))


def _by_window(
    model: LanguageModel,
    documents: Iterable[Document | Continuation],
    windows: ScoringWindows,
    begin: int,
    measure: TokenLoss,
    shape: tuple[int, ...] = (),
) -> Iterator[Tensor]:
    """Yield what is measured of each document's tokens, of this shape each."""
    if model.sight != "past":
        raise UsageError("scoring: want a model that sees the past only; this one sees the whole text")
    model.position.reserve(windows.length)
    losses: list[Tensor] = []  # of the documents gathered
    gathered: list[_Window] = []
    held = 0
    for document in documents:
        ids, known = document_ids(model, document, begin)
        gathered += _windows(len(losses), *_trim_context(ids, known, windows), windows)
        losses.append(torch.empty(len(ids) - 1 - known, *shape))
        held += len(ids)
        if held >= AHEAD * BATCH:
            _fill(model, gathered, losses, measure)
            yield from losses
            losses, gathered, held = [], [], 0
    _fill(model, gathered, losses, measure)
    yield from losses


def document_ids(
    model: AutoregressiveModel, document: Document | Continuation, begin: int
) -> tuple[NDArray[np.int64], int]:
    """Return a document's ids, `begin` first, and how many of its targets are context."""
    if not isinstance(document, Continuation):
        return _check_document(model, document, begin), 0
    before, after = (np.asarray(ids, dtype=np.int64) for ids in (document.context, document.ids))
    return _check_document(model, np.concatenate([before, after]), begin), len(before)


def _check_document(model: AutoregressiveModel, document: Document, begin: int) -> NDArray[np.int64]:
    """Return a document's ids, `begin` first; refuse ids outside the vocabulary."""
    ids = np.concatenate([[begin], np.asarray(document, dtype=np.int64)])
    if not 0 <= ids.min() <= ids.max() < model.vocab:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise UsageError(f"document: want ids from 0 to {model.vocab - 1}, got {wrong}")
    return ids


def _trim_context(ids: NDArray[np.int64], known: int, windows: ScoringWindows) -> tuple[NDArray[np.int64], int]:
    """Drop the context that no window needs: scored tokens keep `length - stride` tokens before them or more."""
    wanted = len(ids) - 1 - known
    excess = known + 1 - max(windows.length - wanted + 1, windows.length - windows.stride, 1)
    return (ids[excess:], known - excess) if known and excess > 0 else (ids, known)


def _windows(document: int, ids: NDArray[np.int64], known: int, windows: ScoringWindows) -> Iterator[_Window]:
    targets = len(ids) - 1
    scored, start = known, 0
    while scored < targets:
        stop = min(start + windows.length, targets)
        yield _Window(document, scored - known, scored - start, ids[start : stop + 1])
        scored, start = stop, start + windows.stride


def length_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Length bucketing: yield batches of row numbers of similar length, the longest first, fewer where rows are long.

    So memory does not grow with the number of rows, and a long row does not lengthen all others.
    """
    ordered = sorted(range(len(lengths)), key=lambda number: lengths[number])
    while ordered:
        count = max(1, BATCH // max(1, lengths[ordered[-1]]))
        yield ordered[-count:]
        del ordered[-count:]


def _fill(model: LanguageModel, gathered: list[_Window], losses: list[Tensor], token_loss: TokenLoss) -> None:
    """Read all windows, those of similar length in one batch, and put each loss in its place."""
    with eval_mode(model):
        for numbers in length_batches([len(window.ids) for window in gathered]):
            batch = [gathered[number] for number in numbers]
            for window, found in zip(batch, _read(model, batch, token_loss), strict=True):
                losses[window.document][window.place : window.place + len(found)] = found


def _read(model: LanguageModel, batch: list[_Window], token_loss: TokenLoss) -> list[Tensor]:
    longest = max(len(w.ids) for w in batch) - 1
    padded = np.zeros((len(batch), longest + 1), dtype=np.int64)  # on the right, where the past cannot see it
    counts = torch.zeros(len(batch), longest, dtype=torch.bool)
    for i, window in enumerate(batch):
        padded[i, : len(window.ids)] = window.ids
        counts[i, window.skip : len(window.ids) - 1] = True
    ids, counted = (t.to(device_of(model)) for t in (torch.from_numpy(padded), counts))
    vectors = model.hidden_states(ids[:, :-1])
    found = token_loss(vectors[counted], ids[:, 1:][counted]).float().cpu()
    return list(found.split(counts.sum(1).tolist()))


def any_token_loss(model: AutoregressiveModel, members: Sequence[int]) -> TokenLoss:
    """Return the loss of the event that one of these ids comes, whichever; 0 where none comes."""
    member = torch.zeros(model.vocab, dtype=torch.bool, device=device_of(model))
    member[list(members)] = True

    def loss(vectors: Float[Tensor, "count width"], targets: Int[Tensor, " count"]) -> Losses:
        losses = torch.zeros(len(targets), device=targets.device)
        comes: Bool[Tensor, " count"] = member[targets]
        chunks = [_event_loss(model, some, member) for some in vectors[comes].split(CHUNK)]
        losses[comes] = torch.cat(chunks) if chunks else losses[:0]
        return losses

    return loss


def _event_loss(model: AutoregressiveModel, vectors: Tensor, member: Tensor) -> Tensor:
    logprobs = model.head.logits(vectors).float().log_softmax(-1)
    return -logprobs[:, member].logsumexp(-1)


# --- with carried state -----------------------------------------------------------------------------------------------


@torch.inference_mode()
def nll_with_carried_state(model: LanguageModel, documents: Iterable[Document], begin: int) -> Iterator[Losses]:
    """Yield each document's losses in nats, for each token, in float32 on the CPU; the state is never reset.

    Each document continues from the previous one, the first from `begin`, as in word-level benchmarks.
    """
    if has_kv_cache(model):
        raise UsageError("carry: want a recurrent model; this one has a KV cache, so score it by a sliding window")
    state, before, seen = model.new_state(1, 1), begin, 0
    with eval_mode(model):
        for document in documents:
            ids = torch.from_numpy(_check_document(model, document, before)).to(device_of(model))[None]
            losses: list[Tensor] = []
            for start in range(0, ids.shape[1] - 1, CARRIED_CHUNK):
                stop = min(start + CARRIED_CHUNK, ids.shape[1] - 1)
                seen += stop - start
                model.reserve(seen)
                vectors, state = model.step(ids[:, start:stop], state)
                losses.append(model.head.nll(vectors[0], ids[0, start + 1 : stop + 1]).float().cpu())
            before = int(ids[0, -1])
            yield torch.cat(losses) if losses else torch.empty(0)


# --- given a source ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def nll_given_source(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Document | Continuation],
    begin: int,
    token_loss: TokenLoss | None = None,
) -> list[Losses]:
    """Return each target's losses in nats given its source, for each token, in float32 on the CPU."""
    if len(sources) != len(targets):
        raise UsageError(f"source: want {len(targets)}, one for each target, got {len(sources)}")
    token_loss = model.head.nll if token_loss is None else token_loss
    read = [check_source(model, source, begin) for source in sources]
    rows = [_target_ids(model, target, begin) for target in targets]
    losses = [torch.empty(0)] * len(rows)
    scored = [i for i, (ids, known) in enumerate(rows) if len(ids) > 1 + known]
    order = sorted(scored, key=lambda i: (len(rows[i][0]), len(read[i])))
    longest = max(map(len, read), default=0)
    with eval_mode(model):
        while order:
            count = max(1, BATCH // (len(rows[order[-1]][0]) + longest))
            batch, order = order[-count:], order[:-count]
            found = _read_given(model, [read[i] for i in batch], [rows[i] for i in batch], token_loss)
            for index, loss in zip(batch, found, strict=True):
                losses[index] = loss
    return losses


def _target_ids(model: EncoderDecoder, target: Document | Continuation, begin: int) -> tuple[NDArray[np.int64], int]:
    ids, known = document_ids(model, target, begin)
    if len(ids) - 1 > model.context and has_kv_cache(model.decoder):
        raise UsageError(f"text: {len(ids) - 1} tokens are more than the model's context of {model.context}")
    return ids, known


def _read_given(
    model: EncoderDecoder,
    sources: list[Sequence[int]],
    rows: list[tuple[NDArray[np.int64], int]],
    token_loss: TokenLoss,
) -> list[Tensor]:
    memory = model.encode(*pad_sources(sources, device_of(model)))
    ids, _ = pad_rows([row.tolist() for row, _ in rows], device_of(model))
    ends, starts = (torch.tensor(edge) for edge in zip(*((len(row) - 1, known) for row, known in rows), strict=True))
    place = torch.arange(ids.shape[1] - 1)
    counted = ((place >= starts[:, None]) & (place < ends[:, None])).to(ids.device)
    vectors = model(ids[:, :-1], Context(memory=memory))
    found = token_loss(vectors[counted], ids[:, 1:][counted]).float().cpu()
    return list(found.split((ends - starts).tolist()))
