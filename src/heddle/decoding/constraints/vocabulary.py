"""Vocabulary of constrained decoding: the bytes that each id adds to a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class ByteColumns:
    """The bytes of all ids by column: the first byte of each id, the second of those that have one, and so on.

    The longest ids come first, so that those with a byte in a column are in front; `back` restores the order of ids.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        lengths = np.array([len(word) for word in words])
        order = np.argsort(-lengths, kind="stable")
        longest = [words[i] for i in order]
        counts = [int((lengths > at).sum()) for at in range(int(lengths.max(initial=0)))]
        read = (bytes(word[at] for word in longest[:count]) for at, count in enumerate(counts))
        self.columns: list[NDArray[np.int32]] = [np.frombuffer(column, np.uint8).astype(np.int32) for column in read]
        self.back: NDArray[np.int64] = np.argsort(order)


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of every id; some tokenizers spell an id differently at the beginning of a text.

    A silent id adds no text: a control token, or an unused id. A stop id ends a row.
    """

    inside: Sequence[bytes]  # after other text
    first: Sequence[bytes]  # at the beginning of a text; the same object where that makes no difference
    fresh: frozenset[int] = frozenset()  # ids after which the next one is spelt as at the beginning
    silent: frozenset[int] = frozenset()
    stop: frozenset[int] = frozenset()
    unknown: int | None = None  # stands for text without a token, so no grammar takes it

    def __len__(self) -> int:
        """Count the ids."""
        return len(self.inside)

    @property
    def uniform_spelling(self) -> bool:
        """Tell whether every id is spelt the same everywhere."""
        return self.inside is self.first

    @cached_property
    def tables(self) -> list[ByteColumns]:
        """Return the bytes by column: inside a text, and at its beginning if that differs."""
        return [ByteColumns(words) for words in ([self.inside] if self.uniform_spelling else [self.inside, self.first])]

    def next_fresh(self, id: int, fresh: bool) -> bool:
        """Tell whether the id after this one is spelt as at the beginning."""
        return id in self.fresh or (fresh and id in self.silent)
