"""Handles of requests: what a client of the engine holds, and what the engine tells it, from another thread."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from heddle.core import EnvironmentFault, HeddleError
from heddle.decoding.generation import Completion, GenerationConfig, StepOutput, StopCriterion, TokenLogprobs
from heddle.decoding.runtime import Request
from heddle.decoding.speculative import Draft

Event = StepOutput | HeddleError
Listener = Callable[[Event], None]  # called in the engine's thread: it must return at once


class Cancelled(HeddleError):
    """The request was cancelled, or the engine was closed."""


class EngineFault(EnvironmentFault):
    """The engine could not compute an answer; the log has the cause."""


class DeadlineExceeded(HeddleError):
    """The request waited longer than its deadline."""


@dataclass(frozen=True)
class EngineRequest:
    """A request to the engine: one sample of a prompt, with its own settings."""

    request: Request
    config: GenerationConfig
    sample: int = 0  # number of the sample: each is a request of its own
    client: str = ""  # whose turn it is in the queue
    cache_salt: str = ""  # prompts share cached prefixes with those of the same salt alone
    prompt_logprobs: int | None = None  # alternatives of each prompt token's log-probability; None: neither
    should_stop: StopCriterion | None = None  # called in the engine's thread
    draft: Draft | None = None  # for speculative decoding
    max_wait: float | None = None  # seconds in the queue


@dataclass
class Timing:
    """When a request came and gave its first token, by the monotonic clock."""

    submitted: float = field(default_factory=time.monotonic)
    first: float | None = None


class Handle:
    """A request that the engine works on: iterate over its steps, wait for its completion, or cancel it."""

    def __init__(self, request: EngineRequest, listener: Listener | None, cancel: "Callable[[Handle], None]") -> None:
        self.request, self.listener, self._cancel = request, listener, cancel
        self.timing = Timing()
        self.cached_tokens = 0  # of the prompt, which came from the prefix cache
        self.prompt_logprobs: Sequence[TokenLogprobs | None] = ()  # of each prompt token, before the first step
        self.rows = 1  # samples that it yields
        self.cancelled = threading.Event()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def cancel(self) -> None:
        """Stop the generation; its slot is free after the step that runs now."""
        self.cancelled.set()
        self._cancel(self)

    def notify(self, event: Event) -> None:
        """Tell the client; called by the engine."""
        if self.timing.first is None:
            self.timing.first = time.monotonic()
        if self.listener is None:
            self._events.put(event)
        else:
            self.listener(event)

    def __iter__(self) -> Iterator[StepOutput]:
        """Yield each step as it is made; raise what went wrong."""
        left = self.rows
        while left:
            event = self._events.get()
            if isinstance(event, HeddleError):
                raise event
            yield event
            left -= event.reason is not None

    def results(self) -> list[Completion]:
        """Wait for the completions of all its samples."""
        steps = list(self)
        rows = dict.fromkeys(sorted(step.row for step in steps))
        return [Completion.from_steps([step for step in steps if step.row == row]) for row in rows]

    def result(self) -> Completion:
        """Wait for the only completion."""
        (found,) = self.results()
        return found
