"""The server: uvicorn with deadlines for slow clients, errors in one shape, and a drain on SIGTERM."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from heddle.serving.http.errors import ApiError, to_json

HEADER_SECONDS = 10.0  # within which a request's headers must have come
DRAIN_SECONDS = 30.0
HEADER_BYTES = 1 << 15


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for the headers of each request, which uvicorn has only between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        super().connection_made(transport)
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
        """Stop the deadline."""
        self._clear()
        super().connection_lost(exc)

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
    try:
        Server(config, app.state.draining).run([bound])
    finally:
        app.state.models.close(0)  # whoever was accepted is answered by now, or was cancelled
