"""Extractive question answering: the best span of a context, with its probability, or no answer (SQuAD 2.0)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.models.networks import Model
from heddle.tasks.labelling.reader import EncoderReader, EncoderRow, encoder_reader, trim_span
from heddle.text.tokenizers import Tokenizer

LONGEST = 30  # most tokens of an answer


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its place in the context, and its probability; an empty text: the context has none.

    none: the probability that the context has no answer.
    """

    text: str
    start: int
    end: int
    probability: float
    none: float

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Answerer:
    """An encoder with an output for the ends of an answer.

    must: whether a question always has an answer, so that the best span is given however improbable it is.
    """

    reader: EncoderReader
    must: bool = False

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, must: bool = False) -> "Answerer":
        """Return an answerer; refuse a model without spans."""
        reader = encoder_reader(model, tokenizer, "answer", "give examples (--examples FILE), or -k 0")
        reader.model.output_of("span")
        return cls(reader, must)

    def run(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answer]:
        """Answer each question from its context; windows of a long context are read one by one and compared."""
        if len(questions) != len(contexts):
            raise UsageError(f"context: want {len(questions)}, one for each question, got {len(contexts)}")
        tokenizer, output = self.reader.tokenizer, self.reader.model.output_of("span")
        rows = self.reader.rows(tokenizer.encode_many(list(questions)), tokenizer.encode_many(list(contexts)))
        found: list[list[tuple[EncoderRow, Tensor]]] = [[] for _ in questions]
        for row, scores in zip(rows, self.reader.scores(output.name, rows), strict=True):
            found[row.text].append((row, scores[:, : len(row.ids)].double()))
        return [self._answer(context, windows) for context, windows in zip(contexts, found, strict=True)]

    def _answer(self, context: str, windows: Sequence[tuple[EncoderRow, Tensor]]) -> Answer:
        """Return the best answer of all windows; without one, of the window that is surest that there is one."""
        none = min((scores[:, 0] for _, scores in windows), key=lambda ends: float(ends.sum()))
        inner = [scores[:, row.window.at :][:, : row.window.stop - row.window.start] for row, scores in windows]
        own = [
            one[:, row.window.own_start - row.window.start : row.window.own_stop - row.window.start]
            for (row, _), one in zip(windows, inner, strict=True)
        ]
        total = torch.cat([none[:, None], *own], dim=1).logsumexp(1)
        best = (-float("inf"), 0, 0)
        for (row, _), ends in zip(windows, inner, strict=True):
            score, first, last = _best_span(ends)
            best = max(best, (score, first + row.window.start, last + row.window.start), key=lambda one: one[0])
        without = float((none - total).sum().exp())
        if best[0] == -float("inf") or (not self.must and best[0] <= float(none.sum())):
            return Answer("", 0, 0, without, without)
        spans = self.reader.tokenizer.spans(context)
        start, end = trim_span(context, (spans[best[1]][0], spans[best[2]][1]))
        return Answer(context[start:end], start, end, float((best[0] - total.sum()).exp()), without)


def _best_span(ends: Tensor) -> tuple[float, int, int]:
    """Return the score of the best span of at most LONGEST tokens, its first and its last token."""
    length = ends.shape[1]
    if not length:
        return -float("inf"), 0, 0
    both = ends[0, :, None] + ends[1, None, :]
    valid = torch.ones(length, length, dtype=torch.bool).triu().tril(LONGEST - 1)
    score, at = both.masked_fill(~valid, -float("inf")).flatten().max(0)
    return float(score), int(at) // length, int(at) % length
