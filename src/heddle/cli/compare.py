"""heddle compare: variants of a model at an equal budget, with seeds, statistics and a verdict."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.comparison_options import Again, ExecutorName, Minutes, Processes, Whole, typed_before, watching
from heddle.cli.terminal import print_message

if TYPE_CHECKING:
    from heddle.comparison import Compared
    from heddle.comparison.suites import Suite


def compare(  # noqa: PLR0913 - one for each option
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUITE|FILE.yaml|RECIPE|FOLDER]",
            help="A suite, a file that describes one, or a recipe as the base. Default: list the suites.",
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT]... [KEY=VALUE]...",
            help="Variants of the suite (default: all) or changes of the base (norm:layer_norm, model:lstm_lm), and "
            "settings: seeds=5, budget.tokens=2000000, arms=tokens,rate, or any key of the base run.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The folder of the results. Default: comparisons/SUITE.")
    ] = None,
    processes: Processes = None,
    at_once: Annotated[
        int | None,
        typer.Option("--at-once", min=1, help="How many processes train at once; the others compile. Default: all."),
    ] = None,
    executor: ExecutorName = "local",
    minutes: Minutes = None,
    whole: Whole = False,
    again: Again = False,
    pilot: Annotated[
        bool, typer.Option("--pilot", help="Measure speed and noise only: steps of each variant, runs of the base.")
    ] = False,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Also train the two controls that check the comparison.")
    ] = True,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report of a FOLDER or a suite again; train nothing.")
    ] = False,
) -> None:
    """Compare variants of a model at an equal budget: heddle compare pocket."""
    if target is None:
        _list_suites()
        return
    from heddle.comparison import Options, load_comparison, run_suite
    from heddle.comparison.report import write_report

    typed = [target, *(words or []), *([] if controls else ["--no-controls"])]
    if report and Path(target).is_dir():
        out, typed = Path(target), typed_before(Path(target))
    given = [word for word in typed if not word.startswith("--")]
    suite = configure(given[0], given[1:])
    folder, controls = out or Path("comparisons") / suite.name, "--no-controls" not in typed
    if report:
        compared = load_comparison(suite, folder, controls)
    else:
        options = Options(executor, processes, controls, minutes, whole, again, pilot, at_once)
        with watching(folder, typed) as watcher:
            compared = run_suite(suite, folder, options, watcher)
    page = write_report(compared, shlex.join(["heddle", "compare", *typed]))
    show_verdicts(compared)
    print_message(f"wrote {folder / 'results.csv'} and {page}")


def configure(target: str, words: list[str]) -> "Suite":
    """Return the suite that the words of a command mean, with its settings."""
    from heddle.comparison.suites import choose_suite, with_settings
    from heddle.core.system import parse_overrides

    settings: list[tuple[str, Any]] = parse_overrides([word for word in words if "=" in word])
    return with_settings(choose_suite(target, [word for word in words if "=" not in word]), settings)


def _list_suites() -> None:
    from heddle.comparison.suites import SUITES

    print_message("suites")
    for name, make in SUITES.items():
        first = (make.__doc__ or "").strip().splitlines()
        print_message(f"  {name:<12} {first[0] if first else ''}")


def show_verdicts(compared: "Compared") -> None:
    """Print the verdicts of each arm, best first."""
    for arm, one_arm in compared.arms.items():
        if one_arm.comparisons:
            print_message(f"{arm}: loss against {compared.plan.suite.base_name}, with 95 % intervals")
        for one in sorted(one_arm.comparisons, key=lambda c: c.effect if math.isfinite(c.effect) else math.inf):
            low, high = one.interval
            known = f"{one.effect:+.2%} [{low:+.2%}, {high:+.2%}]"
            figure = known if math.isfinite(one.effect) else f"{one.failures} failed"
            print_message(f"  {one.variant:<28} {one.verdict:<11} {figure}")
    if compared.controls_hold is False:
        print_message("the controls did not come out right: mistrust this table")
