"""Results: one JSON line per measurement, with date, commit and device."""

import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file, none where there is no file; a last line that a kill has cut is removed."""
    if not path.exists():
        return []
    whole, _, rest = path.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
    return [json.loads(line) for line in whole.split("\n") if line]


def commit() -> str:
    """Return the commit that was measured, marked where the code was not quite that."""
    found = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", ":/", ":!*results.jsonl")
    return f"{found}-dirty" if found and changed else found or "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def device() -> str:
    """Name the chip, with its number of cores."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    names = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{torch.get_num_threads()}"


def need_gpu(tiny: bool) -> None:
    """Stop where a measurement would mean nothing, unless all is tiny."""
    if not tiny and not torch.cuda.is_available():
        raise SystemExit("needs a GPU; --tiny runs anywhere")


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def record(name: str, **numbers: Any) -> None:
    """Append a measurement to results.jsonl."""
    line = {"date": datetime.date.today().isoformat(), "commit": commit(), "device": device(), "name": name} | numbers
    with (HERE / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(f"added to benchmarks/results.jsonl: {name}", file=sys.stderr)
