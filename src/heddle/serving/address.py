"""Address: where a server listens and who may reach it there."""

import socket
from dataclasses import dataclass, field

from heddle.core import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@dataclass(frozen=True)
class Address:
    """Where the server listens; a public address needs a key."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = field(default=(), repr=False)
    hosts: tuple[str, ...] = ()  # further names in the Host header
    origins: tuple[str, ...] = ()  # of pages that may call the server

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.keys:
            raise UsageError(f"host: {self.host} can be reached by others; want --api-key, or a loopback address")
        for key in self.keys:
            if not key or not key.isascii() or any(letter.isspace() for letter in key):
                found = "an empty key" if not key.strip() else "another"
                raise UsageError(f"api-key: want ASCII characters without spaces, got {found}")
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or "*" in origin:
                raise UsageError(f"cors-origin: want origins such as https://example.org, got {origin}")

    def bind(self) -> socket.socket:
        """Return a socket at this address, or refuse one that is taken; port 0 is any free one."""
        name = self.host.strip("[]")
        made = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((name, self.port))
        except OSError as error:
            made.close()
            raise UsageError(f"port: cannot listen on {self.host}:{self.port}: {error.strerror or error}") from None
        return made

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Return the names that a Host header may have; (): any, where a key protects a public address."""
        local = self.host in LOOPBACK
        return (*LOOPBACK, *(name.lower() for name in self.hosts)) if local or self.hosts else ()
