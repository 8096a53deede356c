"""Text tasks: rows as they are split and tagged, which runs come next, and what is opened once."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


def test_words_and_tags_are_read_and_become_iob2(tmp_path: Path) -> None:
    from text_task_data import sentences

    text = "-DOCSTART- -X- -X- O\n\nAnn NNP I-NP I-PER\nBerg NNP I-NP I-PER\nLi NNP I-NP B-PER\n\nOslo NNP I-NP I-LOC\n"
    (tmp_path / "rows.gz").write_bytes(gzip.compress(text.encode()))
    assert sentences(tmp_path / "rows.gz") == [
        {"tokens": ["Ann", "Berg", "Li"], "tags": ["B-PER", "I-PER", "B-PER"]},
        {"tokens": ["Oslo"], "tags": ["B-LOC"]},
    ]


def test_equal_texts_stay_on_one_side() -> None:
    from text_task_data import carve

    rows = [{"text": str(number % 20), "label": str(number)} for number in range(60)]
    train, valid = carve(rows, 13)
    assert len(train) + len(valid) == 60 and len(valid) == 15
    assert not {row["text"] for row in train} & {row["text"] for row in valid}


def test_half_of_the_second_sentences_follow_the_first() -> None:
    from text_task_data import sentence_pairs

    articles = [" ".join(f"This is sentence {n} of article {a}." for n in range(5)) for a in range(4)]
    pairs = sentence_pairs(articles, 40, "x")
    follows = [
        pair["pair"].split()[-1] == pair["text"].split()[-1]
        and int(pair["pair"].split()[3]) == int(pair["text"].split()[3]) + 1
        for pair in pairs
    ]
    assert follows == [pair["label"] == "next" for pair in pairs] and sum(follows) == 20


def test_the_best_rate_is_tested_with_every_seed_after_all_rates_are_known(tmp_path: Path) -> None:
    from text_task_runs import Results, Start, next_jobs, tidy

    starts = [Start("x", ("trec",), {0: "m", 1: "n"}, (1e-4, 1e-5))]
    results = Results(tmp_path / "results.jsonl")
    folders = [tmp_path / "runs" / f"x-trec-{rate}-0" / "checkpoints" for rate in ("0.0001", "1e-05")]
    for folder in folders:
        folder.mkdir(parents=True)

    def done(rate: float, seed: int, **more: Any) -> None:
        results.add({"label": "x", "task": "trec", "rate": rate, "seed": seed, "valid": 0.5, **more})
        tidy(results, starts, tmp_path)

    assert [(job.rate, job.seed, job.tested) for job in next_jobs(results, starts, tmp_path)] == [
        (1e-4, 0, False),
        (1e-5, 0, False),
    ]
    done(1e-4, 0)
    assert [job.rate for job in next_jobs(results, starts, tmp_path)] == [1e-5], "no test before all rates are known"
    assert all(folder.exists() for folder in folders), "either may still be the best"
    done(1e-5, 0, valid=0.9)
    tests = [(job.rate, job.seed, job.tested, job.init) for job in next_jobs(results, starts, tmp_path)]
    assert tests == [(1e-5, 0, True, "m"), (1e-5, 1, True, "n")], "each seed from its own start"
    assert [folder.exists() for folder in folders] == [False, True], "the rate that lost is opened no more"
    done(1e-5, 0, valid=0.9, test={"accuracy": 0.8})
    assert not folders[1].exists()
    again = Results(tmp_path / "results.jsonl")  # a later call
    assert [(job.seed, job.tested) for job in next_jobs(again, starts, tmp_path)] == [(1, True)]
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])["commit"]


def test_a_rate_that_failed_does_not_keep_the_others_from_their_tests(tmp_path: Path) -> None:
    from text_task_runs import Results, Start, next_jobs

    starts = [Start("x", ("trec",), {0: "m"}, (1e-4, 1e-5))]
    results = Results(tmp_path / "results.jsonl")
    results.add({"label": "x", "task": "trec", "rate": 1e-5, "seed": 0, "valid": 0.5})
    results.failed.add(("x", "trec", 1e-4, 0))
    assert [(job.rate, job.tested) for job in next_jobs(results, starts, tmp_path)] == [(1e-5, True)]


def test_warm_up_is_shorter_than_the_run(tmp_path: Path) -> None:
    from text_task_data import write_rows
    from text_task_runs import Start, settings_of

    write_rows(tmp_path / "trec" / "train.jsonl.xz", ({"text": "a", "label": "b"} for _ in range(64)))
    for given in ({}, {"training.steps": 1}, {"training.batch": 8}):
        own = settings_of(Start("x", ("trec",), {0: "m"}, overrides=given).job(tmp_path, "trec", 1e-4, 0))
        assert own["training.schedule.warmup"] < own["training.steps"]
        assert own["rows.batch"] == own["training.batch"]


def test_the_rows_of_text_tasks_are_those_of_the_teacher(tmp_path: Path) -> None:
    from distillation_report import lines_of

    line = {"label": "scratch", "task": "trec", "rate": 1e-4, "seed": 0, "test": {"accuracy": 0.5}}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert [one["label"] for one in lines_of(tmp_path)] == ["teacher"]


def test_a_language_model_learns_summaries_as_conversations_and_replies_as_lines(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu", reason="retrieve_and_edit.py grades by sacrebleu")
    from text_task_chats import chat_settings, write_chats
    from text_task_data import read_rows, write_rows

    for part in ("train", "valid"):
        write_rows(tmp_path / "samsum" / f"{part}.jsonl.xz", [{"text": "A: Hi.\nB: Bye.", "summary": "A met B."}])
        (tmp_path / "edit").mkdir(exist_ok=True)
        row = {"text": "How are you?", "target": "Fine.", "prototype": "", "dialogue": "1"}
        (tmp_path / "edit" / f"{part}.none.jsonl").write_text(json.dumps(row) + "\n")
    for task in ("samsum_chat", "dialogue_chat"):
        write_chats(tmp_path, task)
        assert Path(chat_settings(task, tmp_path)["data.sources"][0]["path"]).exists()
    (chat,) = read_rows(tmp_path / "samsum_chat" / "train.jsonl.xz")
    assert [turn["role"] for turn in chat["messages"]] == ["user", "assistant"]
    assert chat["messages"][0]["content"].endswith("A: Hi.\nB: Bye.")
    assert chat["messages"][1]["content"] == "A met B."
    assert read_rows(tmp_path / "dialogue_chat" / "train.jsonl.xz") == [{"text": "How are you?\nFine."}]
