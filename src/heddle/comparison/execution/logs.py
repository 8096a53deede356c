"""Logs of finished runs in one file, a line each: all that is worth keeping of a folder that cannot be kept.

The file has, for each run by its key, the config, the environment, the lines of metrics.jsonl, and what was printed.
"""

import json
import os
from pathlib import Path
from typing import Any

from heddle.comparison.execution.worker import LOG, Job
from heddle.core.system import read_text

LOGS = "logs.jsonl"
LONGEST = 20_000  # characters kept of what a run has printed: its end


def keep_log(folder: Path, job: Job) -> None:
    """Add the log of a finished run to logs.jsonl; it is on the disk when this returns."""
    printed = job.folder / LOG
    line: dict[str, Any] = {
        "key": job.names["key"],
        "variant": job.names["variant"],
        "seed": job.names["seed"],
        "arm": job.names["arm"],
        "config": _plain(job.run / "config.json"),
        "environment": _plain(job.run / "environment.json"),
        "metrics": _lines(job.run / "metrics.jsonl"),
        "printed": printed.read_text(encoding="utf-8", errors="replace")[-LONGEST:] if printed.exists() else "",
    }
    path = folder / LOGS
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a kill cut the last line off
        os.write(handle, f"{chr(10) * cut}{json.dumps(line)}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(path: Path) -> Any:
    return json.loads(read_text(path)) if path.exists() else None


def _lines(path: Path) -> list[Any]:
    found = []
    for line in read_text(path).splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off by a kill
            continue
    return found
