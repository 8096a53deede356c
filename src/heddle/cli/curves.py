"""Curves of metrics.jsonl as plain text for a terminal, or as SVG; no torch, no matplotlib."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

MARKS = "*o+x#@%&"  # one for each curve, so that no colour is needed
COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#5b6770", "#d36082", "#2f9c95")
ROWS, NARROWEST = 18, 30
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 64, 44, 20, 16  # of the SVG figure, and its margins
DEFAULT = ("loss", "validation_loss")

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One metric of one run over its steps."""

    name: str
    points: Points


@dataclass(frozen=True)
class Span:
    """The range of both axes."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> "Span":
        """Return the range of all points; a range without extent is widened."""
        xs, ys = zip(*(point for curve in curves for point in curve.points), strict=True)
        left, right, low, high = min(xs), max(xs), min(ys), max(ys)
        return cls(left, right if right > left else left + 1, low, high if high > low else low + 1)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies, from 0 to 1 on both axes."""
        return (x - self.left) / (self.right - self.left), (y - self.low) / (self.high - self.low)


# --- what was measured ------------------------------------------------------------------------------------------------


def read_curves(names: list[str], metrics: tuple[str, ...], given: bool) -> Iterator[Curve]:
    """Yield the curves of runs; a metric that was asked for and that a run does not have is refused."""
    from heddle.core import UsageError, hint

    for folder in _folders(names):
        found = _metrics(folder / "metrics.jsonl")
        present = [metric for metric in metrics if metric in found]
        if not present or (given and len(present) < len(metrics)):
            missing = next(metric for metric in metrics if metric not in found)
            near = hint(missing, found, f"; it has: {', '.join(found) or 'no steps yet'}")
            raise UsageError(f"plot: {folder} has no metric {missing!r}{near}")
        for metric in present:
            yield Curve(f"{folder.name} {metric}", found[metric])


def _folders(names: list[str]) -> list[Path]:
    from heddle.cli.list import find_runs
    from heddle.core import UsageError, hint

    runs = Path("runs")
    if not names:
        newest = find_runs(runs)[:1]
        if not newest:
            raise UsageError("runs: holds no run yet; type: heddle train")
        return [runs / newest[0].name]
    found = []
    for name in names:
        folder = next((path for path in (Path(name), runs / name) if (path / "metrics.jsonl").is_file()), None)
        if folder is None:
            near = hint(Path(name).name, [run.name for run in find_runs(runs)])
            raise UsageError(f"plot: no run with a metrics.jsonl is called {name!r}{near}")
        found.append(folder)
    return found


def _metrics(path: Path) -> dict[str, Points]:
    """Return every metric of a file with its points; a line cut short is passed over."""
    found: dict[str, Points] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(step := values.pop("step", None), int):
            for name, value in values.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    found.setdefault(name, []).append((step, float(value)))
    return found


# --- plain text -------------------------------------------------------------------------------------------------------


def draw(curves: Sequence[Curve], columns: int) -> Iterator[str]:
    """Yield the lines of a figure as wide as the terminal, at most."""
    span = Span.of(curves)
    labels = [_number(span.low + (span.high - span.low) * (1 - row / (ROWS - 1))) for row in range(ROWS)]
    margin = max(map(len, labels))
    width = max(NARROWEST, min(columns, 120) - margin - 3)
    grid = [[" "] * width for _ in range(ROWS)]
    for mark, curve in zip(_cycle(MARKS), curves, strict=False):
        for x, y in (span.place(*point) for point in curve.points):
            grid[round((1 - y) * (ROWS - 1))][round(x * (width - 1))] = mark
    for row, cells in enumerate(grid):
        label = labels[row] if row % 4 == 0 or row == ROWS - 1 else ""
        yield f"{label:>{margin}} |{''.join(cells)}".rstrip()
    yield f"{'':>{margin}} +{'-' * width}"
    first, last = f"step {_number(span.left)}", _number(span.right)
    yield f"{'':>{margin}}  {first}{last:>{max(1, width - len(first))}}"
    for mark, curve in zip(_cycle(MARKS), curves, strict=False):
        yield f"  {mark} {curve.name}: {_number(curve.points[-1][1])} at step {_number(curve.points[-1][0])}"


def _cycle(marks: Sequence[str]) -> Iterator[str]:
    while True:
        yield from marks


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 10 else f"{value:.4g}"


# --- SVG --------------------------------------------------------------------------------------------------------------


def to_svg(curves: Sequence[Curve], marks: Sequence[float] = ()) -> str:
    """Return a figure with a line for each curve, axes with numbers, and names; marked places have an upright line."""
    span = Span.of(curves)
    tall = HEIGHT + 18 * len(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{tall}" fill="white"/>'
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = _at(share, share)
        value, step = (low + share * (high - low) for low, high in ((span.low, span.high), (span.left, span.right)))
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_number(round(step))}</text>'
        )
    for x, _ in (_at(*span.place(mark, span.low)) for mark in marks if span.left <= mark <= span.right):
        line = f'x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"'
        parts.append(f'<line {line} stroke="#999" stroke-dasharray="4 3"/>')
    for index, (colour, curve) in enumerate(zip(_cycle(COLOURS), curves, strict=False)):
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_at(*span.place(*point)) for point in curve.points))
        y = HEIGHT + 18 * index
        parts.append(
            f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
            f'<rect x="{LEFT}" y="{y - 9}" width="18" height="4" fill="{colour}"/>'
            f'<text x="{LEFT + 26}" y="{y - 2}">{escape(curve.name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _at(x: float, y: float) -> tuple[float, float]:
    return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)
