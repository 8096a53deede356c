"""Predictions: the loss of a larger run, written down before it is trained and graded once after.

prediction.json says when, by which commit, and from which runs it was made; its checksum shows an edit. grade.json
holds the checksum of what was graded: neither can be replaced without a trace.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heddle.comparison.compare import commit
from heddle.comparison.execution import Result
from heddle.comparison.scaling.cells import LARGER, Cell, CellRun, Grid
from heddle.comparison.scaling.laws import ArchitectureLaw, Unit, predict
from heddle.comparison.scaling.rates import RateRule
from heddle.comparison.statistics import optimum_at
from heddle.core import DamageError, UsageError
from heddle.core.system import parse_json, read_text, write_json

PREDICTION, GRADE, CHECKSUM = "prediction.json", "grade.json", "checksum"
FORMAT = 1
TIMES = 10.0  # the largest budget, where no larger run is given
MAX_SIZE_ERROR = 0.25  # by which a shape may miss the size that was asked for


def checksum(plain: Mapping[str, Any]) -> str:
    """Return the checksum of all but the checksum itself."""
    kept = {name: value for name, value in plain.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def runs_hash(results: Iterable[Result]) -> str:
    """Return a name for exactly these runs and their losses."""
    lines = sorted(f"{one.key} {one.status} {one.loss_valid} {one.loss_test}" for one in results)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def larger_cell(grid: Grid, law: ArchitectureLaw) -> Cell:
    """Return the larger run of one architecture: as given, or the best at ten times the largest budget."""
    asked, one = grid.study.scale.larger, law.profile.architecture
    best = optimum_at(law.law, TIMES * law.profile.budgets[-1], law.cost)
    parameters = best.parameters if asked.parameters is None else asked.parameters
    tokens = min(best.tokens, float(grid.text.tokens)) if asked.tokens is None else asked.tokens
    cell = grid.cell(one, parameters, tokens)
    if asked.parameters is not None and abs(math.log(cell.parameters / parameters)) > MAX_SIZE_ERROR:
        got = f"nearest is {cell.shape} with {cell.parameters:,}"
        raise UsageError(f"larger.parameters: want a size that {one.name} can have, got {parameters:g}; {got}")
    if cell.flops <= law.profile.budgets[-1]:
        want = f"more FLOPs than the largest budget, {law.profile.budgets[-1]:.3g}"
        raise UsageError(f"larger: want {want}, got {cell.flops:.3g} ({one.name} {cell.shape}, {cell.tokens:,} tokens)")
    return cell


def larger_runs(grid: Grid, cell: Cell, rule: RateRule) -> list[CellRun]:
    """Return the larger runs of a cell, one for each seed."""
    return grid.runs(cell, LARGER, range(grid.study.scale.larger.seeds), rule.at(cell.shape.width))


@dataclass(frozen=True)
class Larger:
    """The larger runs of one architecture, and the law that predicts them."""

    law: ArchitectureLaw
    runs: tuple[CellRun, ...]

    @property
    def cell(self) -> Cell:
        """Return their cell."""
        return self.runs[0].cell


def write_prediction(
    folder: Path, larger: Sequence[Larger], results: Mapping[str, Result], unit: Unit, command: str
) -> dict[str, Any]:
    """Write prediction.json, or return it where the same runs gave it; refuse to replace one that was tested."""
    used = [one for one in results.values() if one.arm != LARGER]
    made = {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command,
        "runs": len(used),
        "runs_hash": runs_hash(used),
        "unit": unit.name,
        "architectures": {one.law.name: _row(one) for one in larger},
    }
    before = read_prediction(folder)
    if before is not None:
        if before["runs_hash"] == made["runs_hash"] and _keys(before) == _keys(made):
            return before
        begun = [key for key in _keys(before) if key in results or (folder / "runs" / key).exists()]
        if (folder / GRADE).exists() or begun:
            why = "is graded" if (folder / GRADE).exists() else "is being tested: its larger run has begun"
            raise UsageError(f"{folder / PREDICTION}: {why}; a new prediction needs a new folder")
        made["replaces"] = before[CHECKSUM]
        write_json(folder / f"prediction-{before[CHECKSUM][:12]}.json", before)
    made[CHECKSUM] = checksum(made)
    write_json(folder / PREDICTION, made)
    return made


def _row(one: Larger) -> dict[str, Any]:
    cell, found = one.cell, predict(one.law, one.cell.parameters, one.cell.tokens, len(one.runs))
    return {
        "layers": cell.shape.layers, "width": cell.shape.width, "parameters": cell.parameters,
        "parameters_without_embeddings": cell.stack_parameters, "tokens": cell.tokens, "flops": cell.flops,
        "times_largest_budget": cell.flops / one.law.profile.budgets[-1], "keys": [run.key for run in one.runs],
        "law": vars(one.law.law), "fitted_runs": len(one.law.points), "loss": found.loss,
        "interval": list(found.interval), "band": list(found.band),
    }  # fmt: skip


def _keys(prediction: Mapping[str, Any]) -> list[str]:
    return [key for row in prediction["architectures"].values() for key in row["keys"]]


def read_prediction(folder: Path) -> dict[str, Any] | None:
    """Return the prediction of a folder; refuse one that was edited."""
    return _read(folder / PREDICTION)


def read_grade(folder: Path) -> dict[str, Any] | None:
    """Return the grade of a folder; refuse one that was edited, or that is of another prediction."""
    grade, prediction = _read(folder / GRADE), read_prediction(folder)
    if grade is not None and (prediction is None or grade["prediction"] != prediction[CHECKSUM]):
        raise DamageError(f"{folder / GRADE}: want the grade of {PREDICTION} as it is, got that of another")
    return grade


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    plain: dict[str, Any] = parse_json(read_text(path), str(path))
    if plain.get(CHECKSUM) != checksum(plain):
        raise DamageError(f"{path}: checksum mismatch: changed since it was written")
    return plain


def check_before_test(folder: Path, larger: Sequence[Larger], results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the prediction that the larger runs will test; refuse where there is none, or another."""
    found = read_prediction(folder)
    if found is None:
        raise UsageError(f"{folder}: no prediction yet; give --predict first, and commit {PREDICTION}")
    now = [run.key for one in larger for run in one.runs]
    used = [one for one in results.values() if one.arm != LARGER]
    if found["runs_hash"] != runs_hash(used) or _keys(found) != now:
        want = "the runs that it was made from, and its larger runs"
        raise UsageError(f"{folder / PREDICTION}: want {want}, got others; give --predict again")
    return found


def write_grade(folder: Path, prediction: Mapping[str, Any], results: Mapping[str, Result], unit: Unit) -> Any:
    """Grade a prediction, once; None while a larger run is missing, or has failed and may be trained again."""
    if (before := read_grade(folder)) is not None:
        return before
    if any(key not in results or results[key].status == "failed" for key in _keys(prediction)):
        return None
    if prediction["unit"] != unit.name:
        raise UsageError(f"{folder / PREDICTION}: is in {prediction['unit']}, but the larger runs are in {unit.name}")
    rows = {}
    for name, row in prediction["architectures"].items():
        losses = [unit.loss(results[key]) for key in row["keys"]]
        mean = statistics.mean(losses)
        known = math.isfinite(mean)
        rows[name] = {
            "losses": [loss if math.isfinite(loss) else None for loss in losses],
            "loss": mean if known else None,
            "predicted": row["loss"],
            "error": row["loss"] / mean - 1 if known else None,
            "inside_interval": known and row["interval"][0] <= mean <= row["interval"][1],
            "inside_band": known and row["band"][0] <= mean <= row["band"][1],
        }
    grade = {
        "format": FORMAT,
        "prediction": prediction[CHECKSUM],
        "graded": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "unit": unit.name,
        "architectures": rows,
    }
    grade[CHECKSUM] = checksum(grade)
    write_json(folder / GRADE, grade)
    return grade
