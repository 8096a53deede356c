"""docs/explain.md is true: its commands run, its Python runs, and its table has every thing that can be shown."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from cli.runs import config, save_run

from heddle.cli.main import main
from heddle.explain import DEFAULT, WHATS

PAGE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs" / "lstm", config("lstm_lm"))
    save_run(tmp_path / "runs" / "first", config("gpt2"))
    return tmp_path


def output_of(words: list[str]) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(words) == 0, words
    return out.getvalue()


def test_the_page_runs(here: Path) -> None:
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^heddle .*$", PAGE, re.MULTILINE)]
    assert len(commands) == 10
    for words in commands:
        shown = output_of([*words[1:], *(() if "-m" in words else ("-m", "first")), "--device", "cpu"])
        files = [words[at + 1] for at, word in enumerate(words) if word in ("--html", "--json")]
        assert shown or (all((here / file).stat().st_size for file in files) and files)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {"__name__": "page"}
    with redirect_stdout(io.StringIO()):
        exec(compile(code, "explain.md", "exec"), names)
    assert names["weights"] is not None and names["step"] is not None


def test_the_page_knows_everything_that_can_be_shown() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == list(WHATS)
    assert f"it shows {', '.join(DEFAULT[:-1])} and {DEFAULT[-1]}," in PAGE
