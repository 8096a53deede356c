"""heddle plot: the loss, or another metric, of runs over their steps, in the terminal or as an SVG file."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import Force, check_output
from heddle.cli.terminal import print_message


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
    force: Force = False,
) -> None:
    """Plot the loss, or another metric, of runs over their steps."""
    from heddle.cli.curves import DEFAULT, draw, read_curves, to_svg

    curves = list(read_curves(runs or [], tuple(metric or DEFAULT), given=metric is not None))
    if svg is None:
        for line in draw(curves, shutil.get_terminal_size().columns):
            print_message(line)
        return
    check_output(svg, lambda path: path.read_bytes().startswith(b"<svg"), force)
    svg.write_text(to_svg(curves), encoding="utf-8")
    print_message(f"wrote {svg}")
