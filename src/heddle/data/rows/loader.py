"""Data loader: rows by number, stacked into batches; its whole state is one integer, the rows consumed."""

import dataclasses
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError
from heddle.core.shapes import Bool, Float, Ids, Int, Tensor, Weights

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One row as arrays: `tokens` holds one more than the row is long, since targets are inputs shifted by one."""

    tokens: NDArray[Any]
    weights: NDArray[np.float32]
    documents: NDArray[np.int64] | None = None
    positions: NDArray[np.int64] | None = None
    fresh: bool | None = None
    source: NDArray[Any] | None = None
    source_length: int | None = None
    inputs: NDArray[Any] | None = None  # None: the tokens but the last

    @classmethod
    def stack(cls, rows: "Sequence[Any]", numbers: Sequence[int]) -> "Batch":
        """Stack rows of this class and of one shape into a batch."""
        tokens = torch.from_numpy(np.stack([row.tokens for row in rows]).astype(np.int64))
        inputs = np.stack([row.tokens[:-1] if row.inputs is None else row.inputs for row in rows])
        return Batch(
            inputs=torch.from_numpy(inputs.astype(np.int64)),
            targets=tokens[:, 1:].contiguous(),
            weights=torch.from_numpy(np.stack([row.weights for row in rows])),
            rows=torch.tensor(numbers, dtype=torch.int64),
            documents=_stack([row.documents for row in rows]),
            positions=_stack([row.positions for row in rows]),
            fresh=_stack([row.fresh for row in rows]),
            source=_stack_sources([row.source for row in rows]),
            source_lengths=_stack([row.source_length for row in rows]),
        )


@dataclass(frozen=True)
class Batch:
    """Rows to train or evaluate on.

    weights: 0 where a target has no loss (padding, or repeated context).
    documents: index of the document within its row, padding having its own; None: a row is one document.
    positions: index within the document's part of the row; None: 0, 1, 2, ...
    rows: numbers of the rows in the whole run, the key of any randomness that belongs to a row.
    fresh: True where carried state is reset before the row; None: no state is carried.
    source, source_lengths: the padded source, ids or the features of a medium, and its lengths without padding.
    """

    inputs: Ids
    targets: Ids
    weights: Weights
    rows: Int[Tensor, "batch"]
    documents: Ids | None = None
    positions: Ids | None = None
    fresh: Bool[Tensor, "batch"] | None = None
    source: Int[Tensor, "batch source_length"] | Float[Tensor, "batch *source"] | None = None
    source_lengths: Int[Tensor, "batch"] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def tokens(self) -> int:
        """Count the targets of nonzero weight; call it on the CPU, since on a GPU it waits for the device."""
        return int(self.weights.count_nonzero())

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on a device; from pinned memory the copy is asynchronous."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Self:
        """Return the batch in pinned memory, so that copies to the device are asynchronous."""
        return self._each(lambda tensor: tensor.pin_memory())

    def slice(self, start: int, stop: int) -> Self:
        """Return some of the rows: a micro-batch."""
        return self._each(lambda tensor: tensor[start:stop])

    def select(self, rows: Int[Tensor, " rows"]) -> Self:
        """Return the rows of these indices."""
        return self._each(lambda tensor: tensor[rows])

    def _each(self, transform: Callable[[Tensor], Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{k: transform(v) for k, v in values.items() if v is not None})


def collate(rows: Sequence[Row], numbers: Sequence[int]) -> Batch:
    """Stack rows of one shape into a batch; rows of a kind of their own make batches of their own."""
    return rows[0].stack(rows, numbers)


def joined(groups: NDArray[np.int64], make: Callable[[NDArray[np.int64]], Batch]) -> Batch:
    """Return a batch of which each group of rows is made together; `make` is told their places in the batch."""
    if (groups == groups[0]).all():
        return make(np.arange(len(groups)))
    places = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    order = torch.from_numpy(np.argsort(np.concatenate(places)))
    parts = [vars(make(some)) for some in places]
    known = [name for name, value in parts[0].items() if value is not None]
    fields: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in known}
    return Batch(**fields).select(order)


def _stack(values: Sequence[Any], dtype: Any = None) -> Tensor | None:
    if values[0] is None:
        return None
    return torch.from_numpy(np.array(values, dtype))


def _stack_sources(values: Sequence[NDArray[Any] | None]) -> Tensor | None:
    """Return sources as one tensor: ids as whole numbers of 64 bits, features as they are."""
    first = values[0]
    return _stack(values, np.float32 if first is not None and first.dtype.kind == "f" else np.int64)


class RowPlan(ABC):
    """Rows by number; row g belongs to epoch g // rows_per_epoch."""

    rows_per_epoch: int
    length: int  # of the longest row
    batch: int | None = None  # the only number of rows a step may take; None: any
    skipped: Mapping[str, int] = {}  # documents that became no row, counted by reason
    notes: tuple[str, ...] = ()  # what was done to documents that do not fit a row, for the header of a run

    @property
    def mean_length(self) -> int:
        """Return the mean length of a row, for an estimate of its cost."""
        return self.length

    @abstractmethod
    def row(self, number: int) -> Row:
        """Return one row of the endless run; a pure function of the data, the config, the seed and the number."""

    def build_batch(self, numbers: Sequence[int]) -> Batch:
        """Return some rows as a batch; a kind of rows whose making is slow one by one makes them together."""
        return collate([self.row(number) for number in numbers], numbers)


class EpochCache(Generic[T]):
    """Remember the two latest values of a function of the epoch: threads at an epoch's edge need both sides."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}
        self._lock = threading.Lock()

    def __call__(self, epoch: int) -> T:
        with self._lock:
            if epoch not in self._kept:
                made = self._make(epoch)
                while len(self._kept) > 1:
                    del self._kept[next(iter(self._kept))]
                self._kept[epoch] = made
            return self._kept[epoch]


@dataclass
class Loader:
    """Yields this rank's share of each step's rows; neither ranks nor workers change the order.

    plan: which row has which number.
    batch: rows per step over all ranks; this rank gets its contiguous share of them.
    start: rows consumed by earlier steps; `consumed` of the loader that they came from.
    workers: threads that build batches ahead; 0 builds each when it is needed.
    prefetch: batches that each worker may be ahead.
    pin: put batches into pinned memory, for a CUDA device.
    transform: applied to each batch when it is built, such as noise keyed by its rows.
    """

    plan: RowPlan
    batch: int
    start: int = 0
    rank: int = 0
    world: int = 1
    workers: int = 0
    prefetch: int = 2
    pin: bool = False
    transform: Callable[[Batch], Batch] | None = None
    consumed: int = field(init=False)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("batch", self.batch, 1),
            ("start", self.start, 0),
            ("world", self.world, 1),
            ("workers", self.workers, 0),
            ("prefetch", self.prefetch, 1),
        ):
            if value < least:
                raise ConfigError(name, want=f"at least {least}", got=value)
        if not 0 <= self.rank < self.world:
            raise ConfigError("rank", want=f"0 to {self.world - 1}", got=self.rank)
        if self.batch % self.world:
            raise ConfigError("batch", want=f"a multiple of the {self.world} ranks", got=self.batch)
        if self.plan.batch is not None and self.batch != self.plan.batch:
            raise ConfigError("batch", want=f"{self.plan.batch}, the batch of the row plan", got=self.batch)
        if self.plan.batch is not None and self.start % self.plan.batch:
            raise ConfigError("start", want=f"a multiple of the row plan's {self.plan.batch}", got=self.start)
        self.consumed = self.start

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end, from `consumed` on; a batch is consumed from the moment it is yielded."""
        steps = count(self.consumed, self.batch)
        # Closed by name: early Pythons 3.12 keep the locals of a closed generator alive, and threads with them.
        with closing(self._batches(self._share(first) for first in steps)) as batches:
            for batch in batches:
                self.consumed += self.batch
                yield batch

    def once(self) -> Iterator[Batch]:
        """Yield each row of the first epoch once and stop, as evaluation needs; the last batch may be smaller.

        `consumed` stays as it is. A rank whose share of the last step is empty gets one batch less.
        """
        rows = self.plan.rows_per_epoch
        shares = (self._share(first) for first in range(0, rows, self.batch))
        yield from self._batches(range(s.start, min(s.stop, rows)) for s in shares if s.start < rows)

    def _share(self, first: int) -> range:
        """Return this rank's rows of the step that begins at a row."""
        share = self.batch // self.world
        return range(first + self.rank * share, first + (self.rank + 1) * share)

    def _build(self, numbers: range) -> Batch:
        batch = self.plan.build_batch(numbers)
        batch = batch if self.transform is None else self.transform(batch)
        return batch.pin() if self.pin else batch

    def _batches(self, shares: Iterable[range]) -> Generator[Batch, None, None]:
        yield from self._prefetched(shares) if self.workers else map(self._build, shares)

    def _prefetched(self, shares: Iterable[range]) -> Iterator[Batch]:
        """Build batches on threads and yield them in order; leaving the loop, in any way, ends the threads."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="heddle-loader")
        waiting: deque[Future[Batch]] = deque()
        try:
            for numbers in shares:
                waiting.append(pool.submit(self._build, numbers))
                if len(waiting) > self.workers * self.prefetch:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
