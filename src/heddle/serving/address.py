"""Address: where a server listens and who may reach it there."""

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
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or "*" in origin:
                raise UsageError(f"cors-origin: want origins such as https://example.org, got {origin}")

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Return the names that a Host header may have; (): any, where a key protects a public address."""
        local = self.host in LOOPBACK
        return (*LOOPBACK, *(name.lower() for name in self.hosts)) if local or self.hosts else ()
