"""The table of `heddle evaluate --table`: what runs have kept of their evaluations on tasks, side by side."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from heddle.cli.terminal import print_message, write

EVALUATIONS = "evaluations.jsonl"  # in the folder of a run
ABOUT = ("task", "examples", "intervals", "data", "prompt", "memory", "run")  # the keys of a record that are no metrics

Record = dict[str, Any]


def show_table(names: Sequence[str], requested: bool, as_json: bool) -> int:
    """Show the latest result of each run for each task, data, prompt and memory."""
    from heddle.core import UsageError

    if not requested:
        raise UsageError(f"unexpected argument: {names[0]}; runs are for --table, and -m names the one to measure")
    records = [record for name, folder in _folders(names) for record in _latest(name, folder / EVALUATIONS)]
    if not records:
        raise UsageError("--table: no run has kept an evaluation; type: heddle evaluate -m RUN --task NAME --data FILE")
    if as_json:
        for record in records:
            write(json.dumps(record))
        return 0
    for key in dict.fromkeys(map(_key, records)):
        _show([record for record in records if _key(record) == key])
    return 0


def _folders(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield runs by name, or all under `runs`."""
    from heddle.checkpoints.store import find_run, list_runs

    for folder in [find_run(name) for name in names] or list_runs(Path("runs")):
        yield folder.name, folder


def _latest(run: str, file: Path) -> list[Record]:
    """Return the last record of each task, data, prompt and memory; a line that is cut short is passed over."""
    found: dict[str, Record] = {}
    if file.is_file():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("task"), str):
                found.pop(_key(record), None)
                found[_key(record)] = {"run": run, **record}
    return list(found.values())


def _key(record: Record) -> str:
    """Return what a result is of: results of different data, examples, prompts or memories do not compare."""
    return json.dumps([record.get(name) for name in ("task", "data", "prompt", "memory", "examples")], sort_keys=True)


def _show(records: list[Record]) -> None:
    """Print the runs of one task, the best by the first metric first."""
    first = records[0]
    metrics = [name for name in first if name not in ABOUT and isinstance(first[name], int | float)]
    ordered = sorted(records, key=lambda record: -_number(record, metrics[0])) if metrics else records
    prompt = "".join(f", {name} {value}" for name, value in (first.get("prompt") or {}).items())
    memory = "".join(f", memory {name} {value}" for name, value in (first.get("memory") or {}).items())
    examples = f"{first.get('examples')} examples of {Path(str(first.get('data'))).name}"
    print_message(f"{first['task']}: {examples}{prompt}{memory}")
    rows = [["run", *metrics], *([record["run"], *(_cell(record, name) for name in metrics)] for record in ordered)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print_message("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(record: Record, name: str) -> str:
    if name not in record:
        return "-"
    bounds = (record.get("intervals") or {}).get(name)
    interval = f" [{bounds[0]:.4f}, {bounds[1]:.4f}]" if isinstance(bounds, list) and len(bounds) == 2 else ""
    return f"{_number(record, name):.4f}{interval}"


def _number(record: Record, name: str) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else float("-inf")
