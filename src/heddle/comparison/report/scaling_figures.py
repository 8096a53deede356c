"""Figures of a scaling law as inline SVG: IsoFLOP profiles, the best size over compute, loss over compute, errors."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from heddle.comparison.report.figures import BOTTOM, PALETTE, RIGHT, TALL, WIDTH, Axis, short, svg
from heddle.comparison.scaling import ArchitectureLaw, Best
from heddle.comparison.statistics import optimum_at

LEFT_EDGE, UPPER, LEGEND = 70, 30, 14
CURVE = 60  # points of a line
MARGIN = 0.06  # of a range, kept free on both sides
Point = tuple[float, float]


class Plot:
    """Axes that hold all of some points, and the parts that are drawn on them."""

    def __init__(self, points: Sequence[Point], labels: tuple[str, str], log: tuple[bool, bool]) -> None:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self.across = Axis(*_range(xs, log[0]), LEFT_EDGE, WIDTH - RIGHT, log[0])
        self.up = Axis(*_range(ys, log[1]), TALL - BOTTOM, UPPER, log[1])
        self.parts = [*self._grid(labels)]
        self.keys: list[tuple[str, str]] = []

    def _grid(self, labels: tuple[str, str]) -> list[str]:
        parts = []
        for tick in self.up.ticks():
            y = self.up.at(tick)
            parts.append(f'<line class="grid" x1="{LEFT_EDGE}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(text(LEFT_EDGE - 8, y + 4, short(tick) if self.up.log else f"{tick:.3f}", "end"))
        for number, tick in enumerate(self.across.ticks(4)):
            anchor = "end" if number == 3 else "middle"  # the last one stays inside
            parts.append(text(self.across.at(tick), TALL - BOTTOM + 18, _tick(tick, labels[0]), anchor))
        parts.append(text((LEFT_EDGE + WIDTH - RIGHT) / 2, TALL - 6, labels[0], "middle"))
        parts.append(text(8, 12, labels[1]))
        return parts

    def line(self, points: Sequence[Point], colour: str, dashed: bool = False) -> None:
        """Draw a line."""
        corners = " ".join(f"{self.across.at(x):.1f},{self.up.at(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline class="line {colour}"{dash} points="{corners}"/>')

    def band(self, low: Sequence[Point], high: Sequence[Point], colour: str) -> None:
        """Fill what lies between two lines."""
        around = [*low, *reversed(high)]
        corners = " ".join(f"{self.across.at(x):.1f},{self.up.at(y):.1f}" for x, y in around)
        self.parts.append(f'<polygon class="spread {colour}" points="{corners}"/>')

    def dot(self, point: Point, colour: str, tooltip: str, hollow: bool = False) -> None:
        """Draw a point; a hollow one is larger, so that one inside it is seen."""
        x, y = self.across.at(point[0]), self.up.at(point[1])
        style = ' r="7" style="fill: none; stroke-width: 2"' if hollow else ' r="3.5"'
        title = f"<title>{escape(tooltip)}</title>"
        self.parts.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}"{style}>{title}</circle>')

    def bar(self, x: float, low: float, high: float, colour: str) -> None:
        """Draw an interval."""
        at, bottom, top = self.across.at(x), self.up.at(low), self.up.at(high)
        self.parts.append(
            f'<line class="{colour}" style="stroke-width: 2.5" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:.1f}" '
            f'y2="{top:.1f}"/>'
        )

    def drawn(self, title: str) -> str:
        """Return the figure with its legend below."""
        parts = list(self.parts)
        for number, (name, colour) in enumerate(self.keys):
            y = TALL + LEGEND + 18 * number
            parts.append(f'<rect class="key {colour}" x="{LEFT_EDGE}" y="{y - 6}" width="18" height="5"/>')
            parts.append(text(LEFT_EDGE + 26, y, name))
        return svg(parts, TALL + LEGEND + 18 * len(self.keys), title)


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _tick(value: float, label: str) -> str:
    return f"{value:.2g}" if "FLOPs" in label else short(value)


def _range(values: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        room = max((high / low) ** MARGIN, 1.05)
        return low / room, high * room
    room = (high - low) * MARGIN or abs(high) * 0.01 or 1.0
    return low - room, high + room


def colour(number: int) -> str:
    """Return the class of a colour."""
    return f"c{number % PALETTE}"


def _between(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (step / (CURVE - 1)) for step in range(CURVE)]


# --- figures ----------------------------------------------------------------------------------------------------------


def profiles(law: ArchitectureLaw, unit: str) -> str:
    """Return the IsoFLOP profiles of one architecture: measured runs, and the law's curve at each budget."""
    if not law.points:
        return ""
    points = [(float(one.cell.parameters), one.loss) for one in law.points]
    spots = [(one.optimum.parameters, one.optimum.loss) for one in law.best if one.inside]
    points += [spot for spot in spots if points and min(points)[0] <= spot[0] <= max(points)[0]]
    plot = Plot(points, ("parameters", unit), (True, False))
    for number, budget in enumerate(law.profile.budgets):
        here = [one for one in law.points if one.cell.budget == budget]
        kind = colour(number)
        if not here:
            continue
        if law.fit is not None:
            sizes = _between(min(p.cell.parameters for p in here), max(p.cell.parameters for p in here))
            fitted = law.fit.law
            line = [(size, float(fitted.loss(size, law.cost.tokens(size, budget)))) for size in sizes]
            plot.line([(x, y) for x, y in line if plot.up.low <= y <= plot.up.high], kind)
        for one in here:
            about = f"{one.cell.variant}, {short(one.cell.tokens)} tokens, seed {one.seed}: {one.loss:.4f}"
            plot.dot((float(one.cell.parameters), one.loss), kind, about)
        plot.keys.append((f"{budget:.3g} FLOPs", kind))
    for best in law.best:
        if best.inside and plot.across.low <= best.optimum.parameters <= plot.across.high:
            spot = (best.optimum.parameters, best.optimum.loss)
            plot.dot(spot, colour(law.profile.budgets.index(best.flops)), "best size by the law", hollow=True)
    return plot.drawn(f"{law.name}: loss over size at each budget")


def best_sizes(laws: Sequence[ArchitectureLaw], tokens: bool = False) -> str:
    """Return the best size, or its tokens, over compute: the law with its interval, and the bottoms of parabolas."""
    known = [law for law in laws if law.best]
    if not known:
        return ""

    def value(one: Best) -> tuple[float, float, float]:
        return (one.optimum.tokens, *one.tokens) if tokens else (one.optimum.parameters, *one.parameters)

    corners = [(one.flops, edge) for law in known for one in law.best for edge in value(one)]
    plot = Plot(corners, ("training FLOPs", "tokens" if tokens else "parameters"), (True, True))
    for number, law in enumerate(known):
        kind = colour(number)
        low, high = ([(one.flops, value(one)[edge]) for one in law.best] for edge in (1, 2))
        plot.band(low, high, kind)
        plot.line([(one.flops, value(one)[0]) for one in law.best if one.inside], kind)
        plot.line([(one.flops, value(one)[0]) for one in law.best if one.flops >= law.profile.budgets[-1]], kind, True)
        for one in law.best:
            if one.parabola is not None:
                size = law.cost.tokens(one.parabola, one.flops) if tokens else one.parabola
                if plot.up.low <= size <= plot.up.high:
                    plot.dot((one.flops, size), kind, f"{law.name}: parabola at {one.flops:.3g} FLOPs")
        plot.keys.append((f"{law.name}: the law with its 95 % interval; points: bottoms of parabolas", kind))
    return plot.drawn(f"Best {'tokens' if tokens else 'size'} over compute")


def frontier(laws: Sequence[ArchitectureLaw], tests: Mapping[str, Mapping[str, Any]], unit: str) -> str:
    """Return loss over compute: all runs, the lowest loss by each law, and predicted runs with their band."""
    known = [law for law in laws if law.points]
    if not known:
        return ""
    corners = [(one.cell.flops, one.loss) for law in known for one in law.points]
    corners += [(row["flops"], edge) for row in tests.values() for edge in row["band"]]
    corners += [(row["flops"], row["measured"]) for row in tests.values() if row["measured"] is not None]
    plot = Plot(corners, ("training FLOPs", unit), (True, False))
    for number, law in enumerate(known):
        kind = colour(number)
        for one in law.points:
            plot.dot((one.cell.flops, one.loss), kind, f"{one.cell.variant}, {short(one.cell.tokens)} tokens")
        if law.fit is not None:
            _frontier_line(plot, law, kind)
        plot.keys.append((f"{law.name}: runs, and the law at the best size of each budget", kind))
        if row := tests.get(law.name):
            plot.bar(row["flops"], row["band"][0], row["band"][1], kind)
            plot.dot((row["flops"], row["predicted"]), kind, f"predicted: {row['predicted']:.4f}")
            if row["measured"] is not None:
                plot.dot((row["flops"], row["measured"]), kind, f"measured: {row['measured']:.4f}", hollow=True)
    return plot.drawn("Loss over compute; bars: predictions made before the run; rings: what it gave")


def _frontier_line(plot: Plot, law: ArchitectureLaw, kind: str) -> None:
    fitted, last = law.law, law.profile.budgets[-1]
    frontier_at: Callable[[float], Point] = lambda flops: (flops, optimum_at(fitted, flops, law.cost).loss)  # noqa: E731
    inside = [frontier_at(flops) for flops in _between(law.profile.budgets[0], last)]
    plot.line([(x, y) for x, y in inside if plot.up.low <= y <= plot.up.high], kind)
    if plot.across.high > last:
        beyond = [frontier_at(flops) for flops in _between(last, plot.across.high)]
        plot.line([(x, y) for x, y in beyond if plot.up.low <= y <= plot.up.high], kind, dashed=True)


def errors(laws: Sequence[ArchitectureLaw]) -> str:
    """Return what each law leaves: measured against fitted loss of every run, in percent."""
    rows = [
        (number, one, 100 * (one.loss / float(law.fit.law.loss(one.cell.parameters, one.cell.tokens)) - 1))
        for number, law in enumerate(laws)
        if law.fit is not None
        for one in law.points
    ]
    if not rows:
        return ""
    plot = Plot([(one.cell.flops, error) for _, one, error in rows], ("training FLOPs", "error in %"), (True, False))
    for number, one, error in rows:
        plot.dot((one.cell.flops, error), colour(number), f"{one.cell.variant}: {error:+.2f} %")
    plot.keys = [(law.name, colour(number)) for number, law in enumerate(laws) if law.fit is not None]
    return plot.drawn("Measured against fitted loss of every run")
