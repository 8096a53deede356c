"""Environment: versions, device and threads of a run, written to its folder, and what of them has changed."""

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heddle.core import HeddleError, brief, user_code
from heddle.core.system import Hardware, read_table, write_json

ENVIRONMENT = "environment.json"
ROUNDING = ("torch", "device", "chip", "dtype", "threads")  # what the last bits depend on


def environment(hardware: Hardware, processes: int = 1) -> dict[str, Any]:
    """Return what the run runs on."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "device": str(hardware.device),
        "chip": hardware.name,
        "dtype": str(hardware.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "processors": os.cpu_count(),
        "plugins": user_code.plugins(),
    }


def environment_changes(folder: Path, now: dict[str, Any], compared: Iterable[str]) -> str | None:
    """Return one line on what has changed since the run was last trained; None: nothing has."""
    try:
        before = read_table(folder / ENVIRONMENT)
    except HeddleError:  # gone or unreadable: nothing to compare with
        return None
    changed = [name for name in compared if name in before and before[name] != now[name]]
    if not changed:
        return None
    pairs = ", ".join(f"{name} {brief(before[name])} -> {brief(now[name])}" for name in changed)
    return f"changed: {pairs}, since the run was last trained: results may differ in the last bits"


def record_threads(folder: Path, threads: int) -> None:
    """Write that a run now computes with another number of threads: the last bits depend on it."""
    write_json(folder / ENVIRONMENT, read_table(folder / ENVIRONMENT) | {"threads": threads})
