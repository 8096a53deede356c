"""heddle rescore: lists in, choices and a report out; bad lines are told and the rest is done."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.runs import save_run

from heddle.cli.main import main


def write(path: Path, *records: object) -> str:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return str(path)


def record(id: str, *texts: str, **more: Any) -> dict[str, Any]:
    scored = [{"text": text, "score": -float(i)} for i, text in enumerate(texts)]
    return {"id": id, "hyps": scored, "ref": texts[-1]} | more


@pytest.fixture
def run(tmp_path: Path) -> str:
    save_run(tmp_path / "runs" / "small")
    return str(tmp_path / "runs" / "small")


LISTS = [record(f"u{i}", "aa bb cc", "aa bb", f"aa b{i}") for i in range(6)]


def test_first_pass_alone_keeps_its_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", write(tmp_path / "n.jsonl", *LISTS), "--no-model"]) == 0
    told = capsys.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [row["index"] for row in rows] == [0] * 6
    assert rows[0] == {"id": "u0", "index": 0, "text": "aa bb cc", "total": 0.0, "scores": {"score": 0.0, "words": 3.0}}
    assert "WER 100.00 before, 100.00 after, 0.00 at best; 0 of 6 lists changed" in told.err


def test_model_and_bonus_count(tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "n.jsonl", *LISTS)
    assert main(["rescore", path, "-m", run, "--weight", "0.25", "--weight", "score=2", "--bonus", "3", "--json"]) == 0
    *rows, report = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 6 and report["lists"] == 6
    assert report["weights"] == {"score": 2.0, "small": 0.25, "words": 3.0}
    for row in rows:
        scores = row["scores"]
        assert row["total"] == pytest.approx(2 * scores["score"] + 0.25 * scores["small"] + 3 * scores["words"])


def test_tuning_finds_weights_and_they_are_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "n.jsonl", *LISTS[:3])
    dev = write(tmp_path / "dev.jsonl", *LISTS[3:])
    assert main(["rescore", path, "--no-model", "--tune", dev, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tuned, report = lines[0], lines[-1]
    assert tuned["file"] == dev and tuned["after"] < tuned["before"]
    assert report["weights"] == tuned["weights"] and report["after"] < report["before"]
    assert tuned["weights"]["words"] < 0


def test_scored_lists_are_read_again_without_the_model(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = write(tmp_path / "n.jsonl", *LISTS), str(tmp_path / "kept.jsonl")
    words = ["--weight", "small=0.25", "--json"]
    assert main(["rescore", path, "-m", run, *words, "--scored", kept]) == 0
    first = capsys.readouterr().out.splitlines()
    assert main(["rescore", kept, "--no-model", *words]) == 0
    again = capsys.readouterr().out.splitlines()
    for one, two in zip(first[:-1], again[:-1], strict=True):
        a, b = json.loads(one), json.loads(two)
        assert (a["index"], a["text"]) == (b["index"], b["text"]) and a["total"] == pytest.approx(b["total"])


def test_a_file_in_place_is_scored_twice_and_never_loses_a_line(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "n.jsonl", *LISTS)
    assert main(["rescore", path, "-m", run, "--scored", path]) == 2  # not ours
    assert "--force" in capsys.readouterr().err and Path(path).read_text().count("hyps") == len(LISTS)
    assert main(["rescore", path, "-m", run, "--scored", path, "--force"]) == 0
    once = Path(path).read_text()
    assert main(["rescore", path, "-m", run, "--scored", path]) == 0
    assert Path(path).read_text() == once
    Path(path).write_text(once + "no list\n")
    assert main(["rescore", path, "-m", run, "--scored", path]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("because it is also the input and has invalid lines")
    assert Path(path).read_text() == once + "no list\n"


def test_two_models_of_one_name_get_numbers(tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", write(tmp_path / "n.jsonl", *LISTS), "-m", run, "-m", run]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert row["scores"]["small"] == row["scores"]["small-2"]


def test_normal_form_brings_case_and_numbers_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "n.jsonl", record("a", "Mr. 5", "MISTER FIVE"))
    assert main(["rescore", path, "--no-model", "--json", "--normal", "case=upper"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["before"] == 0.0
    assert main(["rescore", path, "--no-model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["before"] == 100.0


def test_bleu_before_after_and_at_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sacrebleu")
    path = write(tmp_path / "n.jsonl", record("a", "the cat sat on a mat", "the cat sat on the mat"))
    assert main(["rescore", path, "--no-model", "--metric", "bleu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["before"] == report["after"] < 70 and report["oracle"] == pytest.approx(100.0)
    assert "version:" in report["signature"]


BAD = [
    ("{not json", "json: want valid JSON"),
    ("[1]", "want an object"),
    ({"id": 1, "candidates": []}, "candidates: want a list of one candidate or more, got []"),
    ({"candidates": [{"score": 1}]}, "candidates.0.text: want a text, got 'nothing'"),
    ({"candidates": [{"text": "a", "score": "x"}]}, "candidates.0.score: want a finite number, got 'x'"),
    ({"candidates": ["x " * (1 << 19)]}, "candidates.0.text: want at most 100,000 characters"),
    ({"candidates": [{"text": "a", "scores": {"am": 1}}]}, "scores: want score, words, found am, which has no weight"),
]


def test_bad_lines_are_told_and_the_rest_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "n.jsonl", LISTS[0], *(bad for bad, _ in BAD), "", " ", LISTS[1], "")  # blanks are no fault
    assert main(["rescore", path, "--no-model"]) == 1
    told = capsys.readouterr()
    assert [json.loads(line)["id"] for line in told.out.splitlines()] == ["u0", "u1"]
    faults = [line for line in told.err.splitlines() if line.startswith("heddle: ")]
    assert len(faults) == len(BAD)
    for number, (_, message) in enumerate(BAD, 2):
        assert any(line.startswith(f"heddle: {path}:{number}: ") and message in line for line in faults)
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weight", "much"], "weight: want a number or NAME=NUMBER, got 'much'"),
        (["--weight", "0.3"], "--weight has no effect with --no-model; only --weight NAME=W has one"),
        (["--weight", "score=1", "--weight", "score=2"], "weight: want one for every model, or for each name"),
        (["-m", "one"], "--model has no effect with --no-model"),
        (["--ending", "line"], "--ending has no effect with --no-model"),
        (["--weight", "nan"], "weight: want a number below a million, got nan"),
        (["--bonus", "nan"], "bonus: want a number below a million, got nan"),
        (["--weight", "lm=1"], "weight: want one of score, words, got 'lm'"),
        (["--normal", "case=Up"], "--normal case: want one of lower, upper, keep, got 'Up'"),
        (["--normal", "cases=up"], "did you mean 'case'"),
        (["--tune", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--scored", "no/such/folder/x"], "no/such/folder: no such folder"),
    ],
)
def test_wrong_wish_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    path = write(tmp_path / "n.jsonl", *LISTS)
    assert main(["rescore", path, "--no-model", *words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and message in told[0]


def test_tuning_without_references_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "n.jsonl", {"candidates": ["a", "b"]})
    assert main(["rescore", path, "--no-model", "--tune", path]) == 2
    assert "want one list or more with a reference, to tune on, found none" in capsys.readouterr().err


def test_scores_may_be_written_over_the_lists_themselves(tmp_path: Path) -> None:
    path = write(tmp_path / "n.jsonl", *LISTS)
    assert main(["rescore", path, "--no-model", "--scored", path, "--force"]) == 0
    kept = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [row["id"] for row in kept] == [row["id"] for row in LISTS]
    assert list(tmp_path.iterdir()) == [Path(path)]
