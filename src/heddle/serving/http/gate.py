"""Gate: what every request passes before its route: host, key, cross-origin rules, and a line in the access log.

The path and the key are those of the request itself, never of a URL that was put together from its headers.
"""

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heddle.serving import LOOPBACK, Address
from heddle.serving.http.errors import ApiError
from heddle.serving.http.metrics import Metrics
from heddle.serving.http.responses import error_response, log_fault

KNOWN_METHODS = frozenset(("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"))

log = logging.getLogger("heddle.access")


@dataclass(frozen=True)
class Access:
    """Who may use the server: keys, names of hosts, and origins of pages."""

    keys: Sequence[str] = ()  # none: everybody who reaches it
    hosts: Sequence[str] = LOOPBACK  # in the Host header, which a page elsewhere cannot choose; (): any
    origins: Sequence[str] = ()  # exactly, for pages of other origins
    open_paths: frozenset[str] = frozenset(("/health", "/ready"))  # without a key, to be read only
    digests: frozenset[bytes] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digests", frozenset(hashlib.sha256(key.encode()).digest() for key in self.keys))

    @classmethod
    def of(cls, address: Address) -> "Access":
        """Return who may use the server at an address."""
        return cls(address.keys, address.known_hosts, address.origins)

    def knows(self, authorization: str) -> bool:
        """Tell whether a header has one of the keys; the time it takes says nothing about them."""
        kind, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        found = [hmac.compare_digest(given, known) for known in self.digests]
        return not self.digests or (kind.lower() == "bearer" and any(found))

    def allows_host(self, host: str) -> bool:
        """Tell whether the Host header names this server."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") and host.count(":") != 8 else host
        return not self.hosts or name.lower() in self.hosts


class Gate:
    """The outermost part of the app."""

    def __init__(
        self, app: ASGIApp, access: Access, metrics: Metrics, draining: threading.Event, paths: Mapping[object, str]
    ) -> None:
        self.app, self.access, self.metrics, self.draining, self.paths = app, access, metrics, draining, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it with an error."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, status = time.monotonic(), [0]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin", "")

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._cross_origin(origin)]
            await send(message)

        try:
            refused = self._refusal(scope, headers)
            if refused is not None:
                await error_response(refused)(scope, receive, watched)
            elif scope["method"] == "OPTIONS" and origin in self.access.origins:
                await watched({"type": "http.response.start", "status": 204, "headers": _preflight()})
                await watched({"type": "http.response.body", "body": b""})
            else:
                await self.app(scope, receive, watched)
        except Exception as error:  # nobody above would answer it in OpenAI's shape
            log_fault(error)
            if not status[0]:
                await error_response(ApiError.of(error))(scope, receive, watched)
        finally:
            self._note(scope, status[0] or 500, time.monotonic() - begun)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> ApiError | None:
        if not self.access.allows_host(headers.get("host", "")):
            return ApiError(403, "host: not a name of this server", code="host_not_allowed")
        if scope["path"] in self.access.open_paths and scope["method"] in ("GET", "HEAD"):
            return None
        preflight = scope["method"] == "OPTIONS" and headers.get("origin", "") in self.access.origins
        if not preflight and not self.access.knows(headers.get("authorization", "")):
            return ApiError(401, "authorization: want a valid key as Bearer token", code="invalid_api_key")
        if self.draining.is_set():
            return ApiError(503, "the server is shutting down", code="shutting_down")
        return None

    def _cross_origin(self, origin: str) -> list[tuple[bytes, bytes]]:
        if origin not in self.access.origins:
            return []
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Write a line of the access log: no text of requests or answers, no keys."""
        path = self.paths.get(scope.get("endpoint"), "unknown")
        self.metrics.note(path, status, seconds)
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"
        line = {"method": method, "route": path, "status": status, "seconds": round(seconds, 4)}
        log.info(json.dumps(line | scope.get("heddle.log", {})))


def _preflight() -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-max-age", b"600"),
    ]
