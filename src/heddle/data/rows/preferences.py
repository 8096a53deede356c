"""Preference rows: two answers to one prompt side by side, each after the prompt, for learning from preferences."""

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, Positive, part, replace
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan
from heddle.data.rows.packed import with_begin_token
from heddle.data.rows.plan import RowsConfig, permutation
from heddle.data.shards import Shards


@part("preferences")
class PreferenceRows(RowsConfig):
    """A row is a pair: prompt and chosen answer, padded to `length`, then prompt and rejected answer, padded too.

    Answers have loss weights, prompts have none.

    length: most tokens of a prompt with an answer and its end; longer pairs are skipped and counted.
    shuffle: whether pairs come in a new order each epoch.
    """

    length: Positive = 512
    shuffle: bool = True

    compares_answers: ClassVar[bool] = True

    @property
    def max_length(self) -> int:
        return self.length

    @property
    def repeats_rows(self) -> bool:
        return True

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        if source is None or shards.loss_mask is None or source.loss_mask is None:
            want = "preference pairs (JSON lines with prompt, chosen and rejected), because rows.kind is preferences"
            raise ConfigError("data", want=want, got="text" if source is None else "pairs of source and target")
        return PreferencePlan(self, source, shards, seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, shuffle=False)

    def random_batch(self, vocab: int, rows: int, number: int) -> Batch:
        draw = torch.Generator().manual_seed(number)
        inputs, targets = torch.randint(vocab, (2, rows, 2 * self.length), generator=draw)
        return Batch(inputs, targets, torch.ones(rows, 2 * self.length), torch.arange(rows))


class PreferencePlan(RowPlan):
    """Rows of a chosen and a rejected answer; a stored document is a prompt, an answer and its end."""

    def __init__(self, config: PreferenceRows, chosen: Shards, rejected: Shards, seed: int) -> None:
        if chosen.count != rejected.count:
            want = f"{chosen.count} documents, one for each of {chosen.folder}"
            raise DataError(f"{rejected.folder}: want {want}, found {rejected.count}")
        self._sides, self.length = (chosen, rejected), config.length
        longest = np.maximum(chosen.lengths, rejected.lengths) - 1
        kept = np.flatnonzero(longest <= config.length)
        self.skipped = {"too_long": len(longest) - len(kept)}
        if not len(kept):
            want = f"pairs of at most {config.length} tokens, a prompt with an answer"
            raise DataError(f"{chosen.folder}: want {want} (rows.length), found none among {chosen.count}")
        self.rows_per_epoch = len(kept)
        self._order = EpochCache(partial(_order, kept, config.shuffle, seed))

    def row(self, number: int) -> Row:
        epoch, index = divmod(number, self.rows_per_epoch)
        pair = int(self._order(epoch)[index])
        inputs, targets, weights = zip(*(self._side(shards, pair) for shards in self._sides), strict=True)
        before = inputs[0][:1]  # targets are tokens but the first
        return Row(np.concatenate((before, *targets)), np.concatenate(weights), inputs=np.concatenate(inputs))

    def _side(self, shards: Shards, pair: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Return inputs, targets and weights of a prompt with one answer, without the end that closes a document."""
        tokens, weights = np.full(self.length + 1, shards.end, shards.dtype), np.zeros(self.length, np.float32)
        count = int(shards.lengths[pair]) - 1
        first = int(shards.ends[pair]) - count - 1
        shards.fill(tokens[: count + 1], first)
        shards.fill_weights(weights[:count], first)
        opened = with_begin_token(tokens, (np.zeros(1, np.int64),), shards)
        return tokens[:-1] if opened is None else opened, tokens[1:], weights


def _order(kept: NDArray[np.int64], shuffle: bool, seed: int, epoch: int) -> NDArray[np.int64]:
    return kept[permutation(len(kept), seed, "preferences", epoch)] if shuffle else kept
