"""docs/lessons: each lesson's code gives what the page shows, its commands are real, its links lead somewhere.

After a change, `PYTHONPATH=src:tests .venv/bin/python tests/docs/test_lessons.py` rewrites the outputs: read the diff.
"""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import docs.test_readme as readme
import pytest
from docs.test_readme import files  # noqa: F401 - a fixture

from heddle.cli.main import command

FOLDER = Path(__file__).parents[2] / "docs" / "lessons"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
CODE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+")


def output_of(code: str) -> str:
    """Run a lesson's code; return what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "lesson", "exec", dont_inherit=True), {"__name__": "lesson"})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_there_are_a_dozen_lessons_in_order_and_the_list_has_them() -> None:
    assert [int(page.name[:2]) for page in PAGES] == list(range(1, 13))
    assert re.findall(r"\]\((\d\d-[\w-]+\.md)\)", (FOLDER / "README.md").read_text()) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_lesson_is_true(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ((code, shown),) = CODE.findall(text)
    found = output_of(code)
    assert NUMBER.sub("#", found) == NUMBER.sub("#", shown)
    numbers = ([float(number) for number in NUMBER.findall(one)] for one in (found, shown))
    assert next(numbers) == pytest.approx(next(numbers), abs=0.011)
    assert re.search(r"^Follows the document 00\d, ", text, re.MULTILINE)
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (FOLDER / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_lessons_commands_are_real(page: Path) -> None:
    verbs = command().commands
    (block,) = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines():
        words = shlex.split(line.rpartition("| ")[2])
        assert words[0] == "heddle"
        known = {option for parameter in verbs[words[1]].params for option in parameter.opts}
        assert {word for word in words[2:] if word.startswith("-")} <= known, line


@pytest.mark.full
@pytest.mark.usefixtures("files")
def test_the_lessons_commands_run(monkeypatch: pytest.MonkeyPatch) -> None:
    readme.output_of(readme.shrunk(["train", "first", "data=my.txt", "rows.length=64", "model.context=64"]))
    for page in PAGES:
        (block,) = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines():
            given, _, words = line.rpartition("| ")
            monkeypatch.setattr("sys.stdin", io.StringIO(given.removeprefix("echo ").strip(' "') + "\n"))
            assert readme.output_of(readme.shrunk(shlex.split(words)[1:])) or "train" in words or "--html" in words


if __name__ == "__main__":
    for one in PAGES:
        before = one.read_text(encoding="utf-8")
        ((script, _),) = CODE.findall(before)
        made = f"```python\n{script}```\n\n```text\n{output_of(script)}```"
        one.write_text(CODE.sub(lambda _: made, before), encoding="utf-8")  # noqa: B023
