"""Retrieve-and-edit: an encoder-decoder reads a text and its neighbour's answer, and writes (Hashimoto et al. 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass

from heddle.decoding.runtime import check_source
from heddle.tasks.generation import Translator
from heddle.tasks.retrieval.entries import Query
from heddle.tasks.retrieval.index import Neighbour, PairIndex


@dataclass(frozen=True)
class Edit:
    """What was written for a query, and the neighbour whose answer was edited; None: there is none."""

    text: str
    neighbour: Neighbour | None


@dataclass(frozen=True)
class Editor:
    """An index, and a model that was trained with prototypes."""

    index: PairIndex
    translator: Translator

    def run(self, queries: Sequence[Query], k: int = 1) -> list[list[Edit]]:
        """Return an edit for each of the `k` neighbours of each query; of a query without any, one of no prototype."""
        found: list[list[Neighbour | None]] = [[*near] or [None] for near in self.index.neighbours(queries, k)]
        sources = [self.source(query, one) for query, near in zip(queries, found, strict=True) for one in near]
        written = iter(self.translator.translate(sources))
        return [[Edit(next(written).text, one) for one in near] for near in found]

    def source(self, query: Query, neighbour: Neighbour | None) -> list[int]:
        """Return the ids of a query and its prototype, or refuse those that are longer than the model's context."""
        prototype = "" if neighbour is None else neighbour.entry.target
        return list(check_source(self.translator.model, self.translator.tokenizer.source(query.text, prototype)))
