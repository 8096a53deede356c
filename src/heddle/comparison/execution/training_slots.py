"""Training slots: a semaphore of file locks. Many processes compile side by side; few train at once, none too long.

A slot is the lock of one of a few folders. The system gives it back when a process dies, however it dies.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heddle.core.system import lock_folder

TOO_LATE = 76  # exit code of a worker whose run would not have ended in time
SPARE = 1.1  # by how much longer than its steps so far a run may take: validations, and the test rows
PAUSE = 0.05  # seconds between two attempts


class TooLate(Exception):
    """A run would not end in time, so it is left for another day."""


@dataclass(frozen=True)
class TrainingSlots:
    """How many runs of a comparison train at once, and until when they have to end.

    folder: where the locks lie.
    at_once: how many train at once; 0: as many as there are processes.
    until: the time, in seconds since 1970, by which a run has to end; None: runs that take longer are saved.
    """

    folder: str = ""
    at_once: int = 0
    until: float | None = None


UNLIMITED = TrainingSlots()


class TrainingSlot:
    """The slot of one run: waited for once, kept until its end."""

    def __init__(self, slots: TrainingSlots) -> None:
        self.slots = slots
        self.waited = 0.0  # seconds
        self.held = contextlib.ExitStack()
        self.is_held = slots.at_once == 0

    def take(self, should_stop: Callable[[], bool]) -> None:
        """Wait for a slot, unless it is held already or the run is to stop."""
        began = time.monotonic()
        while not self.is_held and not should_stop():
            self.check(0.0)
            self.is_held = self._take_free()
            if not self.is_held:
                time.sleep(PAUSE)
        self.waited += time.monotonic() - began

    def _take_free(self) -> bool:
        for number in range(self.slots.at_once):
            place = Path(self.slots.folder) / str(number)
            place.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as attempt:
                if attempt.enter_context(lock_folder(place, wait=False)):
                    self.held = attempt.pop_all()
                    return True
        return False

    def check(self, seconds: float) -> None:
        """Refuse a run that needs so many seconds more and would end too late."""
        if self.slots.until is not None and time.time() + SPARE * seconds > self.slots.until:
            raise TooLate

    def release(self) -> None:
        """Let another run train."""
        self.held.close()
        self.is_held = self.slots.at_once == 0
