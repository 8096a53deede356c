"""Pictures of the lessons: what the last `heddle explain` of each page shows, on the terminal or as maps, as SVG.

`python benchmarks/lesson_pictures.py` runs the commands of docs/lessons in order, in an empty folder with the lessons'
texts, and draws again all pictures that the pages show.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lesson_texts import write_texts
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from heddle.cli.main import main

LESSONS = Path(__file__).parents[1] / "docs" / "lessons"
COLOURS = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color", "NO_COLOR": ""}
CELL, LETTER, ACROSS = 22, 7.4, 2  # pixels of a cell of a map, and of a letter beside it; maps in a row
# rich's own frame loads a font from elsewhere; this one needs nothing.
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>{styles} text {{ font: {char_height}px/{line_height}px ui-monospace, monospace; }}</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#1c1c1c"/>
<g transform="translate({terminal_x} {terminal_y})">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


@dataclass(frozen=True)
class Command:
    """A `heddle` command of a page, and what is piped into it."""

    words: list[str]
    given: str = ""

    @property
    def line(self) -> str:
        """Return the command as it is typed."""
        return shlex.join(["heddle", *self.words])

    def option(self, name: str) -> str | None:
        """Return the value of an option."""
        return self.words[self.words.index(name) + 1] if name in self.words else None


def pages() -> list[Path]:
    """Return the lessons in order."""
    return sorted(LESSONS.glob("[0-9]*.md"))


def commands(page: str) -> list[Command]:
    """Return the commands of a page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    found = list[Command]()
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        given, _, typed = line.rpartition("| ")
        words = shlex.split(typed)
        if words[0] == "heddle":
            found.append(Command(words[1:], " ".join(shlex.split(given)[1:])))
    return found


def run(command: Command) -> str:
    """Run one command in this process; return what it prints, with colours."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)  # some commands write bytes
    given = io.TextIOWrapper(io.BytesIO(f"{command.given}\n".encode()), encoding="utf-8")
    colours = COLOURS if command.words[0] == "explain" else {}
    with contextlib.redirect_stdout(out), patch("sys.stdin", given), patch.dict(os.environ, colours):
        code = main(command.words)
    text = out.buffer.getvalue().decode()
    if code:
        raise SystemExit(f"{command.line}: exit code {code}\n{text}")
    return str(text)


def explaining(page: str) -> Command:
    """Return the command whose output is the picture of a page."""
    return [each for each in commands(page) if each.words[0] == "explain"][-1]


def drawn(page: str, found: Mapping[str, str]) -> str:
    """Return the picture of a page, from what its commands printed."""
    command = explaining(page)
    data = command.option("--json")
    if data is None:
        return terminal(command.line, found[command.line])
    return maps(command.line, json.loads(Path(data).read_text(encoding="utf-8")))


def shortened(command: Command) -> Command:
    """Return a command that trains for two steps only."""
    text = "\n".join(command.words)
    text = re.sub(r"^training\.steps=\d+$", "training.steps=2", text, flags=re.MULTILINE)
    text = re.sub(r"^training\.schedule\.warmup=\d+$", "training.schedule.warmup=1", text, flags=re.MULTILINE)
    return Command(text.split("\n"), command.given)


def run_pages(folder: Path, whole: Collection[str] | None = None) -> Iterator[tuple[Path, str]]:
    """Run the commands of all pages in a folder; yield each page with its picture.

    Models that are not among `whole` train for two steps; None: all train to their end.
    """
    write_texts(folder)
    with contextlib.chdir(folder):
        for page in pages():
            text, found = page.read_text(encoding="utf-8"), dict[str, str]()
            for each in commands(text):
                short = whole is not None and not any(f"name={name}" in each.words for name in whole)
                found[each.line] = run(shortened(each) if short else each)
            yield page, drawn(text, found)


# --- drawing ----------------------------------------------------------------------------------------------------------


def typed_lines(line: str) -> list[str]:
    """Return a command as a terminal shows it, in lines that are not too long."""
    return textwrap.wrap(f"$ {line}", 90, subsequent_indent="    ", break_on_hyphens=False)


def terminal(line: str, shown: str) -> str:
    """Draw what a command printed."""
    typed = Text("\n".join(typed_lines(line)), style="grey70")
    text = Text("\n\n").join((typed, Text.from_ansi(shown.rstrip("\n"))))
    width = max(len(each) for each in text.plain.splitlines())
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, no_wrap=True, crop=False)
    svg = console.export_svg(theme=MONOKAI, code_format=FRAME, unique_id="t")
    return "\n".join(each.rstrip() for each in svg.splitlines() if each.strip()) + "\n"


def maps(line: str, data: Mapping[str, Any]) -> str:
    """Draw the attention of every layer and head: a row for each query, a column for each key."""
    tokens = {sequence["name"]: sequence["tokens"] for sequence in data["sequences"]}
    heads = [
        _map(f"{one['name']}, head {head} ({one['kind']})", weights, tokens[one["queries"]], tokens[one["keys"]])
        for one in data["attention"]
        for head, weights in enumerate(one["weights"])
    ]
    width, height = (max(sizes) for sizes in list(zip(*heads, strict=True))[1:])
    typed = typed_lines(line)
    first = 18 * len(typed) + 16
    places = [(width * (at % ACROSS), height * (at // ACROSS) + first) for at in range(len(heads))]
    across = max(width * min(ACROSS, len(heads)), LETTER * max(map(len, typed)) + 40)
    size = f"{across:.0f} {places[-1][1] + height:.0f}"
    title = "\n".join(
        f'<text x="12" y="{20 + 18 * at}" xml:space="preserve">{escape(one)}</text>' for at, one in enumerate(typed)
    )
    drawings = [
        f'<g transform="translate({x:.0f} {y:.0f})">\n{one}\n</g>'
        for (one, *_), (x, y) in zip(heads, places, strict=True)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="ui-monospace, monospace"'
        f' font-size="12" fill="#222">\n<rect width="100%" height="100%" rx="8" fill="#fff"/>\n'
        + "\n".join((title, *drawings))
        + "\n</svg>\n"
    )


def _map(
    title: str, weights: Sequence[Sequence[float]], queries: Sequence[str], keys: Sequence[str]
) -> tuple[str, float, float]:
    """Return the drawing of one head, its width and its height."""
    left, top = LETTER * max(map(len, queries)) + 16, LETTER * max(map(len, keys)) + 34
    lines = [f'<text x="12" y="14" fill="#666">{escape(title)}</text>']
    for at, key in enumerate(keys):
        x = left + CELL * at + 15
        lines.append(f'<text transform="translate({x:.0f} {top - 4:.0f}) rotate(-90)">{escape(key)}</text>')
    for row, (query, values) in enumerate(zip(queries, weights, strict=True)):
        y = top + CELL * row
        lines.append(f'<text x="{left - 6:.0f}" y="{y + 15:.0f}" text-anchor="end">{escape(query)}</text>')
        square = f'h{CELL - 1}v{CELL - 1}h-{CELL - 1}z" fill="#0550ae"'
        lines += [
            f'<path d="M{left + CELL * at:.0f} {y:.0f}{square} fill-opacity="{value:.2f}"/>'
            for at, value in enumerate(values)
        ]
    frame = f'width="{CELL * len(keys) + 1}" height="{CELL * len(queries) + 1}" fill="none" stroke="#ccc"'
    lines.append(f'<rect x="{left - 1:.0f}" y="{top - 1:.0f}" {frame}/>')
    width = max(left + CELL * len(keys), LETTER * len(title) + 12) + 20
    return "\n".join(lines), width, top + CELL * len(queries) + 16


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for made, picture in run_pages(Path(folder)):
            made.with_suffix(".svg").write_text(picture, encoding="utf-8")
            print(made.with_suffix(".svg").name, file=sys.stderr)
