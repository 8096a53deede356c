"""Plots: the newest measurement of each kind in results.jsonl as bars against its peer, in docs/speed.svg."""

import argparse
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH, LABEL, BAR, GAP = 860, 330, 16, 12  # of the figure, of the words on the left, of a bar, between two measurements
COLOURS = {"ours": "#2a6f97", "peer": "#b8c4cc"}


@dataclass(frozen=True)
class Pair:
    """One measurement: what we did a second, and what the peer did."""

    name: str
    ours: float
    peer: float
    bar: float | None  # the ratio that was promised

    @property
    def ratio(self) -> float:
        """Return how many times faster ours is."""
        return self.ours / self.peer


def pairs(lines: list[dict[str, Any]]) -> list[Pair]:
    """Return the newest measurement of each name that has a peer in the same run."""
    found: dict[str, Pair] = {}
    for line in lines:
        peer = line.get("peer", line.get("plain"))
        if isinstance(line.get("ours"), int | float) and isinstance(peer, int | float) and peer:
            found[line["name"]] = Pair(line["name"], float(line["ours"]), float(peer), line.get("bar"))
    return list(found.values())


def drawn(measured: list[Pair]) -> str:
    """Draw bars as a share of the longer of the two, with the ratio beside them."""
    row = 2 * BAR + GAP
    height = 40 + row * len(measured)
    room = WIDTH - LABEL - 150
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<text x="8" y="20" font-size="13">tokens a second: <tspan fill="{COLOURS["ours"]}">ours</tspan>, '
        f'<tspan fill="#7b8790">peer in the same run</tspan>; beside them the ratio, and the bar that was set</text>',
    ]
    for number, pair in enumerate(measured):
        top, most = 36 + number * row, max(pair.ours, pair.peer)
        parts.append(f'<text x="8" y="{top + BAR + 4}" font-size="12">{escape(pair.name)}</text>')
        for place, (kind, value) in enumerate((("ours", pair.ours), ("peer", pair.peer))):
            y, length = top + place * BAR, room * value / most
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLOURS[kind]}"/>'
                f'<text x="{LABEL + 4}" y="{y + BAR - 5}" font-size="10" fill="#111">{value:,.0f}</text>'
            )
        promised = "" if pair.bar is None else f" (bar {pair.bar:g})"
        words = f"{pair.ratio:.2f}x{promised}"
        parts.append(f'<text x="{LABEL + room + 8}" y="{top + BAR + 4}" font-size="12">{words}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("figure", nargs="?", type=Path, default=HERE.parent / "docs" / "speed.svg")
    words = parser.parse_args()
    try:
        lines = [json.loads(line) for line in words.results.read_text(encoding="utf-8").splitlines()]
        words.figure.write_text(drawn(pairs(lines)), encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None
    print(f"{words.figure}: {len(pairs(lines))} measurements")


if __name__ == "__main__":
    main()
