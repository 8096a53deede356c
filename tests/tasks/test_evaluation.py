"""Tasks by name: gold predictions score 1, intervals hold the value, the user's own task runs, runs keep results."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.runs import TOKENIZER, config, loud_model, save_run
from cli.wrong_labels import save_encoders

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, UsageError
from heddle.lm import LM
from heddle.tasks.evaluation import TASKS, BlimpTask, EvaluationTask, GradedModel, MinimalPair, run_task, task_named
from heddle.tasks.evaluation.registry import bootstrap_intervals

OWN = """
from pathlib import Path

import heddle

@heddle.register_task
class Vowels(heddle.EvaluationTask):
    name = "vowels"

    def examples(self, path):
        return Path(path).read_text().split()

    def predict(self, graded, examples):
        return ["a" in one for one in examples]

    def metrics(self, predictions, examples):
        return {"share": sum(predictions) / len(predictions)}
"""


class Coins(EvaluationTask):
    """Right with some probability, whatever the model."""

    name = "coins"

    def examples(self, path: str) -> list[Any]:
        return list(range(int(path)))

    def predict(self, graded: GradedModel, examples: Sequence[Any]) -> list[Any]:
        draw = random.Random(len(examples))
        return [draw.random() < 0.7 for _ in examples]

    def metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return {"accuracy": sum(predictions) / len(predictions)}


def test_the_interval_of_a_mean_is_that_of_the_binomial() -> None:
    task = Coins()
    predictions = task.predict(None, range(400))  # type: ignore[arg-type]
    low, high = bootstrap_intervals(task, predictions, range(400))["accuracy"]
    mean = sum(predictions) / 400
    half = 1.96 * math.sqrt(mean * (1 - mean) / 400)
    assert (mean - low, high - mean) == pytest.approx((half, half), rel=0.25)
    assert bootstrap_intervals(task, predictions, range(400)) == {"accuracy": (low, high)}


def test_minimal_pairs_are_judged_by_the_log_probability_of_the_sentences(tmp_path: Path) -> None:
    lm = LM(loud_model(config()), TOKENIZER)
    draw = random.Random(0)
    texts = ["".join(draw.choices("abc d", k=9)) for _ in range(40)]
    pairs = [
        MinimalPair(good, bad, f"p{n % 3}") for n, (good, bad) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    found = BlimpTask().predict(GradedModel(lm.model, lm.tokenizer), pairs)
    want = [lm.score(one.good).logprob > lm.score(one.bad).logprob for one in pairs]
    assert found == want and {True, False} == set(found)
    uneven = [MinimalPair("a", "b", "x")] * 3 + [MinimalPair("a", "b", "y")]
    assert BlimpTask().metrics([True, True, True, False], uneven) == {"accuracy": 0.5}  # a mean over paradigms


@pytest.mark.parametrize(
    ("task", "name", "text", "gold"),
    [
        ("tag", "a.conll", "Ann B-PER\nis O\n\nEve B-PER\n\n", [["B-PER", "O"], ["B-PER"]]),
        ("answer", "a.jsonl", json.dumps({"question": "who?", "context": "It was Ann.",
         "answers": [{"text": "Ann", "answer_start": 7}]}) + "\n", ["Ann"]),
    ],
)  # fmt: skip
def test_gold_predictions_score_1(task: str, name: str, text: str, gold: list[Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    examples = TASKS[task].examples(str(tmp_path / name))
    assert set(TASKS[task].metrics(gold, examples).values()) == {1.0}


def test_a_run_is_graded_and_keeps_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_encoders(Path("runs"))
    Path("a.csv").write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(20)))
    words = ["evaluate", "-m", "classifier", "--task", "classify", "--data", "a.csv"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 20 and found["intervals"]["accuracy"][0] <= found["accuracy"]
    assert main(words) == 0 and "accuracy" in capsys.readouterr().out
    kept = [json.loads(line) for line in Path("runs/classifier/evaluations.jsonl").read_text().splitlines()]
    assert len(kept) == 2 and kept[0]["accuracy"] == kept[1]["accuracy"] == found["accuracy"]
    assert main(["classify", "a.csv", "-m", "classifier", "--reference", "a.csv"]) == 0  # the verb grades alike
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"] == found["accuracy"]


def test_a_task_of_the_users_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "config"))
    save_run(Path("runs/one"))
    Path("own.py").write_text(OWN)
    Path("words.txt").write_text("banana fig apple kiwi")
    try:
        assert main(["evaluate", "--task", "vowels", "--data", "words.txt", "--use", "own.py", "--json"]) == 0
    finally:
        TASKS.pop("vowels", None)
    assert json.loads(capsys.readouterr().out)["share"] == 0.5


def test_wrong_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task: want one of answer, blimp"):
        task_named("nosuch")
    for wrong in (type("Bare", (EvaluationTask,), {}), int):
        with pytest.raises(UsageError, match="want a class of EvaluationTask with a name"):
            heddle.register_task(wrong)
    with pytest.raises(UsageError, match="the library has a task called 'blimp'"):
        heddle.register_task(type("Mine", (BlimpTask,), {"name": "blimp"}))
    lm = LM(loud_model(config()), TOKENIZER)
    with pytest.raises(UsageError, match="task coins: want 3 predictions, got 0"):
        short = type("Short", (Coins,), {"predict": lambda *_: []})()
        run_task(short, GradedModel(lm.model, lm.tokenizer), "3")
