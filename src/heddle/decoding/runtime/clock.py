"""Clock: tells when the seconds that were given are over."""

import time
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Deadline:
    """Seconds that began to run when it was made; None: no end."""

    end: float | None

    @classmethod
    def start(cls, seconds: float | None) -> "Deadline":
        """Let so many seconds begin."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    def over(self) -> bool:
        """Tell whether the time is up."""
        return self.end is not None and time.monotonic() >= self.end
