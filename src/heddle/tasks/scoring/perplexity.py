"""Perplexity, loss and bits per byte of held-out text under a language model.

Every document begins from the `end` token, as in training, and its closing `end` is predicted too: its NLL is counted
and it is one of the tokens, although it is neither a word nor a byte of the text.

The published perplexity of a word-level benchmark is that per token of a word tokenizer, with a token for each line
end. The state is carried over the whole text (`carry`), or the text is read through sliding windows.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import DataError, UsageError, bounded_exp
from heddle.data.shards import Shards
from heddle.data.sources import EncodedDocument
from heddle.decoding.scoring import ScoringWindows, nll_sliding_window, nll_with_carried_state, scoring_windows
from heddle.models.networks import LanguageModel, Model, require
from heddle.tasks.scoring.nll import token_nll
from heddle.text.tokenizers import Tokenizer

BATCH = 256  # texts encoded at once


@dataclass(frozen=True)
class Evaluation:
    """The total NLL, the amount of text, and the sliding window."""

    nats: float
    documents: int
    tokens: int  # including the closing end of each document
    words: int  # separated by whitespace
    bytes: int  # of the text in UTF-8
    unknown: int  # unknown tokens
    lost: int  # bytes of the text that they stand for
    window: int | None  # None: read in order, with the state carried from document to document
    stride: int | None

    @property
    def loss(self) -> float:
        """Return the nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Return the perplexity per token."""
        return bounded_exp(self.loss)

    @property
    def word_perplexity(self) -> float:
        """Return the perplexity per word, comparable between vocabularies."""
        return bounded_exp(self.nats / max(1, self.words))

    @property
    def bits_per_byte(self) -> float:
        """Return the bits per byte of the text.

        Each byte that unknown tokens stand for costs eight bits more, as in plain text: else a model that knows no
        word at all would code any text in almost nothing.
        """
        return (self.nats / math.log(2) + 8 * self.lost) / max(1, self.bytes)

    def plain(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "word_perplexity": self.word_perplexity,
            "bits_per_byte": self.bits_per_byte,
        } | asdict(self)


@dataclass
class _Counts:
    documents: int = 0
    tokens: int = 0
    words: int = 0
    bytes: int = 0
    unknown: int = 0
    lost: int = 0


def evaluate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str] | Shards,
    window: int | None = None,
    stride: int | None = None,
    carry: bool = False,
) -> Evaluation:
    """Measure a language model on texts or shards by a sliding window: by default its context, at half of it as stride.

    With `carry`, a recurrent model keeps its state from document to document instead.
    """
    refusal = "evaluate: want a language model; translate --reference measures an encoder-decoder, score an encoder"
    model = require(model, LanguageModel, UsageError(refusal))
    if carry and (window, stride) != (None, None):
        raise UsageError("carry: cannot be combined with `window` or `stride`")
    if isinstance(texts, Shards) and texts.loss_mask is not None:
        return evaluate_chats(model, tokenizer, _stored_chats(texts, tokenizer), window, stride, carry)
    windows = None if carry else scoring_windows(model, window, stride)
    counts = _Counts()
    read = _stored(texts, tokenizer, counts) if isinstance(texts, Shards) else _encoded(texts, tokenizer, counts)
    documents = _count_unknown(read, tokenizer.unknown, counts)
    if windows is None:
        found = nll_with_carried_state(model, documents, tokenizer.special_tokens.begin)
    else:
        found = token_nll(model, tokenizer, documents, windows)
    nats = math.fsum(float(losses.double().sum()) for losses in found)
    if not counts.documents:
        raise DataError("evaluation: want one document or more, got none")
    return _evaluation(nats, counts, windows)


def evaluate_chats(
    model: Model,
    tokenizer: Tokenizer,
    chats: Iterable[EncodedDocument],
    window: int | None = None,
    stride: int | None = None,
    carry: bool = False,
) -> Evaluation:
    """Measure a language model on the answers of conversations, each given the turns before it."""
    if carry:
        raise UsageError("carry: not supported for conversations, each of which starts from an empty state")
    model = require(model, LanguageModel, UsageError("evaluate: want a language model for conversations"))
    windows, counts = scoring_windows(model, window, stride), _Counts()
    losses = _answer_losses(model, chats, windows, tokenizer, counts)
    nats = math.fsum(float(each.double().sum()) for each in losses)
    if not counts.documents:
        raise DataError("evaluation: want one conversation or more, got none")
    return _evaluation(nats, counts, windows)


def _answer_losses(
    model: LanguageModel,
    chats: Iterable[EncodedDocument],
    windows: ScoringWindows,
    tokenizer: Tokenizer,
    counts: _Counts,
) -> Iterator[Tensor]:
    """Yield the losses of the tokens that count; a conversation begins from its own first id."""
    marks: deque[NDArray[np.bool_]] = deque()

    def rest(chat: EncodedDocument) -> NDArray[Any]:
        assert chat.counts is not None
        marks.append(chat.counts[1:])
        counts.documents += 1
        counts.tokens += int(marks[-1].sum())
        counts.words += chat.words
        counts.bytes += chat.bytes
        counts.lost += chat.lost
        if tokenizer.unknown is not None:
            counts.unknown += int((chat.ids[1:][marks[-1]] == tokenizer.unknown).sum())
        return chat.ids[1:]

    for first, some in groupby(chats, lambda chat: int(chat.ids[0])):
        for losses in nll_sliding_window(model, map(rest, some), windows, first):
            yield losses[torch.from_numpy(marks.popleft())]


def _stored_chats(shards: Shards, tokenizer: Tokenizer) -> Iterator[EncodedDocument]:
    """Yield stored conversations; the first carries the byte and word counts of all."""
    _check_ids(shards, tokenizer)
    assert shards.loss_mask is not None
    for i in range(shards.count):
        size, words, lost = (shards.bytes, shards.words, shards.lost) if i == 0 else (0, 0, 0)
        yield EncodedDocument(shards.document(i), size, words, shards.loss_mask.document(i).astype(np.bool_), lost)


def _evaluation(nats: float, counts: _Counts, windows: ScoringWindows | None) -> Evaluation:
    return Evaluation(
        nats=nats,
        documents=counts.documents,
        tokens=counts.tokens,
        words=counts.words,
        bytes=counts.bytes,
        unknown=counts.unknown,
        lost=counts.lost,
        window=None if windows is None else windows.length,
        stride=None if windows is None else windows.stride,
    )


def _check_ids(shards: Shards, tokenizer: Tokenizer) -> None:
    if (shards.vocab, shards.end) != (tokenizer.vocab, tokenizer.end):
        raise DataError(
            f"{shards.folder}: want ids of the model's tokenizer (vocabulary {tokenizer.vocab}, end {tokenizer.end}), "
            f"got those of another ({shards.vocab}, {shards.end})"
        )


def _stored(shards: Shards, tokenizer: Tokenizer, counts: _Counts) -> Iterator[NDArray[Any]]:
    """Yield stored documents without the ids that begin each: they are no part of its text."""
    _check_ids(shards, tokenizer)
    counts.words, counts.bytes, counts.lost = shards.words, shards.bytes, shards.lost
    opening = tokenizer.special_tokens.document_start[1:]  # the first is not stored
    for index in range(shards.count):
        ids = shards.document(index)
        ids = ids[len(opening) :] if tuple(ids[: len(opening)]) == opening else ids
        counts.documents += 1
        counts.tokens += len(ids)
        yield ids


def _count_unknown(documents: Iterable[NDArray[Any]], unknown: int | None, counts: _Counts) -> Iterator[NDArray[Any]]:
    """Yield documents, and count their unknown tokens."""
    for ids in documents:
        if unknown is not None:
            counts.unknown += int((ids == unknown).sum())
        yield ids


def _encoded(texts: Iterable[str], tokenizer: Tokenizer, counts: _Counts) -> Iterator[NDArray[Any]]:
    for batch in _batches(texts):
        for text, ids in zip(batch, tokenizer.encode_arrays(batch), strict=True):
            counts.documents += 1
            counts.tokens += len(ids) + 1
            counts.words += len(text.split())
            counts.bytes += len(text.encode())
            if tokenizer.unknown is not None and (ids == tokenizer.unknown).any():
                counts.lost += tokenizer.lost_bytes(text)
            yield np.append(ids.astype(np.int64), tokenizer.end)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
