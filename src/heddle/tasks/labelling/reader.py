"""Reading texts with an encoder: rows with their special tokens, windows of long texts, batches by tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.data.shards import TextWindow, text_windows
from heddle.decoding.runtime import device_of, eval_mode
from heddle.decoding.scoring import check_encoder_input, length_batches
from heddle.models.networks import Encoder, Model, require
from heddle.text.tokenizers import Tokenizer

OVERLAP = 0.25  # share of a window that the next one repeats
Ids = Sequence[int]


@dataclass(frozen=True)
class EncoderRow:
    """A row for an encoder: a window of a text, or of the second of two, with special tokens around it."""

    ids: list[int]
    text: int  # which text it belongs to
    window: TextWindow
    second: int  # the place from which on tokens belong to the second text; the length of the row: none do


@dataclass(frozen=True)
class EncoderReader:
    """An encoder with its tokenizer."""

    model: Encoder
    tokenizer: Tokenizer

    @property
    def longest(self) -> int:
        """Return the most tokens of a row; without positions, as many as the model was made for."""
        return self.model.context

    @property
    def _segmented(self) -> bool:
        return self.tokenizer.special_tokens.segmented

    def rows(self, texts: Sequence[Ids], pairs: Sequence[Ids] | None = None) -> list[EncoderRow]:
        """Return the rows of texts, or of pairs of texts, of which the second is divided where both do not fit."""
        found: list[EncoderRow] = []
        for number, text in enumerate(texts):
            found += self._rows(number, text, None if pairs is None else pairs[number])
        return found

    def _rows(self, number: int, text: Ids, pair: Ids | None) -> Iterator[EncoderRow]:
        known = self.tokenizer.special_tokens
        before, after = list(known.text.before), list(known.text.after)
        windowed = text
        if pair is not None:
            capacity = self.longest - len(before) - len(known.separator) - len(after)
            kept = max(capacity // 2, capacity - len(pair))
            if len(text) > kept:
                raise UsageError(f"the first text has {len(text)} tokens; want at most {kept} beside the second")
            before, windowed = [*before, *text, *known.separator], pair
        capacity = self.longest - len(before) - len(after)
        if capacity < 1:
            raise UsageError(f"the model's context of {self.longest} tokens has no space for a text")
        for window in text_windows(len(windowed), capacity, round(OVERLAP * capacity)):
            ids = [*before, *windowed[window.start : window.stop], *after]
            check_encoder_input(self.model, ids)
            at = TextWindow(window.start, window.stop, window.own_start, window.own_stop, len(before))
            yield EncoderRow(ids, number, at, len(ids) if pair is None else len(before))

    @torch.inference_mode()
    def scores(self, output: str, rows: Sequence[EncoderRow]) -> list[Tensor]:
        """Return the scores of an output for each row, in float32 on the CPU; rows of similar length are batched.

        Scores of tokens include those of padding, after the row's own.
        """
        found: dict[int, Tensor] = {}
        head = self.model.output(output)
        with eval_mode(self.model):
            for numbers in length_batches([len(row.ids) for row in rows]):
                vectors, ctx = self._read([rows[number] for number in numbers])
                x = vectors if head.reads == "tokens" else self.model.pool(vectors, ctx)
                found |= dict(zip(numbers, head.scores(x, ctx).float().cpu(), strict=True))
        return [found[number] for number in range(len(rows))]

    @torch.inference_mode()
    def vectors(self, rows: Sequence[EncoderRow], pooled: bool) -> list[Tensor]:
        """Return the vectors of each row's tokens, or the pooled vector, in float32 on the CPU."""
        found: dict[int, Tensor] = {}
        with eval_mode(self.model):
            for numbers in length_batches([len(row.ids) for row in rows]):
                vectors, ctx = self._read([rows[number] for number in numbers])
                x = self.model.pool(vectors, ctx) if pooled else vectors
                for number, one in zip(numbers, x.float().cpu(), strict=True):
                    found[number] = one if pooled else one[: len(rows[number].ids)]
        return [found[number] for number in range(len(rows))]

    def _read(self, rows: Sequence[EncoderRow]) -> tuple[Tensor, Any]:
        """Return the last layer's vectors of padded rows, and their context."""
        lengths = [len(row.ids) for row in rows]
        longest, device = max(lengths), device_of(self.model)
        ids = torch.tensor([[*row.ids, *(0,) * (longest - len(row.ids))] for row in rows], device=device)
        places, real = torch.arange(longest, device=device), torch.tensor(lengths, device=device)
        second = torch.tensor([[row.second] for row in rows], device=device)
        segments = ((places >= second) & (places < real[:, None])).long() if self._segmented else None
        return self.model.run(ids, self.model.context_for(real, segments))


def encoder_reader(model: Model, tokenizer: Tokenizer, task: str, prompting: str = "") -> EncoderReader:
    """Return a reader of an encoder; refuse any other model. `prompting`: how one that writes text does the task."""
    more = f"; to prompt it: {prompting}" if prompting and model.can_generate else ""
    refusal = UsageError(f"{task}: want an encoder, such as BERT, got {model.config.noun}{more}")
    return EncoderReader(require(model, Encoder, refusal), tokenizer)


def trim_span(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return a stretch of characters without the spaces around it, which some tokens include."""
    start, end = span
    inner = text[start:end]
    if not inner.strip():
        return span
    return end - len(inner.lstrip()), start + len(inner.rstrip())
