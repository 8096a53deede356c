"""docs/scale.md is real: its first command and its Python run, its other commands mean a study."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import main
from heddle.comparison.scaling import LargerConfig, ScaleConfig, parse_words
from heddle.core import encode
from heddle.recipes import RECIPES

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Return the words of each `heddle scale` on the page."""
    lines = re.findall(r"^heddle scale(.*)$", PAGE, re.MULTILINE)
    return [shlex.split(line.partition("#")[0]) for line in lines]


def test_the_toy_of_the_page_runs_in_a_shell_and_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["scale", *commands()[0], "--processes", "2"]) == 0
    folder = tmp_path / "scaling" / "first"
    for name in ("results.csv", "laws.json", "report.html", "loss.svg"):
        assert name in PAGE or name.endswith(".svg")
        assert (folder / name).exists()
    lines = (folder / "runs.jsonl").read_bytes()
    assert all(json.loads(line)["status"] == "done" for line in lines.splitlines())
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(source, "docs/scale.md", "exec"), found)  # the page's own text
    assert [row["flops"] for row in found["table"]][:3] == [1e9, 2e9, 4e9]
    assert "; about " not in capsys.readouterr().err and (folder / "runs.jsonl").read_bytes() == lines  # the same study


def test_the_other_commands_mean_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(json.dumps(encode(RECIPES["characters"]())))
    (tmp_path / "my.txt").write_text("a text\n")
    counts = [len(parse_words(words).architectures) for words in commands() if not any("scaling/" in w for w in words)]
    assert counts == [1, 1, 2, 4]


def test_every_setting_is_in_the_table() -> None:
    table = set(re.findall(r"`([a-z.]+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `"))))
    want = {name for name in vars(ScaleConfig()) if name != "larger"} | {
        f"larger.{name}" for name in vars(LargerConfig())
    }
    assert want <= table


def test_commands_of_the_record_are_there() -> None:
    root = Path(__file__).parents[2]
    for script in re.findall(r"benchmarks/\S+\.(?:py|sh)", PAGE):
        assert (root / script).exists(), script
    parts = set(re.findall(r"h200_scale\.sh \S+ OUT (\w+)", PAGE))
    text = (root / "benchmarks" / "h200_scale.sh").read_text()
    assert parts and all(f"\n  {part})" in text for part in parts)
