"""The README tells the truth: its commands run in order, its Python after them, its links and figures are there."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.cli.main import main
from heddle.models import presets
from heddle.recipes import RECIPES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# What makes a run tiny. Recipe, preset and optimizer stay as the README has them; only sizes go.
SHORT = ["training.steps=2", "training.batch=2", "rows.length=24", "validation_rows=2"]
PLAIN = ["hardware.device=cpu", "hardware.dtype=float32"]
SMALL = ["tokenizer=byte", "model.layers=1", "model.width=16"]


def blocks(kind: str) -> list[str]:
    """Return the fenced blocks of one kind."""
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def commands() -> Iterator[tuple[list[str], str | None]]:
    """Yield every heddle command of the shell blocks as words, and the file that it writes to, if any."""
    for line in "\n".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["heddle"]:
            command, _, file = " ".join(map(shlex.quote, words[1:])).partition(" '>' ")
            yield shlex.split(command), file or None


def shrunk(words: list[str]) -> list[str]:
    """Return a command with the overrides that make it quick."""
    verb, target, *more = words if len(words) > 1 else [*words, ""]
    if verb != "train" or target.endswith(".yaml"):  # the file was printed small
        return words
    if target.startswith("runs/"):  # a resumed run keeps its sizes
        return [*words, "training.steps=3"] if more else words
    if any(word.startswith("init=") for word in more):  # a tuned one has those of the run it starts from
        return [*words, *SHORT, *PLAIN]
    return [*words, *SHORT, *PLAIN, *SMALL, *([] if target.startswith("lstm") else ["model.heads=2"])]


def heard(words: list[str]) -> str:
    """Run one command in this process and return what it printed; it must succeed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(words)
    assert code == 0, f"heddle {' '.join(words)}: exit code {code}\n{said.getvalue()}"
    return said.getvalue()


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, line in (("my.txt", "Once upon a time there was a cat.\n"), ("other.txt", "The rat sat on a mat.\n")):
        Path(name).write_text("".join(f"{i} {line}" for i in range(60)))
    Path("lines.txt").write_text("the cat sat\nthe rat sat\n")
    found = {}
    for words, file in commands():
        found[" ".join(words)] = heard(shrunk(words))
        if file is not None:
            Path(file).write_text(found[" ".join(words)], encoding="utf-8")
    assert "resumed at step 2" in found["train runs/first training.steps=1000"]
    assert "bits per byte" in found["evaluate"]
    assert {run.name for run in Path("runs").iterdir()} >= {"first", "wide", "tuned", "lstm_characters"}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_readme_shows_every_verb() -> None:
    shown = {words[0] for words, _ in commands()}
    assert {"train", "generate", "evaluate", "score", "show"} <= shown
    assert "heddle list" in README


def test_names_in_the_text_exist() -> None:
    for name in re.findall(r"`heddle train (\w+)`", README):
        assert name in RECIPES
    for name in re.findall(r"heddle show (\w+)", README):
        assert name in {*presets(), "runs"}


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) >= 6
    for link in links:
        assert (ROOT / link).exists(), link


def test_figures_are_those_of_the_record() -> None:
    record = (ROOT / "records" / "2026-11-15-shakespeare" / "README.md").read_text(encoding="utf-8")
    figures = re.findall(r"\d+\.\d{4}(?: ± \d+\.\d{4})?|\d+,\d{3},\d{3}", README)
    assert len(figures) == 5
    for figure in figures:
        assert figure in record, figure


def test_it_fits_one_screen() -> None:
    assert len(README.splitlines()) <= 90
