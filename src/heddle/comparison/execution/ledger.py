"""The ledger of a comparison: one line a finished run, so that nothing is run twice; and results.csv from it."""

import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from heddle.core import DamageError, DataError
from heddle.core.system import sync_folder, write_text

RUNS, RESULTS = "runs.jsonl", "results.csv"
Status = Literal["done", "diverged", "failed"]
Curve = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Result:
    """What one run gave; a run that diverged or failed is a result too, without a loss.

    Times and speeds are None where runs shared a device, so that nobody mistakes them for measurements.
    """

    suite: str
    variant: str
    config_hash: str
    diff: str
    seed: int
    arm: str
    data_hash: str
    valid_hash: str
    tokenizer_hash: str
    params: int
    active_params: int
    flops_token: int
    steps: int
    tokens: int
    learning_rate: float | None
    optimizer: str
    gpu_s: float | None
    tokens_s: float | None
    peak_gib: float
    loss_valid: float | None  # nats per target, over the held-out rows that are measured during training
    loss_test: float | None  # over further held-out rows, measured once, at the end
    status: Status
    guard_skips: int
    commit: str
    device: str
    torch: str
    bits_per_byte: float | None = None  # of loss_valid
    bits_per_byte_test: float | None = None  # of loss_test, by the bytes of those rows
    processes: int = 1  # runs side by side on the machine
    wall_s: float = 0.0  # from the run's start, compiling included
    reason: str = ""  # why it failed
    key: str = ""
    curve: Curve = ()  # steps and held-out losses; not in results.csv

    @property
    def loss(self) -> float:
        """Return the loss that verdicts are about: of the test rows where there are any; infinite if the run failed."""
        found = self.loss_valid if self.loss_test is None else self.loss_test
        return math.inf if found is None or self.status != "done" else found

    @property
    def bits_per_nat(self) -> float | None:
        """Return how many bits per byte a nat of that loss is: by the bytes of the rows that it was measured on.

        Lines of earlier versions have none of the test rows, so that of the validation rows stands in.
        """
        bits, nats = self.bits_per_byte_test, self.loss_test
        if bits is None:
            bits, nats = self.bits_per_byte, self.loss_valid
        return None if bits is None or not nats else bits / nats

    @classmethod
    def parse(cls, plain: dict[str, Any]) -> "Result":
        """Return a result from its line."""
        curve = tuple((int(step), float(loss)) for step, loss in plain.get("curve", ()))
        return cls(**plain | {"curve": curve})

    def line(self) -> str:
        """Return the result as one line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)


class Ledger:
    """The finished runs of a folder: runs.jsonl. One process writes it, the one that holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RUNS
        self.results: dict[str, Result] = {}
        text = self.path.read_bytes().decode("utf-8", errors="replace") if self.path.exists() else ""
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            self._read(line, number, last=number == len(lines))
        if lines[-1]:  # cut off by a kill: later lines must not be glued to it
            write_text(self.path, "".join(f"{one.line()}\n" for one in self.results.values()))

    def _read(self, line: str, number: int, last: bool) -> None:
        if not line.strip():
            return
        try:
            result = Result.parse(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            if last:  # that run is not finished
                return
            raise DamageError(
                f"{self.path}: line {number} is not a result of this version; move the file away"
            ) from None
        self.results[result.key] = result

    def add(self, result: Result) -> None:
        """Write a result; it is on the disk when this returns."""
        if not result.key:
            raise DataError(f"{self.path}: a result of {result.variant} has no key")
        self.results[result.key] = result
        new = not self.path.exists()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, f"{result.line()}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            sync_folder(self.path.parent)

    def forget_failed(self) -> None:
        """Let failed runs be trained again; their lines stay until then."""
        self.results = {key: one for key, one in self.results.items() if one.status != "failed"}


RENAMED = {"learning_rate": "rate"}  # the name of a column, where it is shorter
COLUMNS = {f.name: RENAMED.get(f.name, f.name) for f in dataclasses.fields(Result) if f.name != "curve"}


def rows_of(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return results as rows, in an order that does not depend on which run ended first."""
    ordered = sorted(results, key=lambda one: (one.arm, one.variant, one.seed))
    return [{column: vars(one)[name] for name, column in COLUMNS.items()} for one in ordered]


def write_csv(path: Path, results: Iterable[Result]) -> None:
    """Write results.csv: a row a run; a number that there is not is an empty cell."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS.values())
    for row in rows_of(results):
        writer.writerow(["" if value is None else value for value in row.values()])
    write_text(path, out.getvalue())
