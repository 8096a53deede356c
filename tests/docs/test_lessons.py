"""docs/lessons: each lesson's code gives what the page shows, quoted code is the real one, commands draw the pictures.

After a change, `PYTHONPATH=src:tests .venv/bin/python tests/docs/test_lessons.py` rewrites outputs and quotes, and
`python benchmarks/lesson_pictures.py` the pictures: read the diff.
"""

import ast
import difflib
import html
import io
import itertools
import re
import textwrap
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

from heddle.cli.main import command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "lessons"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
CODE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
QUOTE = re.compile(r"<!-- code: (\S+) (\S+) -->\n```py\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+")


def output_of(code: str) -> str:
    """Run a lesson's code; return what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "lesson", "exec", dont_inherit=True), {"__name__": "lesson"})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def source_of(file: str, name: str) -> str:
    """Return the source of a function, or of a method as Class.method, without its indentation."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found: ast.AST = ast.parse(text)
    for part in name.split("."):
        (found,) = (
            each
            for each in ast.iter_child_nodes(found)
            if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == part
        )
    assert isinstance(found, ast.FunctionDef)
    first = min(each.lineno for each in (found, *found.decorator_list))
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : found.end_lineno])) + "\n"


def words_of(picture: str) -> list[str]:
    """Return the words of a picture, with how dark its cells are."""
    found = re.findall(r"<text[^>]*>([^<]*)<|fill-opacity=\"([\d.]+)\"", picture)
    return [word for text, opacity in found for word in (html.unescape(text) or opacity).split()]


def differences(now: str, before: str) -> list[str]:
    """Return how two pictures differ: in a fifth of their words, numbers that are near being equal.

    Training on another kind of processor changes up to one word in sixteen.
    """
    new, old = ([word.strip("%+") for word in words_of(one)] for one in (now, before))
    kinds = (["#" if NUMBER.fullmatch(word) else word for word in words] for words in (new, old))
    blocks = difflib.SequenceMatcher(None, *kinds, autojunk=False).get_matching_blocks()
    pairs = [(new[a + i], old[b + i]) for a, b, size in blocks for i in range(size)]
    far = [
        f"{a}, not {b}"
        for a, b in pairs
        if NUMBER.fullmatch(a) and abs(float(a) - float(b)) > 0.05 + 0.1 * abs(float(b))
    ]
    lost = max(len(new), len(old)) - len(pairs)
    return [*far, *["a word"] * lost] if len(far) + lost > 0.2 * len(old) else []


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    return script("lesson_pictures")


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
def test_a_lesson_quotes_the_code_that_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    quotes = QUOTE.findall(text)
    assert quotes
    for file, name, quoted in quotes:
        assert quoted == source_of(file, name), f"{page.name}: {name} has changed"
        assert f"](../../{file})" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_lessons_commands_are_real_and_its_picture_shows_the_last_of_explain(
    page: Path, pictures: ModuleType
) -> None:
    verbs = command().commands
    text = page.read_text(encoding="utf-8")
    found = pictures.commands(text)
    for each in found:
        known = {option for parameter in verbs[each.words[0]].params for option in parameter.opts}
        assert {word for word in each.words[1:] if re.match(r"--?[a-z]", word)} <= known, each.line
    last = [each for each in found if each.words[0] == "explain"][-1]
    assert f"]({page.stem}.svg)" in text
    drawn = words_of(page.with_suffix(".svg").read_text(encoding="utf-8"))
    typed = ["$", *last.line.split()]
    assert drawn[: len(typed)] == typed


def drawn(page: Path) -> str:
    """Return the picture that a page shows."""
    return page.with_suffix(".svg").read_text(encoding="utf-8")


def test_all_commands_run_and_those_of_the_transformer_draw_their_pictures(
    pictures: ModuleType, tmp_path: Path
) -> None:
    """The others train for two steps here."""
    whole = {"gpt", "early"}
    found = dict(pictures.run_pages(tmp_path, whole))
    assert list(found) == PAGES
    models = {page: pictures.explaining(page.read_text(encoding="utf-8")).option("-m") for page in PAGES}
    compared = [page for page in PAGES if models[page] in whole]
    assert len(compared) == 8
    for page in compared:
        assert not differences(found[page], drawn(page)), page.stem


@pytest.mark.full
def test_all_commands_draw_their_pictures(pictures: ModuleType, tmp_path: Path) -> None:
    found = dict(pictures.run_pages(tmp_path))
    assert list(found) == PAGES
    for page, picture in found.items():
        assert not differences(picture, drawn(page)), page.stem


def test_a_picture_of_another_page_would_be_noticed() -> None:
    assert all(differences(drawn(one), drawn(other)) for one, other in itertools.pairwise(PAGES))


if __name__ == "__main__":
    for one in PAGES:
        before = one.read_text(encoding="utf-8")
        ((ran, _),) = CODE.findall(before)
        made = f"```python\n{ran}```\n\n```text\n{output_of(ran)}```"
        after = CODE.sub(lambda _: made, before)  # noqa: B023
        after = QUOTE.sub(lambda m: f"<!-- code: {m[1]} {m[2]} -->\n```py\n{source_of(m[1], m[2])}```", after)
        one.write_text(after, encoding="utf-8")
