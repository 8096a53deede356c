"""A row plan that the library does not have, in one file: each row is one document, padded to the length."""

from typing import ClassVar, Self

import numpy as np

from heddle.core import check_at_least, part
from heddle.data.rows import Row, RowPlan, RowsConfig
from heddle.data.shards import Shards


@part("documents")
class DocumentRows(RowsConfig):
    """One document in a row, cut at the length; several corpora may be mixed."""

    length: int = 64

    mixable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def max_length(self) -> int:
        return self.length

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        return DocumentPlan(self, shards)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return self


class DocumentPlan(RowPlan):
    """Documents in the order in which they are stored."""

    def __init__(self, config: DocumentRows, shards: Shards) -> None:
        self._shards, self.length = shards, config.length
        self.rows_per_epoch = shards.count

    def row(self, number: int) -> Row:
        document = self._shards.document(number % self.rows_per_epoch)[: self.length]
        tokens = np.full(self.length + 1, self._shards.end, self._shards.dtype)
        tokens[1 : len(document) + 1] = document
        weights = np.zeros(self.length, np.float32)
        weights[: len(document)] = 1
        return Row(tokens, weights)
