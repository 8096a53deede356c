"""Environment: what a run runs on, kept in its folder, and told when it has changed."""

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heddle.core import HeddleError, brief
from heddle.core.system import Hardware, read_table

ENVIRONMENT = "environment.json"
ROUNDING = ("torch", "device", "chip", "dtype", "threads")  # what the last bits depend on


def environment(hardware: Hardware, processes: int = 1) -> dict[str, Any]:
    """Say what the run runs on."""
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
    }


def environment_changes(folder: Path, now: dict[str, Any], compared: Iterable[str]) -> str | None:
    """Say in one line what differs from the environment that the run was last trained in; None where nothing does."""
    try:
        before = read_table(folder / ENVIRONMENT)
    except HeddleError:  # gone or unreadable: nothing to compare with
        return None
    changed = [name for name in compared if name in before and before[name] != now[name]]
    if not changed:
        return None
    pairs = ", ".join(f"{name} {brief(before[name])} -> {brief(now[name])}" for name in changed)
    return f"changed: {pairs}, since the run was last trained: it goes on, but not in the same last bits"
