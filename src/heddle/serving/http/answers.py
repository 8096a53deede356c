"""Answers: the texts of a request as they grow, brought from the engine's thread to the event loop."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from heddle.core import HeddleError
from heddle.decoding.generation import StepOutput, TokenLogprobs
from heddle.decoding.runtime import FinishReason
from heddle.serving import Engine, EngineRequest, Event, Handle
from heddle.text.tokenizers import TextStream, Tokenizer

REASONS = {  # OpenAI's words
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.TIME: "length",
    FinishReason.STUCK: "length",
}


@dataclass(frozen=True)
class Piece:
    """What a step added to one text."""

    index: int
    text: str
    id: int | None
    logprobs: TokenLogprobs | None
    reason: FinishReason | None


@dataclass
class Answer:
    """One text of a request."""

    index: int
    stream: TextStream
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    reason: FinishReason | None = None
    handle: Handle | None = None
    _pending: str = ""

    def should_stop(self, row: int, id: int) -> bool:
        """Take the id into the text; tell whether it has reached a stop string. Called in the engine's thread."""
        self._pending += self.stream.push(id)
        return self.stream.stopped

    def take(self, step: StepOutput, streams: bool) -> Piece:
        """Return what a step added; the streams of a search have not seen its ids yet."""
        if not streams and step.id is not None:
            self.should_stop(0, step.id)
        text, self._pending = self._pending, ""
        text += self.stream.flush() if step.reason is not None else ""
        return Piece(self.index, text, step.id, step.logprobs, step.reason)

    def add(self, piece: Piece) -> None:
        """Append a piece. Called in the event loop."""
        self.text += piece.text
        self.reason = piece.reason
        if piece.id is not None:
            self.ids.append(piece.id)
            if piece.logprobs is not None:
                self.logprobs.append(piece.logprobs)


class Answers:
    """The texts of one HTTP request, from one prompt or several; each sample is a request to the engine of its own."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, requests: Sequence[EngineRequest], stop: Sequence[str]):
        self.engine, self.requests = engine, requests
        self.streams = all(one.config.strategy.streams for one in requests)
        per_request = 1 if self.streams else requests[0].config.samples
        self.rows = [
            [Answer(at * per_request + row, TextStream(tokenizer, one.request.ids, stop)) for row in range(per_request)]
            for at, one in enumerate(requests)
        ]
        self._events: asyncio.Queue[Piece | HeddleError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    @property
    def all(self) -> list[Answer]:
        """Return all texts, in order."""
        return [row for rows in self.rows for row in rows]

    def start(self, client: str) -> None:
        """Submit all requests, or none of them."""
        self.engine.check(client, len(self.requests))
        try:
            for request, rows in zip(self.requests, self.rows, strict=True):
                self._submit(request, rows)
        except HeddleError:
            self.cancel()
            raise

    def _submit(self, request: EngineRequest, rows: list[Answer]) -> None:
        streams = self.streams

        def listen(event: Event) -> None:
            if isinstance(event, HeddleError):
                found: Piece | HeddleError = event
            else:
                found = rows[event.row if not streams else 0].take(event, streams)
            with suppress(RuntimeError):  # the loop has closed: the server has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._events.put_nowait, found)

        stopping = dataclasses.replace(request, should_stop=rows[0].should_stop) if streams else request
        handle = self.engine.submit(stopping, listen)
        for row in rows:
            row.handle = handle

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield what each step adds, until all texts have ended; raise what went wrong."""
        left = len(self.all)
        while left:
            event = await self._events.get()
            if isinstance(event, HeddleError):
                self.cancel()
                raise event
            self.all[event.index].add(event)
            left -= event.reason is not None
            yield event

    async def finish(self) -> None:
        """Wait until all texts have ended."""
        async for _ in self.pieces():
            pass

    def cancel(self) -> None:
        """Stop what is still running."""
        for row in self.all:
            if row.handle is not None and row.reason is None:
                row.handle.cancel()

    @property
    def cached_tokens(self) -> int:
        """Return how many prompt tokens came from the prefix cache."""
        handles = {id(row.handle): row.handle for row in self.all if row.handle is not None}
        return sum(handle.cached_tokens for handle in handles.values())
