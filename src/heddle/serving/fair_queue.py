"""Fair queue: clients take turns, so that one with many requests does not delay the others; with limits."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, final

from heddle.core import HeddleError

T = TypeVar("T")


class QueueFull(HeddleError):
    """Too many requests are waiting; try again later."""


@final
class FairQueue(Generic[T]):
    """First in, first out for each client; the clients in turn."""

    def __init__(self, limit: int, client_limit: int | None = None) -> None:
        self.limit = limit
        self.client_limit = limit if client_limit is None else client_limit
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for waiting in self._clients.values():
            yield from waiting

    def check(self, client: str, count: int = 1) -> None:
        """Refuse more requests than may wait."""
        if self._count + count > self.limit:
            raise QueueFull(f"queue: want at most {self.limit} requests waiting, got {self._count + count}")
        mine = len(self._clients.get(client, ())) + count
        if mine > self.client_limit:
            raise QueueFull(f"queue: want at most {self.client_limit} requests waiting of one client, got {mine}")

    def put(self, item: T, client: str = "") -> None:
        """Add a request of a client."""
        self.check(client)
        self._clients.setdefault(client, deque()).append(item)
        self._count += 1

    def pop(self, can_begin: Callable[[T], bool] = lambda item: True) -> T | None:
        """Take the oldest request that can begin, of the first client who has one and whose turn comes; None: nobody.

        A request that cannot begin yet keeps its place, and holds up no other.
        """
        for client, waiting in self._clients.items():
            item = next(filter(can_begin, waiting), None)
            if item is not None:
                self._clients.move_to_end(client)
                self.remove(item)
                return item
        return None

    def remove(self, item: T) -> bool:
        """Take out a request that is not wanted any more; tell whether it was waiting."""
        for client, waiting in self._clients.items():
            if item in waiting:
                waiting.remove(item)
                if not waiting:
                    del self._clients[client]
                self._count -= 1
                return True
        return False
