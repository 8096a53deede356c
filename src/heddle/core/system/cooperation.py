"""Cooperative multitasking: long work pauses between its pieces, so that others who share its thread can go on."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

# What the others do in a pause; None: nobody shares the thread.
_IN_A_PAUSE: ContextVar[Callable[[], None] | None] = ContextVar("in_a_pause", default=None)


@contextlib.contextmanager
def shared_thread(others: Callable[[], None]) -> Iterator[None]:
    """Share this thread with others, whose function is called in every pause."""
    token = _IN_A_PAUSE.set(others)
    try:
        yield
    finally:
        _IN_A_PAUSE.reset(token)


def is_shared() -> bool:
    """Tell whether others wait for this thread."""
    return _IN_A_PAUSE.get() is not None


def pause() -> None:
    """Let the others go on for a while."""
    others = _IN_A_PAUSE.get()
    if others is not None:
        others()
