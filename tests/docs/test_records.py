"""Every figure of docs/records.md stands in the source that its row names, and a single seed is called provisional."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from heddle.recipes import RECIPES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def table(section: str) -> list[list[str]]:
    """Return the cells of the rows of a section's table, without its head."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def source_of(cell: str) -> str:
    """Return the text of the file that a cell links to."""
    (link,) = re.findall(r"\]\(([^)]+)\)", cell)
    return (ROOT / "docs" / link).read_text(encoding="utf-8")


@pytest.mark.parametrize("row", table("Quality"), ids=lambda row: f"{row[0][:20]} {row[2]}")
def test_a_figure_is_that_of_its_record(row: list[str]) -> None:
    _, model, figure, seeds, source = row
    text = source_of(source).replace("**", "")
    for number in NUMBER.findall(figure):
        assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d,]|\.\d)", text), number
    for number in re.findall(r"\d+,\d{3},\d{3}|\d+\.\d", model):
        assert number in text, number
    assert not seeds or (seeds == "1, provisional") or int(seeds) > 1
    if seeds.startswith("1"):
        assert "provisional" in text.lower() or "log.md" in source
    for name in re.findall(r"recipe `(\w+)`", model):
        assert name in RECIPES


def test_the_cost_against_length_is_that_of_the_record() -> None:
    record = (ROOT / "records/2026-11-15-length/README.md").read_text(encoding="utf-8")
    rows = table("Cost against sequence length")
    assert len(rows) == 3
    for name, short, long, factor in rows:
        (measured,) = re.findall(rf"^\| mixer \| {name} \|(.*)$", record, re.MULTILINE)
        assert [cell.strip() for cell in measured.split("|")][5:7] == [short, long]
        assert f"{float(long) / float(short):.1f}" == factor


def results() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the lines of results.jsonl by name and commit."""
    lines = (ROOT / "benchmarks" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return {(line["name"], line["commit"]): line for line in map(json.loads, lines)}


@pytest.mark.parametrize("row", table("Speed on two CPU cores"), ids=lambda row: row[0][:30])
def test_a_speed_is_that_of_its_line(row: list[str]) -> None:
    _, figure, key, line = row
    name, commit = re.fullmatch(r"`(.+)`, (\w+)", line).groups()  # type: ignore[union-attr]
    group, _, inner = key.strip("`").partition(".")
    value = results()[name, commit][group]
    digits = len(figure.partition(".")[2])
    assert f"{value[inner] if inner else value:.{digits}f}" == figure
