"""heddle bench: how fast a run would train here, and where its time goes; no data is needed."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import Json
from heddle.cli.terminal import print_message, print_report, write

if TYPE_CHECKING:
    from rich.table import Table

    from heddle.training import RunConfig, Speed

bench = typer.Typer(rich_markup_mode=None)


@bench.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Measure speed on this machine."""
    if context.invoked_subcommand is None:
        print_message(context.get_help())


@bench.command()
def train(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE|CONFIG.yaml|RUN]", help="What to time. Default: the first recipe."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Config overrides, such as training.batch=64."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 20,
    warm: Annotated[int, typer.Option(min=1, help="Untimed warm-up steps.")] = 3,
    json_: Json = False,
) -> None:
    """Time a run's training steps on random tokens of its shape: heddle bench train gpt2 training.batch=64."""
    from heddle.cli.train import resolve
    from heddle.training import measure

    config = resolve(target, overrides or []).config
    speed = measure(config, steps, warm, report=print_report)
    if json_:
        write(json.dumps(speed.plain()))
        return
    from heddle.cli.console import TerminalConsole

    TerminalConsole(highlight=False).print(_table(config, speed))


def _table(config: "RunConfig", speed: "Speed") -> "Table":
    """Lay out what was measured, under what the run says of its hardware."""
    from rich.table import Table

    from heddle.core import diff
    from heddle.training import HardwareConfig

    changed = [f"{change.path}={change.after}" for change in diff(HardwareConfig(), config.hardware)]
    how = [f"{config.name} on {speed.device}", speed.dtype, *(["compiled"] if speed.compiled else []), *changed]
    table = Table(title=", ".join(how))
    table.add_column("what")
    table.add_column("measured", justify="right")
    low, high = speed.quartiles
    table.add_row("parameters", f"{speed.parameters:,}")
    table.add_row("tokens/s", f"{speed.tokens_per_second:,.0f}")
    table.add_row("  interquartile range", f"{low:,.0f} to {high:,.0f}")
    table.add_row("MFU", f"{speed.mfu:.1%}")
    table.add_row("step time", f"{speed.seconds_per_step * 1e3:,.1f} ms, {speed.tokens_per_step:,} tokens")
    table.add_row("startup time (to the end of the first step)", f"{speed.first_step_seconds:.1f} s")
    table.add_row("peak memory", f"{speed.peak_bytes / 2**30:.2f} GiB")
    table.add_section()
    whole = sum(speed.breakdown.values())
    for kind, seconds in speed.breakdown.items():
        table.add_row(kind, f"{seconds * 1e3:,.2f} ms, {seconds / whole:.0%}")
    return table
