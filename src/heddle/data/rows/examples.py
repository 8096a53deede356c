"""Examples: labelled texts, one in a row with its special tokens, batched with others of similar length."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self, final

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, Positive, Share, part, replace
from heddle.core.shapes import Ids, Int, Tensor
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan
from heddle.data.rows.plan import RowsConfig, permutation, random_bits
from heddle.data.shards import ExampleShards, Shards, TextWindow, text_windows

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ExampleRow(Row):
    """One example: `tokens` are its inputs with padding, and one more; only the first `length` are real."""

    length: int = 0
    targets: Numbers | None = None
    segments: Numbers | None = None
    labels: NDArray[Any] | None = None
    example: int = -1
    window: tuple[int, int, int, int] = (0, 0, 0, 0)

    @classmethod
    def stack(cls, rows: "Sequence[Any]", numbers: Sequence[int]) -> Batch:
        def stacked(name: str) -> Tensor:
            return torch.from_numpy(np.stack([np.asarray(vars(row)[name]) for row in rows]))

        inputs = torch.from_numpy(np.stack([row.tokens[:-1] for row in rows]).astype(np.int64))
        more = {name: stacked(name) for name in ("targets", "weights", "segments", "labels")}
        places = torch.tensor([row.window for row in rows], dtype=torch.int64)
        lengths, examples = (
            torch.tensor(values) for values in zip(*((r.length, r.example) for r in rows), strict=True)
        )
        if rows[0].source is not None:
            more |= {"source": stacked("source")}
            more |= {} if rows[0].source_length is None else {"source_lengths": stacked("source_length")}
        at = torch.tensor(numbers, dtype=torch.int64)
        return ExampleBatch(inputs=inputs, rows=at, lengths=lengths, examples=examples, windows=places, **more)


@final
@dataclass(frozen=True)
class ExampleBatch(Batch):
    """Examples: one text, or two that are read together, in a row, with what is to be recognized.

    lengths: how many tokens of each row are not padding.
    segments: which of two texts a token belongs to: 0, or 1 for the second.
    labels: of each row as a whole: the class, 0 or 1 for each class, first and last place of an answer, or a score.
    examples: the number of each row's document; -1: the row only fills its batch.
    windows: which tokens of the text stand in the row, from start to stop, from which place on, and how many those of
    the whole text are.
    """

    lengths: Int[Tensor, "batch"] | None = None
    segments: Ids | None = None
    labels: Tensor | None = None
    examples: Int[Tensor, "batch"] | None = None
    windows: Int[Tensor, "batch 4"] | None = None


@part("examples")
class ExampleRows(RowsConfig):
    """Labelled texts: each row is one, with its special tokens; batches of similar length are padded to the longest.

    A text that is longer than a row becomes several windows, each with the label of the text, or is cut; the header of
    a run says how many are. Where two texts that are read together do not fit, the first is cut to half of a row.

    length: most tokens of a row, special tokens included.
    batch: rows in a batch; it must equal training.batch.
    jitter: share by which lengths are blurred before sorting, so that each epoch has other batches.
    multiple: padded lengths are rounded up to it, so that shapes are few; from the longest length on there is one.
    long: what becomes of longer texts: windows that overlap, or the head alone.
    overlap: share of a window that the next one repeats.
    """

    length: Positive = 128
    batch: Positive = 32
    jitter: Share = 0.1
    multiple: Positive = 8
    long: Literal["windows", "head"] = "windows"
    overlap: Share = 0.25

    batch_field: ClassVar[str | None] = "batch"
    labelled: ClassVar[bool] = True

    @property
    def max_length(self) -> int:
        return self.length

    @property
    def fixed_shape(self) -> bool:
        return self.multiple >= self.length

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        if shards.examples is None:
            raise ConfigError("rows.kind", want="another, because the corpus has no labels", got="examples")
        return ExamplePlan(self, shards, shards.examples, seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, jitter=0.0, batch=batch)

    def random_batch(self, vocab: int, rows: int, number: int) -> Batch:
        plain = super().random_batch(vocab, rows, number)
        one, zero = torch.zeros(rows, self.length), torch.zeros(rows, self.length, dtype=torch.int64)
        one[:, 0] = 1
        lengths = torch.full((rows,), self.length)
        return ExampleBatch(plain.inputs, zero, one, plain.rows, lengths=lengths, segments=zero, examples=plain.rows)


@dataclass(frozen=True)
class _Windows:
    """Every window of a corpus: the document, the tokens kept of the first of two texts, and the window itself."""

    documents: Numbers
    first: Numbers
    windows: Numbers  # start, stop, own_start, own_stop

    def __len__(self) -> int:
        return len(self.documents)

    def lengths(self, special: int) -> Numbers:
        """Return the tokens of each row."""
        return special + self.first + self.windows[:, 1] - self.windows[:, 0]


class ExamplePlan(RowPlan):
    """Rows of examples; each run of `batch` rows shares its padded length."""

    def __init__(self, config: ExampleRows, texts: Shards, examples: ExampleShards, seed: int) -> None:
        self._config, self._texts, self._examples = config, texts, examples
        self.length, self.batch = config.length, config.batch
        self._windows, self.notes = _divide(config, texts, examples)
        self._lengths = self._windows.lengths(examples.special)
        self.rows_per_epoch = -(-len(self._windows) // config.batch) * config.batch
        self._epoch = EpochCache(partial(_epoch, config, self._lengths, seed))

    @property
    def mean_length(self) -> int:
        return max(1, round(float(self._lengths.mean())))

    def row(self, number: int) -> Row:
        epoch, index = divmod(number, self.rows_per_epoch)
        order, padded = self._epoch(epoch)
        chosen, length = int(order[index]), int(padded[index // self._config.batch])
        if chosen < 0:
            return self._spare(length)
        document, first = int(self._windows.documents[chosen]), int(self._windows.first[chosen])
        start, stop, own_start, own_stop = self._windows.windows[chosen].tolist()
        ids, at, whole = self._ids(document, first, start, stop)
        window = TextWindow(start, stop, own_start, own_stop, at)
        found = self._examples.label_set.row(self._examples.labels.document(document)[:-1], window, length)
        tokens, segments = np.full(length + 1, self._texts.end, np.int64), np.zeros(length, np.int64)
        tokens[: len(ids)] = ids
        if self._examples.second is not None and self._examples.segmented:
            segments[at : len(ids)] = 1
        return ExampleRow(
            tokens=tokens,
            weights=found.weights,
            length=len(ids),
            targets=found.targets,
            segments=segments,
            labels=found.labels,
            example=document,
            window=(start, stop, at, whole),
        )

    def _ids(self, document: int, first: int, start: int, stop: int) -> tuple[list[int], int, int]:
        """Return the ids of a row, the place of its window, and how many tokens the windowed text has."""
        text, known = self._texts.document(document)[:-1].tolist(), self._examples
        if known.second is None:
            return [*known.before, *text[start:stop], *known.after], len(known.before), len(text)
        head = [*known.before, *text[:first], *known.between]
        second = known.second.document(document)[:-1].tolist()
        return [*head, *second[start:stop], *known.after], len(head), len(second)

    def _spare(self, length: int) -> ExampleRow:
        """Return a row that fills the last batch and counts for nothing."""
        empty = self._examples.labels.document(0)[:-1]
        like = self._examples.label_set.row(empty, TextWindow(0, 0, 0, 0), length)
        tokens = np.full(length + 1, self._texts.end, np.int64)
        zeros = np.zeros(length, np.int64)
        weights = np.zeros(length, np.float32)
        return ExampleRow(tokens, weights, length=1, targets=zeros, segments=zeros, labels=0 * like.labels)


def _divide(config: ExampleRows, texts: Shards, examples: ExampleShards) -> tuple[_Windows, tuple[str, ...]]:
    """Return the windows of all documents, and what was done to those that do not fit."""
    capacity = config.length - examples.special
    first = np.zeros(texts.count, np.int64)
    sizes = texts.lengths - 1
    notes = []
    if examples.second is not None:
        seconds = examples.second.lengths - 1
        first = np.minimum(sizes, np.maximum(capacity // 2, capacity - seconds))
        cut, sizes = int((sizes > first).sum()), seconds
        notes += [f"first texts are cut to half of a row: {cut:,} of {texts.count:,}"] if cut else []
    if capacity < 2:
        raise ConfigError(
            "rows.length", want=f"at least {examples.special + 2}, because a row has special tokens", got=config.length
        )
    long = np.flatnonzero(sizes > capacity - first)
    if config.long == "head":
        kept = np.minimum(sizes, capacity - first)
        windows = np.stack([np.zeros_like(kept), kept, np.zeros_like(kept), kept], axis=1)
        notes += [f"texts longer than a row are cut: {len(long):,} of {texts.count:,}"] if len(long) else []
        return _Windows(np.arange(texts.count), first, windows), tuple(notes)
    fitting = np.setdiff1d(np.arange(texts.count), long)
    whole = sizes[fitting]
    found = [np.stack([fitting, np.zeros_like(whole), whole, np.zeros_like(whole), whole], axis=1)]
    for document in long.tolist():
        space = int(capacity - first[document])
        parts = text_windows(int(sizes[document]), space, round(config.overlap * space))
        found.append(np.array([[document, w.start, w.stop, w.own_start, w.own_stop] for w in parts]))
    every = np.concatenate(found)
    every = every[np.argsort(every[:, 0], kind="stable")]
    if len(long):
        count = len(every) - len(fitting)
        notes += [f"texts longer than a row are divided: {len(long):,} of {texts.count:,}, into {count:,} windows"]
    return _Windows(every[:, 0], first[every[:, 0]], every[:, 1:]), tuple(notes)


def _epoch(config: ExampleRows, lengths: Numbers, seed: int, epoch: int) -> tuple[Numbers, Numbers]:
    """Return which window each row holds (-1: none) and the padded length of each batch, by blurred lengths."""
    noise = 2 * (random_bits(len(lengths), seed, "examples", epoch) / 2.0**64) - 1
    order = np.argsort(lengths * (1 + config.jitter * noise), kind="stable")
    groups = np.append(order, np.full(-len(order) % config.batch, -1)).reshape(-1, config.batch)
    groups = groups[permutation(len(groups), seed, "groups", epoch)]
    longest = np.where(groups < 0, 1, lengths[groups]).max(axis=1)
    padded = np.minimum(-(-longest // config.multiple) * config.multiple, config.length)
    return groups.ravel(), padded


def check_examples(batch: Batch) -> ExampleBatch:
    """Return a batch of examples; refuse any other."""
    if not isinstance(batch, ExampleBatch):
        raise ConfigError("rows.kind", want="examples, because the objective reads labels", got="another kind")
    return batch
