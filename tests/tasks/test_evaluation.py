"""Tasks by name: gold predictions score 1, intervals hold the value, the user's own task runs, runs keep results."""

import json
import lzma
import math
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runs import TOKENIZER, config, loud_model, save_run
from cli.wrong_labels import save_encoders

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, DataError, UsageError
from heddle.lm import LM
from heddle.tasks.evaluation import (
    TASKS,
    BlimpTask,
    EvaluationTask,
    GradedModel,
    MinimalPair,
    NaturalStoriesTask,
    ReadWord,
    cross_validated_gains,
    in_sentences,
    run_task,
    task_named,
)
from heddle.tasks.evaluation.registry import bootstrap_intervals

DATA = Path(__file__).parents[3] / "shared" / "data"
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


# --- few-shot, archives, reading times, tables ------------------------------------------------------------------------


def test_few_shot_tasks_grade_what_the_verbs_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(Path("runs/lm"), config(context=160))
    Path("few.csv").write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(8)))
    Path("web.json").write_text(json.dumps([{"qId": "1", "qText": "who?", "answers": ["Ann", "Eve"]}]))
    squad = {"question": "who?", "context": "It was Ann.", "answers": [{"text": "Ann", "answer_start": 7}]}
    Path("squad.jsonl").write_text(json.dumps(squad) + "\n")
    prompt = ["--examples", "few.csv", "-k", "2", "--calibrate"]
    assert main(["evaluate", "--task", "classify", "--data", "few.csv", *prompt, "--limit", "4", "--json"]) == 0
    graded = json.loads(capsys.readouterr().out)
    assert graded["examples"] == 4 and graded["prompt"] == {"examples": "few.csv", "k": 2, "calibrate": True, "seed": 0}
    lm = heddle.load("runs/lm")
    rows = [(f"text {i}", "ab"[i % 2]) for i in range(8)]
    found = lm.classify([text for text, _ in rows[::2]], examples=rows, k=2, calibrate=True)
    right = [one.label == label for one, (_, label) in zip(found, rows[::2], strict=True)]
    assert graded["accuracy"] == sum(right) / 4
    for task, data in (("webquestions", "web.json"), ("answer", "squad.jsonl")):
        few = ["--examples", data, "-k", "1"] if task == "answer" else ["-k", "0"]
        assert main(["evaluate", "--task", task, "--data", data, *few, "--json"]) == 0
        assert set(json.loads(capsys.readouterr().out)) >= {"exact_match", "f1"}
    for words, want in {
        "--task blimp --data web.json --labels a,b": "--labels: has no effect for the task blimp",
        "--task webquestions --data web.json --calibrate": "--calibrate: has no effect for the task webquestions",
        "--data few.csv -k 2": "-k: has no effect without --task",
        "--data few.csv --limit 0": "--limit: want at least 1, got 0",
        "lm": "unexpected argument: lm; runs are for --table",
        "--task naturalstories --data runs": "runs: want the folder of Natural Stories",
    }.items():
        assert main(["evaluate", *words.split()]) == 2 and want in capsys.readouterr().err


def test_a_table_holds_the_latest_result_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, values in {"one": (0.1, 0.5), "two": (0.75,), "none": ()}.items():
        save_run(Path("runs") / name)
        same = {"task": "blimp", "examples": 9, "data": "/d/b"}
        lines = [{**same, "accuracy": v, "intervals": {"accuracy": [v - 0.1, v + 0.1]}} for v in values]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        Path(f"runs/{name}/evaluations.jsonl").write_text(text + '{"task": "bl')
    assert main(["evaluate", "--table"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "blimp: 9 examples of b"
    assert [line.split()[:3] for line in shown[2:]] == [["two", "0.7500", "[0.6500,"], ["one", "0.5000", "[0.4000,"]]
    assert main(["evaluate", "--table", "one", "--json"]) == 0
    assert [json.loads(line)["accuracy"] for line in capsys.readouterr().out.splitlines()] == [0.5]
    assert main(["evaluate", "--table", "none"]) == 2 and "no run has kept an evaluation" in capsys.readouterr().err


def test_pairs_are_read_from_an_archive_as_from_its_folder(tmp_path: Path) -> None:
    pair = {"sentence_good": "a b", "sentence_bad": "b a"}
    (tmp_path / "blimp").mkdir()
    for name in ("y", "x"):
        (tmp_path / "blimp" / f"{name}.jsonl").write_text(json.dumps(pair) + "\n")
    (tmp_path / "set").mkdir()
    with tarfile.open(tmp_path / "set" / "blimp.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "blimp", "blimp")
    (tmp_path / "set" / "README.md").write_text("x")
    for place in ("set", "set/blimp.tar.xz"):
        assert BlimpTask().examples(str(tmp_path / place)) == BlimpTask().examples(str(tmp_path / "blimp"))
    (tmp_path / "set" / "blimp.tar.xz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="not an archive that can be read"):
        BlimpTask().examples(str(tmp_path / "set"))


@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data here")
def test_blimp_and_natural_stories_are_read_as_published() -> None:
    pairs = BlimpTask().examples(str(DATA / "pairs-blimp"))
    assert len(pairs) == 67_000 and len({one.paradigm for one in pairs}) == 67
    limited = BlimpTask().limited(pairs, 670)
    assert len(limited) == 670 and len({one.paradigm for one in limited}) == 67
    pytest.importorskip("wordfreq")
    words = NaturalStoriesTask().examples(str(DATA / "reading-naturalstories"))
    assert len(words) == 10_256 and [one.text for one in words[:3]] == ["If", "you", "were"]
    assert 8_000 < sum(one.predicted for one in words) < 10_000


def reading(count: int, effect: float) -> tuple[list[ReadWord], Any]:
    """Return words of four stories whose times depend on length, and on surprisal by some effect."""
    draw = np.random.default_rng(0)
    surprisal = draw.gamma(3, 2, count)
    words = []
    for i in range(count):
        text = "w" * int(draw.integers(1, 9)) + ("." if i % 9 == 8 else "")
        noise = 0.1 * draw.normal()
        time = 5.5 + 0.02 * len(text) + effect * surprisal[i] + 0.5 * effect * surprisal[i - 1] + noise
        words.append(ReadWord(text, i * 4 // count, i % (count // 4) + 1, time, -10.0 + draw.normal()))
    return in_sentences(words), surprisal


def test_surprisal_gains_where_it_matters_and_nothing_where_it_does_not() -> None:
    words, surprisal = reading(2000, 0.03)
    counted = np.array([one.predicted for one in words])
    gains = cross_validated_gains(words, surprisal)[counted]
    explained = (0.03**2 + 0.015**2) * surprisal.var()
    assert gains.mean() == pytest.approx(0.5 * math.log1p(explained / 0.1**2), rel=0.1)
    swapped = cross_validated_gains(words, np.roll(surprisal, 501))[counted]
    assert abs(swapped.mean()) < 0.01
    few, noise = reading(80, 0.0)[0], np.random.default_rng(1).normal(size=(40, 80))
    assert np.mean([cross_validated_gains(few, one).mean() for one in noise]) < -0.01  # noise fits what it is fitted to
    for roll, left in ((-1, 0.015), (1, 0.03)):  # the word before alone, or only as that word's spill-over
        shifted = cross_validated_gains(words, np.roll(surprisal, roll))[counted]
        total, rest = (0.1**2 + part * surprisal.var() for part in (0.03**2 + 0.015**2, left**2))
        assert shifted.mean() == pytest.approx(0.5 * math.log(total / rest), abs=0.03)
    assert [one.predicted for one in words[:11]] == [False, *[True] * 7, False, False, True]


def test_reading_times_are_predicted_from_the_surprisal_of_a_model(tmp_path: Path) -> None:
    pytest.importorskip("wordfreq")
    draw = random.Random(0)
    words = [(draw.choice(["a", "big", "dog", "ran", "home", "x."]), n % 30 + 1, n // 30 + 1) for n in range(120)]
    (tmp_path / "all_stories.tok").write_text("word\tzone\titem\n" + "".join(f"{w}\t{z}\t{i}\n" for w, z, i in words))
    rows = "".join(f"{w}\t{z}\t{i}\t{300 + draw.random()}\n" for w, z, i in reversed(words))
    times = f"word\tzone\titem\tgmeanItemRT\n{rows}".encode()
    (tmp_path / "processed_wordinfo.tsv.xz").write_bytes(lzma.compress(times))
    lm = LM(loud_model(config()), TOKENIZER)
    examples = NaturalStoriesTask().examples(str(tmp_path))
    found = NaturalStoriesTask().predict(GradedModel(lm.model, lm.tokenizer), examples)
    story = lm.score(" ".join(one.text for one in examples if one.story == 2))
    assert [one.surprisal for one in found[30:60]] == pytest.approx([word.surprisal for word in story.words])
    result = run_task(NaturalStoriesTask(), GradedModel(lm.model, lm.tokenizer), str(tmp_path), limit=80)
    assert result.examples == 80 and list(result.metrics) == ["loglik_gain", "correlation", "bits_per_word"]
