"""Scaling laws in Python, by the same path as `heddle scale`; the best sizes as a table."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heddle.comparison import Options, Watcher
from heddle.comparison.report import write_scaling_report
from heddle.comparison.scaling import Scaled, Study, best_row, choose_study, predict_larger, run_study, train_larger
from heddle.core import UsageError
from heddle.run import LineReporter, Table

ACTIONS = ("fit", "predict", "test")


def scale(
    recipes: Study | str | Sequence[str] = (),
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    action: str = "fit",
    options: Options = Options(),  # noqa: B008 - frozen
) -> Any:
    """Fit the scaling law of your data over sizes and tokens: what `heddle scale` does, in Python.

    `recipes` are recipes or config files, each a curve, and changes of the first such as "model:lstm_lm"; or a Study.
    `overrides` are settings of the grid (`budgets`, `sizes`, `larger.tokens`) and keys of the runs, by dotted path.
    `action` is "fit", then "predict" (write down the loss of a larger run) and "test" (train that run, and grade the
    prediction). Return the best size, tokens and loss at each budget with 95 % intervals and the constants of the law,
    a row each: a pandas DataFrame where pandas is installed. Results and report lie in `out`; called again, it goes on.
    """
    if action not in ACTIONS:
        raise UsageError(f"action: want one of {', '.join(ACTIONS)}, got {action!r}")
    words = [recipes] if isinstance(recipes, str) else recipes
    study = words if isinstance(words, Study) else choose_study(words, (overrides or {}).items())
    if isinstance(recipes, Study) and overrides:
        raise UsageError("overrides: want none beside a Study, whose runs and grid are given")
    folder = Path("scaling") / study.name if out is None else Path(out)
    command = f"heddle.scale({study.name!r})"
    if action == "predict":
        found = predict_larger(study, folder, command)
    else:
        work = run_study if action == "fit" else train_larger
        found = work(study, folder, options, Watcher(LineReporter().message))
    write_scaling_report(found, command)
    table = best_table(found)
    if find_spec("pandas") is None:
        return table
    import pandas

    return pandas.DataFrame(list(table))


def best_table(found: Scaled) -> Table:
    """Return the best size at each budget, a row for each architecture and budget, with the constants of its law."""
    rows = []
    for law in found.laws:
        if law.fit is not None:
            constants = {name: value for name, (value, _) in law.constants().items()}
            low, high = law.constants()["exponent"][1]
            whole = {"exponent_low": low, "exponent_high": high, "unit": found.unit.name, "runs": len(law.points)}
            rows += [{"architecture": law.name, **best_row(one), **constants, **whole} for one in law.best]
    return Table(rows)
