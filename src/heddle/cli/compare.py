"""heddle compare: variants of a model at an equal budget, with seeds, statistics and a verdict."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.terminal import print_message

if TYPE_CHECKING:
    from heddle.comparison import Compared, Suite


def compare(  # noqa: PLR0913 - one for each option
    suite: Annotated[
        str | None, typer.Argument(metavar="SUITE|FILE.yaml", help="A suite, or a file that describes one.")
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT]... [KEY=VALUE]...",
            help="Variants of the suite (default: all), and settings: seeds=5, budget.tokens=2000000, "
            "arms=tokens,rate, or any key of the base run.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The folder of the results. Default: comparisons/SUITE.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one on a GPU, else one for each core.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where runs train: local or ray.")] = "local",
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Also train the two controls that check the comparison.")
    ] = True,
    report: Annotated[bool, typer.Option("--report", help="Write the report again; train nothing.")] = False,
) -> None:
    """Compare variants of a model at an equal budget: heddle compare pocket."""
    if suite is None:
        _list_suites()
        return
    from heddle.comparison import EXECUTORS, find_suite, judge_suite, run_suite, write_report
    from heddle.core import ConfigError

    if executor not in EXECUTORS:
        raise ConfigError.unknown("executor", executor, list(EXECUTORS))
    chosen = configure(find_suite(suite), words or [])
    folder = out or Path("comparisons") / chosen.name
    if report:
        compared = judge_suite(chosen, folder, controls)
    else:
        compared = run_suite(chosen, folder, print_message, executor, processes, controls)
    command = " ".join(["heddle compare", suite, *(words or [])])
    page = write_report(compared, command, dict(chosen.paper))
    _show(compared)
    print_message(f"wrote {folder / 'results.csv'} and {page}")


def configure(suite: "Suite", words: list[str]) -> "Suite":
    """Return the suite with the variants and settings of a command."""
    import dataclasses

    from heddle.comparison import with_settings
    from heddle.core.system import parse_overrides

    names = [word for word in words if "=" not in word]
    settings: list[tuple[str, Any]] = parse_overrides([word for word in words if "=" in word])
    suite = suite.only(names) if names else suite
    return dataclasses.replace(with_settings(suite, settings))


def _list_suites() -> None:
    from heddle.comparison import SUITES

    print_message("suites")
    for name, make in SUITES.items():
        first = (make.__doc__ or "").strip().splitlines()
        print_message(f"  {name:<12} {first[0] if first else ''}")


def _show(compared: "Compared") -> None:
    """Print the verdicts, best first."""
    import math

    for one in sorted(compared.comparisons, key=lambda c: c.effect if math.isfinite(c.effect) else math.inf):
        low, high = one.interval
        figure = (
            f"{one.effect:+.2%} [{low:+.2%}, {high:+.2%}]" if math.isfinite(one.effect) else f"{one.failures} failed"
        )
        print_message(f"  {one.variant:<28} {one.verdict:<11} {figure}")
    if compared.controls_hold is False:
        print_message("the controls did not come out right: mistrust this table")
