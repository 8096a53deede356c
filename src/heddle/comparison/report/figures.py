"""Figures of a report as inline SVG: a forest plot, scatter plots, and curves with bands over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from heddle.comparison.statistics import Comparison, Verdict

WIDTH, LEFT, RIGHT, ROW, TOP = 720, 190, 24, 22, 30
TALL, BOTTOM = 330, 44  # of scatter plots and curves
LABEL_WIDTH, LABEL_HEIGHT = 190, 13  # what a name takes
CLASSES = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.EQUIVALENT: "same",
    Verdict.UNDECIDED: "open",
    Verdict.FAILED: "failed",
}
PALETTE = 8  # colours c0 to c7 of the style sheet


@dataclass(frozen=True)
class Axis:
    """A range of numbers laid over pixels."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self.first + (self.last - self.first) * (value - low) / ((high - low) or 1.0)

    def ticks(self, count: int = 5) -> list[float]:
        """Return numbers for grid lines."""
        shares = [index / (count - 1) for index in range(count)]
        if self.log:
            return [self.low * (self.high / self.low) ** share for share in shares]
        return [self.low + (self.high - self.low) * share for share in shares]


def forest(comparisons: Sequence[Comparison], margin: float) -> str:
    """Return the effects with their intervals, best first; the band is the equivalence margin."""
    shown = [one for one in comparisons if math.isfinite(one.effect)]
    shown.sort(key=lambda one: one.effect)
    reach = max(
        [margin * 1.5, *(min(abs(edge), 4 * abs(one.effect) + 2 * margin) for one in shown for edge in one.interval)]
    )
    axis = Axis(-reach, reach, LEFT, WIDTH - RIGHT)
    tall = TOP + ROW * len(shown) + BOTTOM
    left, right = axis.at(-margin), axis.at(margin)
    parts = [f'<rect class="band" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{ROW * len(shown)}"/>']
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{tall - BOTTOM}"/>')
        parts.append(_text(x, tall - BOTTOM + 16, f"{tick:+.2%}", "middle"))
    for row, one in enumerate(shown):
        y = TOP + ROW * row + ROW / 2
        low, high = (max(axis.first, min(axis.last, axis.at(edge))) for edge in one.interval)
        kind = CLASSES[one.verdict]
        parts.append(_text(LEFT - 10, y + 4, one.variant, "end"))
        parts.append(f'<line class="bar {kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot {kind}" cx="{axis.at(one.effect):.1f}" cy="{y}" r="4.5"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, tall - 8, "loss against the base (left is better)", "middle"))
    return svg(parts, tall, "Effect of each variant with its 95 % interval")


def scatter(
    points: Mapping[str, tuple[float, float]],
    labels: tuple[str, str],
    title: str,
    log: bool = True,
    pareto: bool = False,
) -> str:
    """Return variants as points; with `pareto`, a line through those that no other beats in both."""
    finite = {name: (x, y) for name, (x, y) in points.items() if 0 < x < math.inf and math.isfinite(y)}
    if not finite:
        return ""
    xs, ys = [x for x, _ in finite.values()], [y for _, y in finite.values()]
    across = Axis(min(xs) * 0.95, max(xs) * 1.05, 70, WIDTH - RIGHT, log)
    gap = (max(ys) - min(ys)) * 0.08 or abs(max(ys)) * 0.01 or 1.0
    up = Axis(min(ys) - gap, max(ys) + gap, TALL - BOTTOM, 30)
    parts = _frame(across, up, labels)
    if pareto:
        front = _pareto(finite)
        corners = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in front)
        parts.append(f'<polyline class="front" points="{corners}"/>')
    parts += _points(finite, across, up)
    return svg(parts, TALL, title)


def _points(points: Mapping[str, tuple[float, float]], across: Axis, up: Axis) -> list[str]:
    """Return the points, each with its name where it does not cover another's; all have it as a tooltip."""
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for name, (x, y) in sorted(points.items(), key=lambda point: point[1][1]):
        at, high = across.at(x), up.at(y)
        tooltip = f"<title>{escape(name)}</title>"
        parts.append(f'<circle class="dot c0" cx="{at:.1f}" cy="{high:.1f}" r="4">{tooltip}</circle>')
        if all(abs(high - other[1]) > LABEL_HEIGHT or abs(at - other[0]) > LABEL_WIDTH for other in taken):
            taken.append((at, high))
            left = at > (across.first + across.last) * 0.6
            parts.append(_text(at - 7 if left else at + 7, high + 4, name, "end" if left else "start"))
    return parts


def _pareto(points: Mapping[str, tuple[float, float]]) -> list[tuple[float, float]]:
    front: list[tuple[float, float]] = []
    for x, y in sorted(points.values()):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def curves(bands: Mapping[str, Sequence[tuple[float, float, float, float]]], labels: tuple[str, str]) -> str:
    """Return curves with bands: points are (x, middle, low, high)."""
    flat = [point for points in bands.values() for point in points if all(math.isfinite(v) for v in point)]
    if not flat:
        return ""
    across = Axis(min(p[0] for p in flat), max(p[0] for p in flat), 70, WIDTH - RIGHT)
    up = Axis(min(p[2] for p in flat), max(p[3] for p in flat), TALL - BOTTOM, 30)
    parts = _frame(across, up, labels)
    for number, points in enumerate(bands.values()):
        colour = f"c{number % PALETTE}"
        top = [f"{across.at(x):.1f},{up.at(high):.1f}" for x, _, _, high in points]
        below = [f"{across.at(x):.1f},{up.at(low):.1f}" for x, _, low, _ in reversed(points)]
        middle = " ".join(f"{across.at(x):.1f},{up.at(value):.1f}" for x, value, _, _ in points)
        parts.append(f'<polygon class="spread {colour}" points="{" ".join([*top, *below])}"/>')
        parts.append(f'<polyline class="line {colour}" points="{middle}"/>')
    tall = TALL + 18 * len(bands)
    for number, name in enumerate(bands):
        y = TALL + 18 * number
        parts.append(f'<rect class="key c{number % PALETTE}" x="70" y="{y - 6}" width="18" height="5"/>')
        parts.append(_text(96, y, name))
    return svg(parts, tall, "Held-out loss over training, with the range over seeds")


def _frame(across: Axis, up: Axis, labels: tuple[str, str]) -> list[str]:
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<line class="grid" x1="{across.first}" x2="{across.last}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(across.first - 8, y + 4, f"{tick:.3f}", "end"))
    for tick in across.ticks(4):
        parts.append(_text(across.at(tick), TALL - BOTTOM + 18, short(tick), "middle"))
    parts.append(_text((across.first + across.last) / 2, TALL - 6, labels[0], "middle"))
    parts.append(_text(8, 12, labels[1]))
    return parts


def short(value: float) -> str:
    """Return a number with a unit: 1.3 M."""
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(parts: Sequence[str], tall: float, title: str) -> str:
    """Return a figure from its parts; colours come from the page's style sheet."""
    inside = "".join(parts)
    return (
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {tall:.0f}" role="img" '
        f'aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{inside}</svg></div>"
    )
