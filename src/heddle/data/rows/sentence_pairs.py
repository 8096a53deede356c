"""Sentence pairs (BERT, Devlin et al. 2018; ALBERT, Lan et al. 2020): rows of two texts, which are its segments."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, Purpose, Share, numpy_generator, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan
from heddle.data.rows.plan import RowsConfig, check_corpus, permutation
from heddle.data.rows.token_traits import token_traits
from heddle.data.shards import Shards
from heddle.text.tokenizers import TOKENIZER, load_tokenizer

BLOCK = 1 << 20  # tokens read at a time
BESIDE = 3  # special tokens of a row: one before the first text, one after each
Second = Literal["random", "swapped"]


@dataclass(frozen=True)
class SentencePairRow(Row):
    """A row of two texts."""

    second: int = 0  # where the second text begins
    real: int = 0  # tokens before the padding
    label: int = 0  # 0: the second text follows the first; 1: it does not

    @classmethod
    def stack(cls, rows: Sequence[Any], numbers: Sequence[int]) -> "SentencePairBatch":
        """Stack rows of one shape into a batch with segments and labels."""
        plain = super().stack(rows, numbers)
        places = torch.arange(plain.inputs.shape[1])
        second = torch.tensor([row.second for row in rows])
        return SentencePairBatch(
            **{field.name: getattr(plain, field.name) for field in fields(plain)},
            segments=(places >= second[:, None]).long(),
            lengths=torch.tensor([row.real for row in rows]),
            labels=torch.tensor([row.label for row in rows]),
        )


@dataclass(frozen=True)
class SentencePairBatch(Batch):
    """Rows of two texts.

    segments: 0 in the first text, 1 from the second on.
    lengths: tokens of each row without padding.
    labels: 0 where the second text follows the first, 1 where it does not.
    """

    segments: Int[Tensor, "batch length"] | None = None
    lengths: Int[Tensor, " batch"] | None = None
    labels: Int[Tensor, " batch"] | None = None


@part("sentence_pairs")
class SentencePairRows(RowsConfig):
    """Sentence pairs: [CLS] A [SEP] B [SEP], padded to one length; half of the time B does not follow A.

    Pieces of a document end at the end of a sentence where there is one. An epoch has as many pairs as the first.

    length: tokens in a row, special tokens included.
    second: what B is where it does not follow A: `random`, of another document, or `swapped` with A.
    short: share of the pairs that are shorter, by a random length.
    shuffle: whether pairs come in a new order each epoch.
    """

    length: int = 128
    second: Second = "random"
    short: Share = 0.1
    shuffle: bool = True

    mixable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < BESIDE + 2:
            raise ConfigError(
                "length",
                want=f"at least {BESIDE + 2}, because a row has two tokens and {BESIDE} between",
                got=self.length,
            )

    @property
    def fixed_shape(self) -> bool:
        return True

    @property
    def max_length(self) -> int:
        return self.length

    @property
    def second_text(self) -> str | None:
        return self.second

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        check_corpus(shards, source, 2, "a pair")
        tokenizer = load_tokenizer(shards.folder.parent / TOKENIZER)
        special = tokenizer.special_tokens
        marks = special.document_start[0], (special.text.after or (special.end,))[-1]
        return SentencePairPlan(self, SentenceCorpus(shards, token_traits(tokenizer).ends_sentence, marks), seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, shuffle=False)

    def random_batch(self, vocab: int, rows: int, number: int) -> SentencePairBatch:
        plain, length = super().random_batch(vocab, rows, number), self.length
        segments = (torch.arange(length) >= length // 2).long().expand(rows, -1).contiguous()
        known = {field.name: getattr(plain, field.name) for field in fields(plain)}
        labels = torch.arange(rows) % 2
        return SentencePairBatch(**known, segments=segments, lengths=torch.full((rows,), length), labels=labels)


@dataclass(frozen=True)
class SentenceCorpus:
    """Documents of shards with the ends of their sentences; `marks` are the ids of [CLS] and [SEP]."""

    shards: Shards
    ends_sentence: NDArray[np.bool_]
    marks: tuple[int, int]

    @cached_property
    def ends(self) -> list[int]:
        """Return the offsets after which a sentence ends, in all tokens."""
        found = []
        for start in range(0, self.shards.tokens, BLOCK):
            tokens = np.empty(min(BLOCK, self.shards.tokens - start) + 1, self.shards.dtype)
            self.shards.fill(tokens, start)
            found.append(np.flatnonzero(self.ends_sentence[tokens[1:]]) + start + 1)
        return np.concatenate(found).tolist() if found else []

    @cached_property
    def documents(self) -> list[tuple[int, int]]:
        """Return where each document with text begins and ends, its end token left out."""
        stops = self.shards.ends - 1
        starts = self.shards.ends - self.shards.lengths
        return [(int(a), int(b)) for a, b in zip(starts, stops, strict=True) if b > a]

    def cut(self, start: int, most: int, stop: int) -> int:
        """Return where a piece of at most so many tokens ends: at the last end of a sentence, if there is one."""
        limit = min(start + most, stop)
        at = bisect_right(self.ends, limit)
        last = self.ends[at - 1] if at else 0
        return last if limit < stop and last > start + 1 else limit

    def inner(self, start: int, stop: int, coin: float) -> int:
        """Return a place between two others, by a number below 1: the end of a sentence, or any where there is none."""
        first, last = bisect_right(self.ends, start), bisect_left(self.ends, stop)
        if last > first:
            return self.ends[first + int(coin * (last - first))]
        return start + 1 + int(coin * (stop - start - 1))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some tokens."""
        tokens = np.empty(stop - start + 1, self.shards.dtype)
        self.shards.fill(tokens, start)
        return tokens[1:]


@dataclass(frozen=True)
class _Pair:
    """Offsets of a piece of a document: A ends and B begins at `middle`; `most` tokens may both have."""

    document: int
    start: int
    middle: int
    stop: int
    most: int
    follows: bool


class SentencePairPlan(RowPlan):
    """Rows of two texts; what B is where it does not follow is drawn by the row's number."""

    def __init__(self, config: SentencePairRows, corpus: SentenceCorpus, seed: int) -> None:
        self._config, self._corpus, self._seed, self.length = config, corpus, seed, config.length
        if config.second == "random" and len(corpus.documents) < 2:
            want = f"at least two documents, to take a text from another, found {len(corpus.documents)}"
            raise DataError(f"{corpus.shards.folder}: want {want}; rows.second=swapped needs only one")
        self._epoch = EpochCache(partial(_pairs_of_epoch, config, corpus, seed))
        self.rows_per_epoch = len(self._epoch(0)[0])
        if not self.rows_per_epoch:
            raise DataError(f"{corpus.shards.folder}: want documents of two tokens or more, found none")

    def row(self, number: int) -> SentencePairRow:
        epoch, index = divmod(number, self.rows_per_epoch)
        pairs, order = self._epoch(epoch)
        pair = pairs[int(order[index % len(order)])]
        first, second = self._texts(pair, number)
        opening, closing = self._corpus.marks
        tokens = np.full(self.length + 1, closing, np.int64)
        real = len(first) + len(second) + BESIDE
        tokens[: real - 1] = np.concatenate(([opening], first, [closing], second))
        weights = (np.arange(self.length) < real).astype(np.float32)
        label = int(not pair.follows)
        return SentencePairRow(tokens, weights, second=len(first) + 2, real=real, label=label)

    def _texts(self, pair: _Pair, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        first, second = self._corpus.read(pair.start, pair.middle), self._corpus.read(pair.middle, pair.stop)
        if pair.follows:
            return first, second
        return (second, first) if self._config.second == "swapped" else (first, self._other(pair, number))

    def _other(self, pair: _Pair, number: int) -> NDArray[Any]:
        """Return a text of another document, from the beginning of one of its sentences."""
        draw, documents = numpy_generator(self._seed, Purpose.DATA, "other", number), self._corpus.documents
        other = int(draw.integers(len(documents) - 1))
        begin, stop = documents[other + (other >= pair.document)]
        ends = self._corpus.ends
        first, last = bisect_right(ends, begin), bisect_left(ends, stop)
        at = int(draw.integers(last - first + 1))
        start = ends[first + at - 1] if at else begin
        return self._corpus.read(start, self._corpus.cut(start, pair.most - (pair.middle - pair.start), stop))


def _coins(draw: np.random.Generator) -> Iterator[list[float]]:
    while True:
        yield from draw.random((4096, 4)).tolist()


def _pairs_of_epoch(
    config: SentencePairRows, corpus: SentenceCorpus, seed: int, epoch: int
) -> tuple[list[_Pair], NDArray[np.int64]]:
    """Cut all documents into pairs; where B will come from elsewhere, the next pair begins after A."""
    coins = _coins(numpy_generator(seed, Purpose.DATA, "sentence_pairs", epoch))
    pairs, most = [], config.length - BESIDE
    for document, (start, end) in enumerate(corpus.documents):
        while end - start >= 2:
            shorter, size, place, coin = next(coins)
            wanted = 2 + int(size * (most - 1)) if shorter < config.short else most
            stop = corpus.cut(start, wanted, end)
            middle, follows = corpus.inner(start, stop, place), coin < 0.5
            pairs.append(_Pair(document, start, middle, stop, wanted, follows))
            start = stop if follows or config.second == "swapped" else middle
    order = permutation(len(pairs), seed, "rows", epoch) if config.shuffle else np.arange(len(pairs))
    return pairs, order
