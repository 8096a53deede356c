"""Responses: JSON and server-sent events that watch for clients who hang up or stop reading."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heddle.core import HeddleError
from heddle.serving import EngineFault
from heddle.serving.http.errors import ApiError, to_json

log = logging.getLogger("heddle")
SEND_SECONDS = 10.0  # within which a client must take an event
T = TypeVar("T")


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(to_json(value), status, dict(headers or {}), "application/json")


def error_response(error: ApiError) -> Response:
    """Return an error as a response."""
    return json_response(error.body, error.status, error.headers)


def log_fault(error: Exception) -> None:
    """Log an error that is a fault of ours, once: what stopped in the engine is in the log already."""
    known = isinstance(error, (ApiError, HeddleError)) and ApiError.of(error).code != "model_error"
    if not known and not isinstance(error, EngineFault):
        log.error("a request failed: %s", type(error).__name__, exc_info=error)


async def until_hang_up(request: Request, work: Coroutine[Any, Any, T], cancel: Callable[[], None]) -> T:
    """Wait for some work; cancel it if the client hangs up first."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_hang_up(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client hung up", code="client_closed_request")
        return task.result()
    finally:
        if not task.done():  # the client has gone, or the server has waited long enough
            cancel()
        gone.cancel()
        task.cancel()


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events: each value as one `data:` line, an error as the last one."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Mapping[str, Any]], cancel: Callable[[], None]) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self.events, self.cancel = events, cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, until the last one or until the client is gone."""
        sender, gone = asyncio.create_task(self._send(send)), asyncio.create_task(_hang_up(receive))
        try:
            await asyncio.wait((sender, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cancel()
            sender.cancel()
            gone.cancel()
            await asyncio.gather(sender, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async def line(data: bytes, more: bool = True) -> None:
            body = {"type": "http.response.body", "body": data, "more_body": more}
            await asyncio.wait_for(send(body), SEND_SECONDS)

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self.events:
                await line(b"data: " + to_json(event) + b"\n\n")
            await line(b"data: [DONE]\n\n")
        except (TimeoutError, OSError):
            return
        except Exception as error:  # the status is sent already
            log_fault(error)
            await line(b"data: " + to_json(ApiError.of(error).body) + b"\n\n")
        await line(b"", more=False)
