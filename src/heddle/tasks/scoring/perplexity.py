"""Perplexity: how well a model predicts held-out text, by token, by word and by byte.

Every document begins from the `end` token, as in training, and its closing `end` is predicted too: its cost is part of
the nats and it counts as a token, though it is neither a word nor a byte of the text.

The published perplexity of a word-level benchmark is that per token of a word tokenizer, each line's end being a token,
with the state carried over the whole text (`carry`), or through windows for a model that cannot.
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
from heddle.data.sources import Encoded
from heddle.decoding.scoring import Windows, nll_sliding_window, nll_with_carried_state, scoring_windows
from heddle.models.networks import LanguageModel, Model
from heddle.tasks.scoring.nll import token_nll
from heddle.text.tokenizers import Tokenizer

BATCH = 256  # texts encoded at once


@dataclass(frozen=True)
class Evaluation:
    """What was measured, on how much, and through which windows."""

    nats: float
    documents: int
    tokens: int  # the closing end of each document included
    words: int  # what whitespace separates
    bytes: int  # of the text in UTF-8
    unknown: int  # tokens that stand for what the tokenizer cannot spell
    window: int | None  # None: read in order, the state carried from document to document
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
        """Return the bits that each byte of the text takes to code."""
        return self.nats / math.log(2) / max(1, self.bytes)

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


def evaluate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str] | Shards,
    window: int | None = None,
    stride: int | None = None,
    carry: bool = False,
) -> Evaluation:
    """Measure a model on texts or shards, through windows: by default the context, sliding by half of it.

    With `carry`, a recurrent model reads on from document to document instead.
    """
    if not isinstance(model, LanguageModel):
        raise UsageError(
            "evaluate: want a language model; translate --reference measures an encoder-decoder, score an encoder"
        )
    if carry and (window, stride) != (None, None):
        raise UsageError("carry: want no window beside it, for it reads everything in order")
    if isinstance(texts, Shards) and texts.marks is not None:
        return evaluate_chats(model, tokenizer, _marked(texts, tokenizer), window, stride, carry)
    windows = None if carry else scoring_windows(model, window, stride)
    counts = _Counts()
    read = _stored(texts, tokenizer, counts) if isinstance(texts, Shards) else _encoded(texts, tokenizer, counts)
    documents = _told(read, tokenizer.unknown, counts)
    if windows is None:
        found = nll_with_carried_state(model, documents, tokenizer.special_tokens.begin)
    else:
        stored = isinstance(texts, Shards)  # with all that a document opens with but the first id
        found = (
            nll_sliding_window(model, documents, windows, tokenizer.special_tokens.document_start[0])
            if stored
            else token_nll(model, tokenizer, documents, windows)
        )
    nats = math.fsum(float(losses.double().sum()) for losses in found)
    if not counts.documents:
        raise DataError("evaluation: want one document or more, got none")
    return _evaluation(nats, counts, windows)


def evaluate_chats(
    model: Model,
    tokenizer: Tokenizer,
    chats: Iterable[Encoded],
    window: int | None = None,
    stride: int | None = None,
    carry: bool = False,
) -> Evaluation:
    """Measure a language model on what counts of conversations: the answers, each given all that was said before."""
    if carry:
        raise UsageError("carry: want none for conversations, each of which begins anew")
    if not isinstance(model, LanguageModel):
        raise UsageError("evaluate: want a language model, for conversations")
    windows, counts = scoring_windows(model, window, stride), _Counts()
    nats = math.fsum(float(losses.double().sum()) for losses in _answers(model, chats, windows, tokenizer, counts))
    if not counts.documents:
        raise DataError("evaluation: want one conversation or more, got none")
    return _evaluation(nats, counts, windows)


def _answers(
    model: LanguageModel, chats: Iterable[Encoded], windows: Windows, tokenizer: Tokenizer, counts: _Counts
) -> Iterator[Tensor]:
    """Yield the losses of what counts; a conversation begins from its own first id."""
    marks: deque[NDArray[np.bool_]] = deque()

    def rest(chat: Encoded) -> NDArray[Any]:
        assert chat.counts is not None
        marks.append(chat.counts[1:])
        counts.documents += 1
        counts.tokens += int(marks[-1].sum())
        counts.words += chat.words
        counts.bytes += chat.bytes
        if tokenizer.unknown is not None:
            counts.unknown += int((chat.ids[1:][marks[-1]] == tokenizer.unknown).sum())
        return chat.ids[1:]

    for first, some in groupby(chats, lambda chat: int(chat.ids[0])):
        for losses in nll_sliding_window(model, map(rest, some), windows, first):
            yield losses[torch.from_numpy(marks.popleft())]


def _marked(shards: Shards, tokenizer: Tokenizer) -> Iterator[Encoded]:
    """Yield stored conversations; the first tells the bytes and words of all."""
    _check_ids(shards, tokenizer)
    assert shards.marks is not None
    for i in range(shards.count):
        size, words = (shards.bytes, shards.words) if i == 0 else (0, 0)
        yield Encoded(shards.document(i), size, words, shards.marks.document(i).astype(np.bool_))


def _evaluation(nats: float, counts: _Counts, windows: Windows | None) -> Evaluation:
    return Evaluation(
        nats=nats,
        documents=counts.documents,
        tokens=counts.tokens,
        words=counts.words,
        bytes=counts.bytes,
        unknown=counts.unknown,
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
    _check_ids(shards, tokenizer)
    counts.documents, counts.tokens, counts.words, counts.bytes = (
        shards.count,
        shards.tokens,
        shards.words,
        shards.bytes,
    )
    return (shards.document(i) for i in range(shards.count))


def _told(documents: Iterable[NDArray[Any]], unknown: int | None, counts: _Counts) -> Iterator[NDArray[Any]]:
    """Yield documents, their unknown tokens counted."""
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
