"""Wire: HTTP over plain sockets, for what no client library would send."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from serving.server import KEY, Running


@contextlib.contextmanager
def connection(server: Running, seconds: float = 20.0) -> Iterator[socket.socket]:
    """Connect to a server."""
    with socket.create_connection(("127.0.0.1", server.port), seconds) as found:
        yield found


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    """Return the first lines of a request."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def exchange(
    server: Running,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    key: str | None = KEY,
) -> tuple[int, dict[str, str], bytes]:
    """Send one request; return the status, the headers and the body of the response."""
    own = {"Host": f"127.0.0.1:{server.port}", "Connection": "close", "Content-Length": str(len(body))}
    own |= {} if key is None else {"Authorization": f"Bearer {key}"}
    with connection(server) as wire:
        wire.sendall(head(method, path, own | (headers or {})) + body)
        return answer(wire)


def answer(wire: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read a response until the server closes; 0: it closed without one."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := wire.recv(1 << 16):
            found += piece
    top, _, body = found.partition(b"\r\n\r\n")
    if not top:
        return 0, {}, b""
    status, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status.split()[1]), headers, body


def post(server: Running, path: str, body: Any, **more: Any) -> tuple[int, Any]:
    """Post JSON; return the status and the JSON of the response."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, found = exchange(server, "POST", path, raw, **more)
    return status, json.loads(found) if found else None


def metric(server: Running, name: str, model: str) -> float:
    """Return a metric of a model."""
    _, _, text = exchange(server, "GET", "/metrics")
    line = next(line for line in text.decode().splitlines() if line.startswith(f'{name}{{model="{model}"}}'))
    return float(line.split()[-1])
