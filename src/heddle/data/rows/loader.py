"""Loader: an endless iterator of batches whose whole state is one integer, the rows consumed."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count

from heddle.core import ConfigError
from heddle.data.rows.batch import Batch, collate
from heddle.data.rows.plan import RowPlan


@dataclass
class Loader:
    """Hand out this rank's share of each step's rows; neither ranks nor workers change the order.

    plan: which row has which number.
    batch: rows per step over all ranks; this rank gets its contiguous share of them.
    start: rows consumed by earlier steps; `consumed` of the loader that they came from.
    workers: threads that build batches ahead; 0 builds each when it is asked for.
    prefetch: batches that each worker may be ahead.
    pin: put batches into pinned memory, for a CUDA device.
    change: what is done to each batch when it is built: noise that belongs to its rows, say.
    """

    plan: RowPlan
    batch: int
    start: int = 0
    rank: int = 0
    world: int = 1
    workers: int = 0
    prefetch: int = 2
    pin: bool = False
    change: Callable[[Batch], Batch] | None = None
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
            raise ConfigError("batch", want=f"{self.plan.batch}, as the row plan has it", got=self.batch)
        if self.plan.batch is not None and self.start % self.plan.batch:
            raise ConfigError("start", want=f"a multiple of the row plan's {self.plan.batch}", got=self.start)
        self.consumed = self.start

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end, from `consumed` on; a batch is consumed from the moment it is handed out."""
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
        """Name this rank's rows of the step that begins at a row."""
        share = self.batch // self.world
        return range(first + self.rank * share, first + (self.rank + 1) * share)

    def _build(self, numbers: range) -> Batch:
        batch = collate([self.plan.row(number) for number in numbers], numbers)
        batch = batch if self.change is None else self.change(batch)
        return batch.pin() if self.pin else batch

    def _batches(self, shares: Iterable[range]) -> Generator[Batch, None, None]:
        yield from self._prefetched(shares) if self.workers else map(self._build, shares)

    def _prefetched(self, shares: Iterable[range]) -> Iterator[Batch]:
        """Build batches on threads and hand them out in order; leaving the loop, in any way, ends the threads."""
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
