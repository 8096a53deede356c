"""docs/tasks.md is real: its commands train, use and grade; in full as they are, else at a tenth of the steps."""

import contextlib
import io
import json
import re
import shlex
import time
from pathlib import Path

import pytest
from cli.runs import config, save_run
from docs.tasks_files import write_files

from heddle.cli.main import main
from heddle.recipes import RECIPES
from heddle.tasks.evaluation import TASKS

TEXT = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
SMALL = ["training.steps=2", "training.batch=8", "rows.batch=8", "model.layers=1", "model.width=32", "model.heads=2"]
MINUTES = 3  # on two cores, for the first three commands of a section


def commands(section: str) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", SECTIONS[section], re.DOTALL)
    return [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]


def run(words: list[str], *more: str) -> list[str]:
    """Run a command; return the lines that it writes."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        assert main([*words, *more, *(["hardware.device=cpu"] if words[0] == "train" else [])]) == 0, words
    return heard.getvalue().splitlines()


def steps(words: list[str], share: float) -> list[str]:
    """Return settings for a share of a recipe's steps."""
    return [f"training.steps={round(share * RECIPES[words[1]]().training.steps)}"] if share < 1 else []


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "config"))
    write_files(tmp_path)


def graded(section: str, share: float) -> dict[str, float]:
    """Train, use and grade as a section says; return the grades."""
    train, use, grade = commands(section)[:3]
    run(train, *steps(train, share))
    assert all(json.loads(line)["line"] for line in run(use))
    *lines, last = run(grade)
    found = json.loads(last)
    assert found["graded"] == len(lines) >= 30
    return found


@pytest.mark.parametrize(("section", "metric"), [("Classes", "accuracy"), ("Tags", "entity_f1")])
def test_labels_become_a_graded_task(section: str, metric: str) -> None:
    assert graded(section, 0.1)[metric] > 0.9


def test_summaries_are_learnt_and_graded() -> None:
    pytest.importorskip("rouge_score")
    assert graded("Summaries", 0.1)["rouge1"] > 20  # "went to", and perhaps a place


@pytest.mark.full
@pytest.mark.parametrize(
    ("section", "metric", "least"),
    [("Classes", "accuracy", 0.95), ("Tags", "entity_f1", 0.95), ("Summaries", "rouge1", 90)],
)
def test_labels_become_a_graded_task_in_minutes(section: str, metric: str, least: float) -> None:
    if metric == "rouge1":
        pytest.importorskip("rouge_score")
    start = time.monotonic()
    assert graded(section, 1)[metric] > least
    taken = time.monotonic() - start
    print(f"{section}: {taken:.0f} s")
    assert taken < 60 * MINUTES


def small(words: list[str]) -> list[str]:
    if words[0] != "train":
        return []
    chosen = [one for one in SMALL if not (one.startswith("model.") and any(w.startswith("init=") for w in words))]
    return [one for one in chosen if not (words[1] == "bert" and one.startswith("rows."))]


def test_the_other_commands_run() -> None:
    save_run(Path("runs/writer"), config(context=512))
    few_shot = commands("Few-shot prompting")
    rest = [*commands("Classes")[3:], *commands("Answers, similarity, embeddings and masks"), *few_shot]
    for words in rest:
        lines = run(words, *small(words))
        if "--reference" in words:
            assert json.loads(lines[-1])["graded"] > 0
    for words in (commands("Classes")[0], commands("Tags")[0], commands("Summaries")[0]):
        run(words, *small(words))
    (own,) = re.findall(r"```python\n(.*?)```", SECTIONS["Evaluating on a task"], re.DOTALL)
    Path("own_task.py").write_text(own, encoding="utf-8")
    for words in commands("Evaluating on a task"):
        assert any("examples" in line for line in run(words)), words
    assert TASKS.pop("lengths").name == "lengths"
    code = re.findall(r"```python\n(.*?)```", SECTIONS["In Python"], re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as heard:
        exec(compile("".join(code), "tasks.md", "exec"), {})
    assert heard.getvalue().split()[0] in ("good", "bad")


def test_the_table_names_verbs_and_recipes_that_there_are() -> None:
    rows = re.findall(r"^\| `heddle (\w+)` \|.*?\| (.*?) \|.*?\|$", TEXT, re.MULTILINE)
    assert {verb for verb, _ in rows} >= {"classify", "tag", "answer", "summarize", "embed", "fill"}
    assert {name for _, recipes in rows for name in re.findall(r"`(\w+)`", recipes)} <= set(RECIPES)


def test_the_table_of_tasks_is_whole() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", SECTIONS["Evaluating on a task"], re.MULTILINE)
    assert sorted(rows) == sorted(name for name, task in TASKS.items() if type(task).__module__.startswith("heddle."))
