"""The server: uvicorn with deadlines for slow senders and readers, errors in one shape, and a drain on SIGTERM."""

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from heddle.serving.http.app import DRAIN_SECONDS
from heddle.serving.http.errors import ApiError, to_json

HEADER_SECONDS = 10.0  # within which a request's headers must have come
READ_SECONDS = 10.0  # within which a client must take some of what is written to it
HEADER_BYTES = 1 << 15


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for the headers of each request, which uvicorn has only between requests.

    Another deadline is for clients who take nothing of an answer: closing alone would wait for them for ever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of anything that waits
        self._stalled: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = self.loop.call_later(HEADER_SECONDS, self._overdue)

    def data_received(self, data: bytes) -> None:
        """Stop the deadline when the headers are complete; start it with the first bytes of the next request."""
        before = self.cycle
        if self._deadline is None and (before is None or before.response_complete):
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._overdue)
        super().data_received(data)
        if self.cycle is not before:
            self._clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadlines."""
        self._clear()
        self._clear_stalled()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the deadline for the client to take something."""
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop that deadline: all has been taken."""
        self._clear_stalled()
        super().resume_writing()

    def _watch_reader(self, waiting: int) -> None:
        self._clear_stalled()
        self._stalled = self.loop.call_later(READ_SECONDS, self._check_reader, waiting)

    def _check_reader(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting >= before:
            self.transport.abort()
        else:
            self._watch_reader(waiting)

    def _clear_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in OpenAI's shape."""
        body = to_json(ApiError(400, "request: want HTTP/1.1").body)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _clear(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _overdue(self) -> None:
        self._deadline = None
        self.transport.close()


class Server(uvicorn.Server):
    """Ends by itself on SIGTERM and SIGINT: new requests are refused, accepted ones finish, the exit code is 0."""

    def __init__(self, config: uvicorn.Config, draining: threading.Event) -> None:
        super().__init__(config)
        self.draining = draining
        self.drain_begun: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals, and do not raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends at once."""
        self.force_exit = self.should_exit
        self.drain_begun = time.monotonic() if self.drain_begun is None else self.drain_begun
        self.draining.set()
        self.should_exit = True


def serve(app: FastAPI, bound: socket.socket, drain: float = DRAIN_SECONDS) -> None:
    """Serve on a bound socket until a signal comes, then drain and close the models."""
    settings: dict[str, Any] = {"timeout_graceful_shutdown": int(drain), "timeout_keep_alive": int(HEADER_SECONDS)}
    config = uvicorn.Config(
        app,
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        **settings,
    )
    server = Server(config, app.state.draining)
    try:
        server.run([bound])
    finally:
        begun = time.monotonic() if server.drain_begun is None else server.drain_begun
        app.state.models.close(max(0.0, begun + drain - time.monotonic()))
