"""Further figures of a report: ranks beside published ones, sensitivity to the learning rate, power."""

import math
from collections.abc import Mapping, Sequence

from heddle.comparison.report.figures import (
    BOTTOM,
    ROW,
    TALL,
    TOP,
    WIDTH,
    Axis,
    draw_points,
    keys,
    label_space,
    percent,
    svg,
    text,
    tick_percent,
)

SQUARE = 470  # the side of a plot of ranks
MARKS = ("M-5,-4 L5,-4 L0,5 Z", "M-4,0 a4,4 0 1,0 8,0 a4,4 0 1,0 -8,0", "M-5,4 L5,4 L0,-5 Z")  # lower, middle, higher


def ranks(ours: Mapping[str, float], theirs: Mapping[str, float], kinds: Mapping[str, str], column: str) -> str:
    """Return variants by their rank in a publication and here; on the diagonal both agree."""
    count = len(ours)
    left = (WIDTH - SQUARE) / 2 + 20
    across, up = Axis(0, count + 1, left, left + SQUARE), Axis(0, count + 1, SQUARE + 20, 20)
    parts = [f'<line class="front" x1="{left}" y1="{up.first}" x2="{across.last}" y2="{up.last}"/>']
    for tick in [t for t in across.ticks(6) if t > 0]:
        parts.append(text(across.at(tick), up.first + 16, f"{tick:.0f}", "middle", "soft"))
        parts.append(text(left - 8, up.at(tick) + 4, f"{tick:.0f}", "end", "soft"))
        y = up.at(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{across.last}" y1="{y:.1f}" y2="{y:.1f}"/>')
    here, there = _ranks(ours), _ranks(theirs)
    apart = sorted(ours, key=lambda name: -abs(here[name] - there[name]))  # those that moved most are named first
    parts += draw_points({name: (across.at(there[name]), up.at(here[name])) for name in apart}, kinds)
    parts.append(text((left + across.last) / 2, up.first + 36, f"rank by the published {column} (1 is best)", "middle"))
    parts.append(text(8, 12, "our rank"))
    return svg(parts, SQUARE + 66, f"Our ranks against those of the published {column}")


def _ranks(losses: Mapping[str, float]) -> dict[str, float]:
    """Return ranks from 1, the lowest loss; equal losses share the middle of theirs."""
    ordered = sorted(losses.values())
    return {name: (2 * ordered.index(v) + ordered.count(v) + 1) / 2 for name, v in losses.items()}


def sensitivity(losses: Mapping[str, Sequence[float]], factors: Sequence[float]) -> str:
    """Return, for each variant, how much worse each learning rate is than its best one; failed runs lie outside."""
    worse = {name: [math.log(loss / min(row)) for loss in row] for name, row in losses.items() if min(row) < math.inf}
    if not worse:
        return ""
    finite = sorted(value for row in worse.values() for value in row if math.isfinite(value))
    most = max(1e-4, 1.1 * finite[max(0, math.ceil(0.95 * len(finite)) - 1)])
    left, bottom = label_space(list(worse)), TOP + ROW * len(worse)
    axis, parts = Axis(0.0, most, left + 8, WIDTH - 30), []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 16, tick_percent(tick), "middle", "soft"))
    for row, (name, values) in enumerate(worse.items()):
        y = TOP + ROW * row + ROW / 2
        parts.append(text(left - 10, y + 4, name, "end"))
        for number, value in enumerate(values):
            x = axis.at(value) if value <= most else axis.last + 12
            about = f"<title>{name}, {factors[number]:g} times the rate: {percent(value)}</title>"
            place = f'transform="translate({x:.1f},{y})"'
            parts.append(f'<path class="key c{number}" d="{MARKS[number]}" {place}>{about}</path>')
    parts.append(text((left + WIDTH) / 2, bottom + BOTTOM - 8, "loss above that of the best rate", "middle"))
    parts += keys([f"{factor:g} times the learning rate" for factor in factors], bottom + BOTTOM + 16)
    return svg(parts, bottom + BOTTOM + 44, "Sensitivity of each variant to the learning rate")


def power_curves(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return the probability that an effect is found, by its size, a line for each number of seeds."""
    flat = [x for points in lines.values() for x, _ in points]
    across, up = Axis(0.0, max(flat), 70, WIDTH - 24), Axis(0.0, 1.0, TALL - BOTTOM - 60, 34)
    parts = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y, kind = up.at(tick), "front" if tick == 0.8 else "grid"
        parts.append(f'<line class="{kind}" x1="70" x2="{across.last}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(62, y + 4, f"{tick:.0%}", "end", "soft"))
    for tick in across.ticks(6):
        parts.append(text(across.at(tick), up.first + 18, tick_percent(tick).removeprefix("+"), "middle", "soft"))
    for number, points in enumerate(lines.values()):
        corners = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line c{number}" points="{corners}"/>')
    parts.append(text((70 + across.last) / 2, up.first + 38, "true difference of the loss", "middle"))
    parts.append(text(8, 12, "found with this probability"))
    parts += keys(list(lines), up.first + 60)
    return svg(parts, up.first + 66 + 18 * -(-len(lines) // 2), "Power by effect and number of seeds")
