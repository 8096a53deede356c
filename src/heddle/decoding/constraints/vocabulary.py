"""Vocabulary: what each id adds to a text, in bytes. Guides that follow a text need no more of a tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class Columns:
    """All spellings byte by byte: the first byte of each id, the second of those that have one, and so on.

    The longest ids come first, so that those with a byte at some place stand in front; `back` puts them in order again.
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
    """What every id writes; kinds that join words by spaces spell an id otherwise where no text stands before it.

    A silent id writes nothing: a control token, or a hole in the vocabulary. A stop ends a row.
    """

    inside: Sequence[bytes]  # after other text
    first: Sequence[bytes]  # where nothing stands before; the same object where that makes no difference
    fresh: frozenset[int] = frozenset()  # ids after which the next one is spelt as the first is
    silent: frozenset[int] = frozenset()
    stop: frozenset[int] = frozenset()
    unknown: int | None = None  # stands for text that cannot be spelt, so that no grammar takes it

    def __len__(self) -> int:
        """Count the ids."""
        return len(self.inside)

    @property
    def even(self) -> bool:
        """Tell whether every id is spelt in one way alone."""
        return self.inside is self.first

    @cached_property
    def sides(self) -> list[Columns]:
        """Return the spellings byte by byte: inside a text, and where nothing stands before if that makes two."""
        return [Columns(words) for words in ([self.inside] if self.even else [self.inside, self.first])]

    def freshly(self, id: int, fresh: bool) -> bool:
        """Tell whether the id after this one is spelt as the first is."""
        return id in self.fresh or (fresh and id in self.silent)
