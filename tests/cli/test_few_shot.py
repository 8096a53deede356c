"""classify and answer prompt a language model with examples from files, and grade what it chooses or writes."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from cli.runs import config, save_run

import heddle
from heddle.cli.main import main

ROWS = [("so good", "yes"), ("so bad", "no"), ("fine", "yes"), ("poor", "no")]
QUESTIONS = [
    {"qId": "1", "qText": "who is he?", "answers": ["Ann", "Eve"]},
    {"qId": "2", "qText": "where is it?", "answers": ["Rome"]},
]
TEMPLATE = r"{text}: {label}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(Path("runs/lm"), config(context=160))
    Path("few.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    Path("test.csv").write_text("text,label\nnice,yes\nbad one,no\nc c,no\n")
    Path("pairs.jsonl").write_text(json.dumps({"text": "a", "pair": "b", "label": "yes"}) + "\n")
    Path("new.txt").write_text("nice\n\nbad one\n")
    Path("web.json").write_text(json.dumps(QUESTIONS))
    Path("web.json.gz").write_bytes(gzip.compress(json.dumps(QUESTIONS).encode()))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main([*words]) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_texts_are_classified_with_examples_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        capsys, "classify", "new.txt", "--examples", "few.csv", "-k", "2", "--template", TEMPLATE, "--seed", "3"
    )
    lm = heddle.load("runs/lm")
    want = lm.classify(["nice", "bad one"], examples=ROWS, k=2, seed=3, template="{text}: {label}\n")
    assert [(one["line"], one["label"], one["examples"]) for one in found] == [
        (n, w.label, 2) for n, w in zip((1, 3), want, strict=True)
    ]
    assert found[0]["probabilities"] == pytest.approx(want[0].probabilities, rel=1e-4)
    *lines, grades = run(
        capsys, "classify", "test.csv", "--labels", "yes, no", "--calibrate", "--reference", "test.csv"
    )
    assert grades["graded"] == 3 == len(lines) and grades["accuracy"] in (0, 1 / 3, 2 / 3, 1)
    worded = run(capsys, "classify", "new.txt", "--labels", "1=yes,0=no", "--template", TEMPLATE)
    plain = run(capsys, "classify", "new.txt", "--labels", "yes,no", "--template", TEMPLATE)
    assert [one["probabilities"]["1"] for one in worded] == [one["probabilities"]["yes"] for one in plain]


def test_questions_are_answered_from_memory_and_graded(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--examples", "web.json", "-k", "1", "--max-tokens", "4")
    *found, grades = run(capsys, "answer", "web.json.gz", *options, "--reference", "web.json")
    want = heddle.load("runs/lm").answer(
        ["who is he?", "where is it?"], examples=[("who is he?", "Ann"), ("where is it?", "Rome")], k=1, max_tokens=4
    )
    assert [one["text"] for one in found] == [one.text for one in want]
    assert grades == {"graded": 2, "exact_match": 0.0, "f1": 0.0}
    Path("gold.jsonl").write_text(
        "".join(json.dumps({"question": "?", "answers": ["x", one.text]}) + "\n" for one in want)
    )
    Path("asked.txt").write_text("who is he?\nwhere is it?\n")
    *_, grades = run(capsys, "answer", "asked.txt", *options, "--reference", "gold.jsonl")
    assert grades["exact_match"] == 1.0  # one of several right answers
    Path("asked.jsonl").write_text(json.dumps({"question": "who?", "context": "It was Ann."}) + "\n")
    assert run(capsys, "answer", "asked.jsonl", "-k", "0")[0]["examples"] == 0


WRONG = {
    "classify new.txt --labels yes": "labels: want two or more, by name or as the labels of examples, got 'yes'",
    "classify new.txt --labels a,,b": "--labels: want different names with commas between them, got 'a,,b'",
    "classify new.txt --labels a,b -k 1": "-k: want 0 to 0, the number of examples, got 1",
    "classify new.txt -k 1": "-k: has no effect without --labels or --examples",
    "classify new.txt --calibrate": "--calibrate: has no effect without --labels or --examples",
    "classify new.txt --examples nosuch.csv": "nosuch.csv: no such file",
    "classify new.txt --examples few.csv --labels yes,maybe": "examples: want labels from yes, maybe, got 'no'",
    "classify new.txt --examples few.csv --template {text}": "--template: want a text with {text} and, as its last",
    "classify new.txt --labels a,b --template '{pair} {text} {label}'": "want no {pair}, as the texts have none",
    "classify pairs.jsonl --examples few.csv": "examples: want a pair for each, as the texts have one",
    "classify new.txt --labels a,b -m bert": "labels: want a model that writes text, got an encoder",
    "answer web.json -k 0 -m bert": "want an autoregressive model; an encoder only scores and embeds texts",
    "answer web.json -k 3": "-k: has no effect without --examples",
    "answer web.json --seed 3": "--seed: has no effect without --examples",
    "answer web.json --examples few.csv": "few.csv:1: want valid JSON",
    "answer web.json --examples unanswered.jsonl": "unanswered.jsonl: want questions with answers, found none",
    "answer wrong.json -k 0": "wrong.json:1: want a list of texts in 'answers', found '[3]'",
    "answer web.json -k 0 --must": "--must: has no effect on answers that are generated",
    "answer web.json -k 0 --max-tokens 0": "--max-tokens: want at least 1, got 0",
    "answer few.jsonl -k 0": "few.jsonl:1: want a question in 'question' or 'qText' or 'text', found the fields a",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_refused_in_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "bert" in words:
        save_run(Path("runs/bert"), config("bert-base"))
    Path("unanswered.jsonl").write_text('{"question": "who?"}\n')
    Path("few.jsonl").write_text('{"a": 1}\n')
    Path("wrong.json").write_text('[{"question": "who?", "answers": [3]}]')
    model = [] if "-m" in words else ["-m", "lm"]
    assert main([*shlex.split(words), *model]) in (1, 2)
    heard = capsys.readouterr().err
    assert WRONG[words] in heard and "Traceback" not in heard
