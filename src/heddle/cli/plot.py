"""heddle plot: the loss, or another metric, of runs over their steps, in the terminal or as an SVG file."""

import shutil
from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs (folders or names). Default: the newest.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A metric of metrics.jsonl; may be repeated. Default: loss, validation_loss."
        ),
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an SVG file instead.")] = None,
) -> None:
    """Plot the loss, or another metric, of runs over their steps."""
    from heddle.cli.curves import DEFAULT, draw, read_curves, to_svg

    curves = list(read_curves(runs or [], tuple(metric or DEFAULT), given=metric is not None))
    if svg is None:
        for line in draw(curves, shutil.get_terminal_size().columns):
            typer.echo(line)
        return
    from heddle.cli.options import check_output

    check_output(svg)
    svg.write_text(to_svg(curves), encoding="utf-8")
    typer.echo(f"wrote {svg}")
