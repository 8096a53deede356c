"""Comparing in Python, by the same path as `heddle compare`; verdicts as a table."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heddle.comparison import Compared, Options, Watcher, run_suite
from heddle.comparison.report import write_report
from heddle.comparison.suites import Suite, choose_suite, with_settings
from heddle.run import LineReporter, Table


def compare(
    suite: Suite | str,
    variants: Sequence[str] = (),
    *,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> Any:
    """Compare variants at an equal budget: what `heddle compare` does, in Python.

    `suite` is the name of a suite, a file that describes one, a recipe as the base, or a Suite; `variants` are those of
    the suite, or changes of the base such as "norm:layer_norm". `overrides` are settings of the suite (`budget.tokens`,
    `arms`) or of its base, by dotted path. Return the verdicts, a row a variant: a pandas DataFrame where pandas is
    installed. Results and report lie in `out`; called again, it goes on where it was.
    """
    chosen = choose_suite(suite, variants) if isinstance(suite, str) else suite
    if isinstance(suite, Suite) and variants:
        chosen = suite.only(variants)
    given = [] if seeds is None else [("seeds", seeds)]
    chosen = with_settings(chosen, [*given, *(overrides or {}).items()])
    folder = Path("comparisons") / chosen.name if out is None else Path(out)
    reporter = LineReporter()
    compared = run_suite(chosen, folder, options, Watcher(reporter.message))
    name = suite if isinstance(suite, str) else chosen.name
    asked = {"seeds": seeds, "overrides": dict(overrides or {}), "out": None if out is None else str(out)}
    words = [repr(name), repr(list(variants)), *(f"{key}={value!r}" for key, value in asked.items() if value)]
    write_report(compared, f"heddle.compare({', '.join(words)})")
    table = verdict_table(compared)
    if find_spec("pandas") is None:
        return table
    import pandas

    return pandas.DataFrame(list(table))


def verdict_table(compared: Compared) -> Table:
    """Return the verdicts of all arms, a row a variant."""
    rows = []
    for arm, one_arm in compared.arms.items():
        for one in one_arm.comparisons:
            losses = [loss for loss in one_arm.losses[one.variant].values()]
            first = next(run for run in compared.results if run.variant == one.variant)
            rows.append({
                "arm": arm, "variant": one.variant, "verdict": str(one.verdict), "effect": one.effect,
                "low": one.interval[0], "high": one.interval[1], "p": one.p_holm, "loss": sum(losses) / len(losses),
                "seeds": one.seeds, "params": first.params, "diff": first.diff,
            })  # fmt: skip
    return Table(rows)
