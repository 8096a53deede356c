"""docs/pictures.md is real: its commands train, caption, classify and explain; but in full, for two steps only."""

import contextlib
import io
import json
import re
import shlex
import time
from pathlib import Path

import pytest
from data.drawn_pictures import write_images, write_videos

from heddle.cli.main import main

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "pictures.md").read_text(encoding="utf-8")
MINUTES = 3  # on two cores, for the commands of a section
SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
COMMANDS = {
    title: [shlex.split(line, comments=True)[1:] for block in BLOCK.findall(body) for line in block.splitlines()]
    for title, body in SECTIONS
}


def run(words: list[str], short: bool) -> list[dict[str, object]]:
    """Run a command; return the JSON lines that it writes."""
    shorter = {"training.steps": "training.steps=2", "training.schedule.warmup": "training.schedule.warmup=1"}
    words = [shorter.get(word.partition("=")[0], word) if short else word for word in words]
    more = ["hardware.device=cpu"]
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        assert main([*words, *(more if words[0] == "train" else [])]) == 0, words
    return [json.loads(line) for line in heard.getvalue().splitlines() if words[0] != "train"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    monkeypatch.chdir(tmp_path)
    write_images(Path("images"), 240)
    write_images(Path("shapes"), 240, classes=True)
    write_videos(Path("videos"))
    (Path("images") / "000.png").rename("new.png")


@pytest.mark.parametrize("section", [title for title, commands in COMMANDS.items() if commands])
def test_the_commands_of_a_section_run(section: str) -> None:
    for words in COMMANDS[section]:
        run(words, short=True)


@pytest.mark.full
def test_images_are_described_and_classified_in_three_minutes() -> None:
    begun = time.monotonic()
    train, _, grade, _ = COMMANDS["Captions of images"]
    run(train, short=False)
    assert run(grade, short=False)[-1]["exact_match"] > 60  # type: ignore[operator]
    assert time.monotonic() - begun < 60 * MINUTES
    train, grade = COMMANDS["Classes of images"]
    run(train, short=False)
    assert run(grade, short=False)[-1]["accuracy"] > 0.9  # type: ignore[operator]


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        assert (DOCS / link).exists(), link
