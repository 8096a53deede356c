"""The ledger of a comparison: one line a finished run, so that nothing is run twice; and results.csv from it."""

import csv
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from heddle.core import DataError
from heddle.core.system import write_text

RUNS, RESULTS = "runs.jsonl", "results.csv"
Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True)
class Result:
    """What one run gave; a run that diverged or failed is a result too, with an infinite loss."""

    suite: str
    variant: str
    key: str
    seed: int
    arm: str
    status: Status
    loss: float  # held-out, in nats per target
    bits_per_byte: float | None
    parameters: int
    active_parameters: int
    flops_per_token: int
    steps: int
    tokens: int
    learning_rate: float | None
    optimizer: str
    seconds: float
    tokens_per_second: float
    peak_gib: float
    skipped_steps: int
    changes: str
    data_hash: str
    tokenizer_hash: str
    commit: str
    device: str
    torch: str
    reason: str = ""  # why it failed
    curve: tuple[tuple[int, float], ...] = ()  # steps and held-out losses; not in results.csv

    @classmethod
    def parse(cls, plain: dict[str, Any]) -> "Result":
        """Return a result from its line."""
        plain = plain | {"loss": math.inf if plain["loss"] is None else plain["loss"]}
        plain["curve"] = tuple((int(step), float(loss)) for step, loss in plain.get("curve", ()))
        return cls(**plain)

    def line(self) -> str:
        """Return the result as one line of JSON; an infinite loss is null."""
        plain = asdict(self) | {"loss": self.loss if math.isfinite(self.loss) else None}
        return json.dumps(plain, allow_nan=False)


class Ledger:
    """The finished runs of a folder: runs.jsonl."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RUNS
        self.results: dict[str, Result] = {}
        lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                result = Result.parse(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                if number == len(lines):  # cut off by a kill: that run is not finished
                    continue
                raise DataError(f"{self.path}: line {number} is not a result of this version") from None
            self.results[result.key] = result
        if lines and lines[-1]:
            write_text(self.path, "".join(f"{one.line()}\n" for one in self.results.values()))

    def add(self, result: Result) -> None:
        """Write a result; it is on disk when this returns."""
        self.results[result.key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, f"{result.line()}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)


COLUMNS = [field.name for field in fields(Result) if field.name != "curve"]


def write_csv(path: Path, results: Iterable[Result]) -> None:
    """Write results.csv: a row a run, in an order that does not depend on which run ended first."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in sorted(results, key=lambda one: (one.arm, one.variant, one.seed)):
        writer.writerow([_cell(getattr(result, name)) for name in COLUMNS])
    write_text(path, out.getvalue())


def _cell(value: object) -> object:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    return "" if value is None else value
