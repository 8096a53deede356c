"""The few-shot record goes on where it stopped, chooses on validation rows alone, and shows what its lines say."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runs import config, save_run
from scripts import script


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_a_record_is_resumed_and_the_test_rows_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark, data, out = script("few_shot"), tmp_path / "data", tmp_path / "out"
    (data / "cls-sst2").mkdir(parents=True)
    (data / "qa-webquestions").mkdir()
    for part, count in {"train": 30, "dev": 8, "test": 10}.items():
        rows = "".join(f"text {part} {i}\t{i % 3 % 2}\n" for i in range(count))
        (data / "cls-sst2" / f"sentiment-{part}.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    for part in ("trainmodel", "test"):
        asked = [{"qId": str(i), "qText": f"who {i}?", "answers": ["Ann", "Eve"][: 1 + i % 2]} for i in range(6)]
        (data / "qa-webquestions" / f"{part}.json.gz").write_bytes(gzip.compress(json.dumps(asked).encode()))
    save_run(tmp_path / "run", config(context=512))
    words = ["few_shot.py", "run", str(data), str(out), "--model", f"one={tmp_path / 'run'}", "--k", "0", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--orders", "2", "--tasks", "sst2", "webquestions"])
    benchmark.main()
    found = lines(out)
    tested = [line for line in found if line["part"] == "test" and line["task"] == "sst2"]
    assert [(line["k"], line["order"]) for line in tested] == [(0, 0), (2, 0), (2, 1)]
    for line in tested:
        tried: dict[bool, list[float]] = {False: [], True: []}
        for one in found:
            if one["part"] == "valid" and one["k"] == line["k"]:
                tried[one["calibrate"]].append(one["accuracy"])
        assert np.mean(tried[line["calibrate"]]) == max(map(np.mean, tried.values()))
        assert benchmark.unpacked(line).mean() == pytest.approx(line["accuracy"]) and line["floor"] == 0.7
    assert next(line["floor"] for line in found if line["task"] == "webquestions") == 1.0  # Ann is always right
    whole = (out / "results.jsonl").read_text()
    (out / "results.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]) + '{"model": "on')
    monkeypatch.setattr(benchmark, "classify", lambda *_: pytest.fail("done already"))
    capsys.readouterr()
    benchmark.main()
    assert lines(out) == found
    assert "| one | sst2 | 2 | 10 |" in capsys.readouterr().out


def test_an_interval_is_that_of_the_mean_over_rows() -> None:
    benchmark = script("few_shot")
    draw = np.random.default_rng(0)
    matrix = (draw.random((5, 400)) < draw.random(400)).astype(float)
    low, high = benchmark.interval(matrix)
    half = 1.96 * matrix.mean(0).std() / 20
    assert (matrix.mean() - low, high - matrix.mean()) == pytest.approx((half, half), rel=0.2)
    assert benchmark.spaced(range(10), 3) == [0, 3, 6] and benchmark.spaced(range(2), None) == [0, 1]
