"""Cores: how many are free for this process while others run, and the number of threads that follows from it."""

import os
import resource
from pathlib import Path

STAT = Path("/proc/stat")  # Linux; elsewhere nothing is known of other processes
QUOTA = Path("/sys/fs/cgroup/cpu.max")
NICE, IDLE, WAITING = 1, 3, 4  # columns of a line of STAT: low priority, idle, and idle while a disk is waited for
TICKS = 8  # columns that add up to the whole time; those of guests are counted among them
MIN_SECONDS = 0.25  # seconds over which use can be told, in steps of a hundredth


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
    try:
        limit, period = QUOTA.read_text(encoding="ascii").split()
        return cores if limit == "max" else max(1, min(cores, int(limit) // int(period)))
    except (OSError, ValueError):
        return cores


class CoreWatch:
    """Tells, from one look to the next, how many cores other processes left free."""

    def __init__(self) -> None:
        self.cores = usable_cores()
        self._last = self._read()

    def free(self) -> float | None:
        """Return the cores that others did not use since the last look; None where that cannot be told, or too soon."""
        now, before = self._read(), self._last
        if now is None or before is None:
            return None
        seconds, busy, own = (a - b for a, b in zip(now, before, strict=True))
        if seconds < MIN_SECONDS:
            return None
        self._last = now
        others = max(0.0, busy - own) / seconds
        return max(0.0, self.cores - others)

    def _read(self) -> tuple[float, float, float] | None:
        """Return seconds that have passed, those that all cores of ours were in use, and those by this process."""
        try:
            lines = STAT.read_text(encoding="ascii").splitlines()
            tick = os.sysconf("SC_CLK_TCK")
            ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            rows = [[int(one) for one in line.split()[1:]] for line in lines if line.split()[0] in ours]
        except (OSError, ValueError, AttributeError):
            return None
        whole = sum(sum(row[:TICKS]) for row in rows) / tick
        free = (IDLE, WAITING) if os.nice(0) > 0 else (NICE, IDLE, WAITING)  # what has a lower priority makes room
        idle = sum(row[column] for row in rows for column in free) / tick
        used = resource.getrusage(resource.RUSAGE_SELF)
        return whole / max(1, len(rows)), whole - idle, used.ru_utime + used.ru_stime


def threads_for(free: float, most: int) -> int:
    """Return how many threads fit into free cores: all wait for the slowest, so none should share a core."""
    return max(1, min(most, int(free + 0.5)))


def threads_are_chosen() -> bool:
    """Tell whether the user has chosen a number of threads by the usual variables."""
    return any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
