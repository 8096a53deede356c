"""What an evaluation counts: tokens, words and bytes of texts, encoded or stored, and what follows from it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import DataError, bounded_exp
from heddle.data.shards import Shards
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
    measure: str = "log-likelihood"  # or pseudo-log-likelihood of an encoder, or teacher-forced of an encoder-decoder

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
class Counts:
    """The amount of text that was measured."""

    documents: int = 0
    tokens: int = 0
    words: int = 0
    bytes: int = 0
    unknown: int = 0
    lost: int = 0

    def evaluation(
        self, nats: float, window: int | None, stride: int | None, measure: str = "log-likelihood"
    ) -> Evaluation:
        """Return the evaluation of this much text."""
        return Evaluation(nats=nats, window=window, stride=stride, measure=measure, **vars(self))

    def count_unknown(self, ids: NDArray[Any], tokenizer: Tokenizer) -> None:
        """Count the unknown tokens among ids."""
        if tokenizer.unknown is not None:
            self.unknown += int((ids == tokenizer.unknown).sum())


def documents_of(texts: Iterable[str] | Shards, tokenizer: Tokenizer, counts: Counts) -> Iterator[NDArray[Any]]:
    """Yield the ids of texts or of stored documents, each with its end, and count them."""
    return _stored(texts, tokenizer, counts) if isinstance(texts, Shards) else encoded_texts(texts, tokenizer, counts)


def _stored(shards: Shards, tokenizer: Tokenizer, counts: Counts) -> Iterator[NDArray[Any]]:
    """Yield stored documents without the ids that begin each: they are no part of its text."""
    check_ids(shards, tokenizer)
    counts.words, counts.bytes, counts.lost = shards.words, shards.bytes, shards.lost
    opening = tokenizer.special_tokens.document_start[1:]  # the first is not stored
    for index in range(shards.count):
        ids = shards.document(index)
        ids = ids[len(opening) :] if tuple(ids[: len(opening)]) == opening else ids
        counts.documents += 1
        counts.tokens += len(ids)
        yield ids


def encoded_texts(texts: Iterable[str], tokenizer: Tokenizer, counts: Counts) -> Iterator[NDArray[Any]]:
    """Yield the ids of texts, each with its end."""
    for batch in _batches(texts):
        for text, ids in zip(batch, tokenizer.encode_arrays(batch), strict=True):
            counts.documents += 1
            counts.tokens += len(ids) + 1
            counts.words += len(text.split())
            counts.bytes += len(text.encode())
            if tokenizer.unknown is not None and (ids == tokenizer.unknown).any():
                counts.lost += tokenizer.lost_bytes(text)
            yield np.append(ids.astype(np.int64), tokenizer.end)


def check_ids(shards: Shards, tokenizer: Tokenizer) -> None:
    """Refuse shards of another tokenizer."""
    if (shards.vocab, shards.end) != (tokenizer.vocab, tokenizer.end):
        raise DataError(
            f"{shards.folder}: want ids of the model's tokenizer (vocabulary {tokenizer.vocab}, end {tokenizer.end}), "
            f"got those of another ({shards.vocab}, {shards.end})"
        )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
