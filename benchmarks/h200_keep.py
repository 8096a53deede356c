"""Carry the results of benchmarks/h200_tasks.sh over a GPU machine that keeps nothing.

    python benchmarks/h200_keep.py keep WORK FILE       put what is small into FILE, a .tgz
    python benchmarks/h200_keep.py restore FILE WORK    lay it out again on a fresh machine

Weights do not travel. What was graded from an encoder that is gone is not mixed with what another will give: those
lines are laid aside, and so is a seed of the domain record that is not whole.
"""

import io
import json
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FILES: tuple[str, ...] = ("*.json", "*.jsonl", "*.md", "logs/*", "shots/*.jsonl", "edit/*.json", "edit/results.jsonl")
FILES += ("edit/replies/*.json", "domain/*.jsonl", "domain/*.md", "notes/*/*")
NOTES = ("config.json", "environment.json", "metrics.jsonl")
FROM_ENCODER = ("scratch", "student", "masked", "untrained", "random")
FROM_WEIGHTS = ("distillation_runs.jsonl", "distillation_steps.json", "distillation_speed.json")
WAYS = 4  # rows of a seed in the domain record
LOG = 200_000  # last bytes of a log that are kept


def notes(work: Path) -> Iterator[tuple[str, Path]]:
    """Yield what tells how the pre-trained runs went, by the name under which it is kept."""
    for config in sorted([*work.glob("runs/*/config.json"), *work.glob("*/runs/*/config.json")]):
        kind = str(json.loads(config.read_text()).get("objective", {}).get("kind", ""))
        if kind in ("masked_token", "span_corruption", "distillation", "next_token", "sequence"):
            place = config.parent.parent.parent
            name = config.parent.name if place == work else f"{place.name}-{config.parent.name}"
            yield from ((f"notes/{name}/{file}", config.parent / file) for file in NOTES)


def keep(work: Path, file: Path) -> None:
    """Write all that is small, at once, so that a cut leaves the file before."""
    found = {str(path.relative_to(work)): path for pattern in FILES for path in sorted(work.glob(pattern))}
    found |= dict(notes(work))
    part = file.with_name("." + file.name)
    with tarfile.open(part, "w:gz", compresslevel=5) as made:
        for name, path in found.items():
            data = path.read_bytes() if path.is_file() else b""
            info = tarfile.TarInfo(name)
            data = data[-LOG:] if name.startswith("logs/") else data
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    part.replace(file)


def restore(file: Path, work: Path) -> None:
    """Lay out what was kept, where nothing lies yet."""
    with tarfile.open(file) as made:
        for info in made.getmembers():
            path = work / info.name
            taken = made.extractfile(info)
            if taken is not None and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(taken.read())
    if not (work / "runs" / "encoder" / "checkpoints").exists():
        lay_aside(work / "results.jsonl", lambda line: line["label"] not in FROM_ENCODER)
        for name in FROM_WEIGHTS:
            if (work / name).exists():
                (work / name).replace(work / f"earlier_{name}")
    seeds = Counter(line["seed"] for line in lines_of(work / "domain" / "domain.jsonl"))
    lay_aside(work / "domain" / "domain.jsonl", lambda line: seeds[line["seed"]] == WAYS)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]


def lay_aside(path: Path, keeps: Callable[[dict[str, Any]], bool]) -> None:
    """Leave the lines that may be built upon; the others go into a file beside it."""
    lines = lines_of(path)
    for name, own in ((path, True), (path.with_name(f"earlier_{path.name}"), False)):
        chosen = [line for line in lines if keeps(line) == own]
        if lines and (own or chosen):
            with name.open("w" if own else "a") as file:
                file.writelines(json.dumps(line) + "\n" for line in chosen)


if __name__ == "__main__":
    {"keep": keep, "restore": restore}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
