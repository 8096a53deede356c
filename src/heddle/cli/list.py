"""heddle list: runs, recipes, presets, tokenizers and data sources, from the run folders and the catalog: no torch."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle.cli.options import Json
from heddle.cli.terminal import BOLD, print_message, write

TAIL = 1 << 16  # bytes at the end of metrics.jsonl that are looked at
VARIANTS = "narang/"  # how the names of presets begin that are variants of one base
SECTIONS = ("runs", "recipes", "presets", "tokenizers", "sources")


@dataclass(frozen=True)
class RunFacts:
    """What a run's folder tells: the step it has come to, its last losses, when it was last saved, and its bytes."""

    name: str
    step: int | None
    loss: float | None
    validation_loss: float | None
    saved: float
    size: int

    def __str__(self) -> str:
        step = "no step yet" if self.step is None else f"step {self.step:,}"
        losses = (("held-out loss", self.validation_loss), ("loss", self.loss))
        loss = next((f"{name} {value:.3f}" for name, value in losses if value is not None), "")
        date = datetime.fromtimestamp(self.saved).strftime("%Y-%m-%d %H:%M")
        return f"{step:<13} {loss:<20} {date}  {_bytes(self.size):>9}"


def list_(
    section: Annotated[
        str | None,
        typer.Argument(metavar="[SECTION]", help=f"One of {', '.join(SECTIONS)}, or presets by the start of a name."),
    ] = None,
    json_: Json = False,
) -> None:
    """List runs, recipes, presets, tokenizers and data sources."""
    found = everything()
    if section is not None:
        found = _chosen(found, section)
    elif not json_:
        found["presets"] = _short(found["presets"])
    if json_:
        write(json.dumps(found, ensure_ascii=False))
        return
    for title, names in found.items():
        print_message(title, BOLD)
        width = max((len(_shown(name)) for name in names), default=0)
        for name, line in names.items():
            print_message(f"  {_shown(name):<{width}}  {line}".rstrip())
        if not names:
            print_message("  none yet")


def _chosen(found: dict[str, dict[str, str]], section: str) -> dict[str, dict[str, str]]:
    """Return one section, or the presets whose names begin with a word."""
    from heddle.core import UsageError, hint

    if section in found:
        return {section: found[section]}
    presets = {name: line for name, line in found["presets"].items() if name.startswith(section)}
    if not presets:
        near = hint(section, [*SECTIONS, "narang"], f"; sections: {', '.join(SECTIONS)}")
        raise UsageError(f"list: no section and no preset begins with {section!r}{near}")
    return {"presets": presets}


def _short(presets: dict[str, str]) -> dict[str, str]:
    """Return the presets with the variants of a paper as one line."""
    shown = {name: line for name, line in presets.items() if not name.startswith(VARIANTS)}
    about = f"{len(presets) - len(shown)} variants of Narang et al. (2021): heddle list narang"
    return shown | {f"{VARIANTS}...": f"{'':>9}    {about}"}


def everything() -> dict[str, dict[str, str]]:
    """Return, by section, every name with its line."""
    from heddle.cli.catalog import catalog

    known = catalog()
    presets = {name: f"{p['parameters'] / 1e6:>9,.1f} M  {p['about']}" for name, p in known.presets.items()}
    return {
        "runs": {run.name: str(run) for run in find_runs(Path("runs"))},
        "recipes": {name: str(recipe["about"]) for name, recipe in known.recipes.items()},
        "presets": presets,
        "tokenizers": _kinds("tokenizer"),
        "sources": _kinds("data.sources.N"),
    }


def _kinds(path: str) -> dict[str, str]:
    from heddle.cli.catalog import catalog

    known = catalog()
    at = [known.tables[name] for name, where in known.paths.items() if ".".join(where) == path]
    return {str(table.kind): table.about for table in at}


# --- runs -------------------------------------------------------------------------------------------------------------


def find_runs(runs: Path) -> list[RunFacts]:
    """Return the runs in a folder, the one saved last first; what cannot be read is left out."""
    found = []
    for path in runs.iterdir() if runs.is_dir() else ():
        try:
            if (path / "config.json").is_file() or (path / "checkpoints").is_dir():
                found.append(_facts(path))
        except OSError:
            continue
    return sorted(found, key=lambda run: (-run.saved, run.name))


def _facts(path: Path) -> RunFacts:
    last = _last_metrics(path / "metrics.jsonl")
    marks = [mark for mark in (path / "checkpoints", path / "config.json") if mark.exists()]
    saved = max(mark.stat().st_mtime for mark in marks)
    step = last.get("step")
    loss, held_out = (last.get(name) for name in ("loss", "validation_loss"))
    return RunFacts(
        path.name,
        step if isinstance(step, int) else None,
        loss if isinstance(loss, float) else None,
        held_out if isinstance(held_out, float) else None,
        saved,
        _size(path),
    )


def _last_metrics(path: Path) -> Mapping[str, Any]:
    """Return the last value of each metric."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read(TAIL).decode(errors="replace").splitlines()
    found: dict[str, Any] = {}
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:  # cut short
            continue
        if isinstance(values, dict):
            found |= values
    return found


def _size(path: Path) -> int:
    """Return the bytes of all files below a folder; links are not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        total += sum(os.lstat(Path(folder) / name).st_size for name in files)
    return total


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)
