"""Plots: the newest measurements in results.jsonl: those beside a peer as bars in docs/speed.svg, those of presets in
compiled training as tables in docs/speed_presets.md."""

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
        if line.get("taken_out"):  # measured, and not kept
            continue
        if isinstance(line.get("ours"), int | float) and isinstance(peer, int | float) and peer:
            found[line["name"]] = Pair(line["name"], float(line["ours"]), float(peer), line.get("bar"))
    return list(found.values())


def drawn(measured: list[Pair]) -> str:
    """Draw bars as a share of the longer of the two, with the ratio beside them."""
    row = 2 * BAR + GAP
    height = 40 + row * len(measured)
    space = WIDTH - LABEL - 150
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<text x="8" y="20" font-size="13">tokens a second: <tspan fill="{COLOURS["ours"]}">ours</tspan>, '
        f'<tspan fill="#7b8790">peer in the same run</tspan>; beside them the ratio, and the bar that was set</text>',
    ]
    for number, pair in enumerate(measured):
        top, most = 36 + number * row, max(pair.ours, pair.peer)
        parts.append(f'<text x="8" y="{top + BAR + 4}" font-size="12">{escape(pair.name)}</text>')
        for place, (kind, value) in enumerate((("ours", pair.ours), ("peer", pair.peer))):
            y, length = top + place * BAR, space * value / most
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLOURS[kind]}"/>'
                f'<text x="{LABEL + 4}" y="{y + BAR - 5}" font-size="10" fill="#111">{value:,.0f}</text>'
            )
        promised = "" if pair.bar is None else f" (bar {pair.bar:g})"
        words = f"{pair.ratio:.2f}x{promised}"
        parts.append(f'<text x="{LABEL + space + 8}" y="{top + BAR + 4}" font-size="12">{words}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


TABLES = {
    False: "Two layers of a reduced width, one preset of each family: it compiles; too small to keep a chip busy.",
    True: "The named small and base sizes at full shape.",
}
HEAD = """# Every preset family in compiled training

Written by `python benchmarks/plots.py` from [what was measured](../benchmarks/results.jsonl) by `python
benchmarks/h200_presets.py` on {device}. Each takes 20 steps under AdamW, its objective and its loss in one graph; the
benchmark fails where there is a graph break, or a recompile after the second step. *First* is the seconds from building
the model to the end of the second step, with many others compiled beside it.
"""


def presets(lines: list[dict[str, Any]]) -> dict[tuple[bool, str], dict[str, Any]]:
    """Return the newest measurement of each preset, by whether it has its full shape and by its name."""
    return {(line["full"], line["name"]): line for line in lines if line["name"].startswith("preset ")}


def tables(lines: list[dict[str, Any]]) -> str:
    """Lay out the newest measurement of each preset, small and full."""
    found = presets(lines)
    report = [HEAD.format(device=", ".join(dict.fromkeys(f"one {line['device']}" for line in found.values())))]
    for full, words in TABLES.items():
        report += [f"\n{words}\n", "| preset | rows | tokens/s | MFU | weights | peak GiB | first, s | commit |"]
        report += ["|---|--:|--:|--:|--:|--:|--:|---|"]
        report += [
            f"| `{name.removeprefix('preset ')}` | {line['batch']} x {line['length']} | {line['tokens_per_second']:,} "
            f"| {line['mfu']:.1%} | {line['parameters'] / 1e6:,.1f} M | {line['peak_gib']} | {line['first_seconds']} "
            f"| {line['commit']} |"
            for (kind, name), line in sorted(found.items())
            if kind == full
        ]
    return "\n".join(report) + "\n"


def main() -> None:
    """Draw, and lay out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("folder", nargs="?", type=Path, default=HERE.parent / "docs")
    words = parser.parse_args()
    try:
        lines = [json.loads(line) for line in words.results.read_text(encoding="utf-8").splitlines()]
        (words.folder / "speed.svg").write_text(drawn(pairs(lines)), encoding="utf-8")
        (words.folder / "speed_presets.md").write_text(tables(lines), encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None
    print(f"{words.folder}: {len(pairs(lines))} measurements beside a peer, {len(presets(lines))} of presets")


if __name__ == "__main__":
    main()
