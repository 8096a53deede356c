"""Figures of a report as inline SVG: a forest plot, scatter plots, and curves with bands over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from heddle.comparison.statistics import Comparison, Verdict

WIDTH, LEFT, RIGHT, ROW, TOP = 720, 190, 24, 20, 12
NUMBERS = 74  # what a column of figures takes at the right of a forest plot
TALL, BOTTOM = 360, 44  # of scatter plots and curves
LETTER = 6.2  # pixels that a letter of a label takes
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

    def ticks(self, count: int = 6) -> list[float]:
        """Return about so many round numbers for grid lines, or the ends where the range holds too few."""
        found = _round_powers(self.low, self.high, count) if self.log else _round_steps(self.low, self.high, count)
        return found if len(found) > 1 else [self.low, self.high]


def _round_steps(low: float, high: float, count: int) -> list[float]:
    raw = 0.8 * (high - low) / max(1, count - 1)
    if not 0 < raw < math.inf:
        return []
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_powers(low: float, high: float, count: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) >= min(3, count):
            return found[:: -(-len(found) // (2 * count))]
    return _round_steps(low, high, count)


def forest(comparisons: Sequence[Comparison], margin: float) -> str:
    """Return the effects with their intervals, best first; the band is the equivalence margin."""
    shown = sorted((one for one in comparisons if math.isfinite(one.effect)), key=lambda one: one.effect)
    if not shown:
        return ""
    effects = [one.effect for one in shown]
    left, right = label_space([one.variant for one in shown]), WIDTH - NUMBERS
    axis, bottom = Axis(-_reach(effects, margin, -1), _reach(effects, margin, 1), left, right), TOP + ROW * len(shown)
    band = axis.at(-margin), axis.at(margin)
    wide = band[1] - band[0]
    parts = [f'<rect class="band" x="{band[0]:.1f}" y="{TOP}" width="{wide:.1f}" height="{bottom - TOP}"/>']
    for tick in axis.ticks():
        x = axis.at(tick)
        kind = "axis" if abs(tick) < 1e-12 else "grid"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 16, tick_percent(tick), "middle", "soft"))
    for row, one in enumerate(shown):
        parts += _forest_row(one, axis, TOP + ROW * row + ROW / 2)
    parts.append(text((left + right) / 2, bottom + BOTTOM - 8, "loss against the base (left is better)", "middle"))
    return svg(parts, bottom + BOTTOM, "Effect of each variant with its 95 % interval")


def _forest_row(one: Comparison, axis: Axis, y: float) -> list[str]:
    """Return one variant; an effect outside the plot is an arrow at its edge."""
    low, high = (max(axis.first, min(axis.last, axis.at(edge))) for edge in one.interval)
    kind, x = CLASSES[one.verdict], axis.at(one.effect)
    about = f"<title>{escape(one.variant)}: {percent(one.effect)} [{', '.join(map(percent, one.interval))}]</title>"
    parts = [text(axis.first - 10, y + 4, one.variant, "end"), text(WIDTH - 4, y + 4, percent(one.effect), "end")]
    if axis.first <= x <= axis.last:
        parts.append(f'<line class="bar {kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y}" r="4">{about}</circle>')
    else:
        edge, side = (axis.last, 1) if x > axis.last else (axis.first, -1)
        corners = f"{edge:.1f},{y} {edge - 9 * side:.1f},{y - 5} {edge - 9 * side:.1f},{y + 5}"
        parts.append(f'<polygon class="dot {kind}" points="{corners}">{about}</polygon>')
    return parts


def _reach(effects: Sequence[float], margin: float, side: int) -> float:
    """Return how far the axis of effects goes to one side: to the largest, unless a few are far beyond all others."""
    sizes = sorted(abs(effect) for effect in effects)
    usual = sizes[max(0, math.ceil(0.8 * len(sizes)) - 1)]
    largest = max(side * effect for effect in effects)
    return max(2.5 * margin, 1.15 * min(largest, 2.5 * usual))


def label_space(names: Sequence[str]) -> float:
    """Return the pixels that names at the left of a figure need."""
    return max(110.0, min(330.0, 6.3 * max(map(len, names), default=0) + 18))


def tick_percent(value: float) -> str:
    """Return a round share for an axis: +1.5 %."""
    return "0" if abs(value) < 1e-9 else f"{100 * value:+.3g} %"


def percent(value: float) -> str:
    """Return a share with its sign: +1.2 %."""
    if not math.isfinite(value):
        return "unknown"
    if abs(value) < 5e-7:
        return "0"
    return f"{100 * value:+.2f} %" if abs(value) < 0.1 else f"{100 * value:+.0f} %"


@dataclass(frozen=True)
class Labels:
    """What the axes of a figure are called, and the figure."""

    across: str
    up: str
    title: str


Point = tuple[float, float]


def scatter(points: Mapping[str, Point], labels: Labels, kinds: Mapping[str, str], pareto: bool = False) -> str:
    """Return variants as points; with `pareto`, a line through those that no other beats in both."""
    finite = {name: (x, y) for name, (x, y) in points.items() if 0 < x < math.inf and math.isfinite(y)}
    if not finite:
        return ""
    highest = _highest_shown([y for _, y in finite.values()])
    shown = {name: point for name, point in finite.items() if point[1] <= highest}
    xs, ys = [x for x, _ in shown.values()], [y for _, y in shown.values()]
    across = Axis(min(xs) * 0.95, max(xs) * 1.05, 70, WIDTH - RIGHT, log=True)
    gap = (max(ys) - min(ys)) * 0.08 or abs(max(ys)) * 0.01 or 1.0
    up = Axis(min(ys) - gap, max(ys) + gap, TALL - BOTTOM, 34)
    parts = frame(across, up, (labels.across, labels.up))
    front = _pareto(shown)
    if pareto:
        corners = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in front)
        parts.append(f'<polyline class="front" points="{corners}"/>')
    first = sorted(shown, key=lambda name: (shown[name] not in front, shown[name][1]))
    parts += draw_points({name: (across.at(shown[name][0]), up.at(shown[name][1])) for name in first}, kinds)
    beyond = [f"{name} {y:.3f}" for name, (_, y) in sorted(finite.items(), key=lambda p: p[1][1]) if y > highest]
    if beyond:
        more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
        parts.append(text(WIDTH - RIGHT, 12, f"above the plot: {', '.join(beyond[:3])}{more}", "end", "soft"))
    return svg(parts, TALL, labels.title)


def _highest_shown(losses: Sequence[float]) -> float:
    """Return the highest loss to show: a few that are far above all others would press these flat."""
    ordered = sorted(losses)
    usual = ordered[max(0, math.ceil(0.85 * len(ordered)) - 1)]
    return min(ordered[-1], usual + 2.5 * (usual - ordered[0])) if usual > ordered[0] else ordered[-1]


def draw_points(places: Mapping[str, Point], kinds: Mapping[str, str]) -> list[str]:
    """Return points at these pixels, the first ones named where there is room; all have a tooltip."""
    dots, names = [], []
    taken: list[tuple[float, float, float, float]] = [(x - 4, y - 4, x + 4, y + 4) for x, y in places.values()]
    for name, (x, y) in places.items():
        tooltip = f"<title>{escape(name)}</title>"
        dots.append(f'<circle class="dot {kinds.get(name, "c0")}" cx="{x:.1f}" cy="{y:.1f}" r="4">{tooltip}</circle>')
        long = LETTER * len(name)
        for left, anchor in ((x + 8, "start"), (x - 8 - long, "end")):
            box = (left, y - 7, left + long, y + 5)
            inside = left > 70 and left + long < WIDTH
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                names.append(text(x + 8 if anchor == "start" else x - 8, y + 4, name, anchor))
                break
    return [*dots, *names]


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _pareto(points: Mapping[str, Point]) -> list[Point]:
    front: list[Point] = []
    for x, y in sorted(points.values()):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


Band = Sequence[tuple[float, float, float, float]]


def curves(bands: Mapping[str, Band], labels: Labels, faint: Mapping[str, Band] = {}) -> str:
    """Return curves with bands, over faint ones without; points are (x, middle, low, high)."""
    flat = [point for points in bands.values() for point in points if all(math.isfinite(v) for v in point)]
    if not flat:
        return ""
    across = Axis(min(p[0] for p in flat), max(p[0] for p in flat), 70, WIDTH - RIGHT)
    up = Axis(min(p[2] for p in flat), _highest_shown([p[3] for p in flat]), TALL - BOTTOM, 34)
    parts = frame(across, up, (labels.across, labels.up))
    for points in faint.values():
        middle = _line([(x, value) for x, value, _, _ in points], across, up)
        parts.append(f'<polyline class="faint" points="{middle}"/>')
    for number, points in enumerate(bands.values()):
        colour = f"c{number % PALETTE}"
        edge = [(x, high) for x, _, _, high in points] + [(x, low) for x, _, low, _ in reversed(points)]
        parts.append(f'<polygon class="spread {colour}" points="{_line(edge, across, up)}"/>')
        middle = _line([(x, value) for x, value, _, _ in points], across, up)
        parts.append(f'<polyline class="line {colour}" points="{middle}"/>')
    parts += keys(list(bands), TALL + 18)
    return svg(parts, TALL + 14 + 18 * -(-len(bands) // 2), labels.title)


def _line(points: Sequence[Point], across: Axis, up: Axis) -> str:
    """Return the corners of a line; what lies above the plot is drawn at its edge."""
    return " ".join(f"{across.at(x):.1f},{max(up.at(min(y, 1e6)), up.last):.1f}" for x, y in points if math.isfinite(y))


def keys(names: Sequence[str], top: float) -> list[str]:
    """Return the names of lines with their colours, in two columns."""
    parts = []
    for number, name in enumerate(names):
        x, y = 70 + 320 * (number % 2), top + 18 * (number // 2)
        parts.append(f'<rect class="key c{number % PALETTE}" x="{x}" y="{y - 6}" width="18" height="5"/>')
        parts.append(text(x + 26, y, name))
    return parts


def frame(across: Axis, up: Axis, labels: tuple[str, str]) -> list[str]:
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<line class="grid" x1="{across.first}" x2="{across.last}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(across.first - 8, y + 4, f"{tick:.4g}", "end", "soft"))
    for tick in across.ticks(4):
        parts.append(text(across.at(tick), TALL - BOTTOM + 18, short(tick), "middle", "soft"))
    parts.append(text((across.first + across.last) / 2, TALL - 6, labels[0], "middle"))
    parts.append(text(8, 12, labels[1]))
    return parts


def short(value: float) -> str:
    """Return a number with a unit: 1.3 M."""
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return a label."""
    chosen = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{chosen}>{escape(words)}</text>'


def svg(parts: Sequence[str], tall: float, title: str) -> str:
    """Return a figure from its parts; colours come from the page's style sheet."""
    inside = "".join(parts)
    return (
        f'<div class="scroll" tabindex="0"><svg viewBox="0 0 {WIDTH} {tall:.0f}" role="img" '
        f'aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{inside}</svg></div>"
    )
