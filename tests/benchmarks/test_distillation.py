"""The distillation record's report: what is kept, raw and corrected for chance, with intervals over seeds."""

import json
import lzma
from pathlib import Path

import pytest
from scripts import script

pytest.importorskip("scipy", reason="the report's intervals need scipy")
made = script("distillation_report")
LABELS, interval, report, summarize = (
    made.LABELS,
    made.interval,
    made.report,
    made.summarize,
)

TEACHER = {"trec": (0.90, 0.92), "ner": (0.80, 0.80)}
STUDENT = {"trec": (0.84, 0.88), "ner": (0.76, 0.76)}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a folder of results: two tasks, two seeds; the student loses some points, the controls twice as many."""
    (tmp_path / "trec").mkdir()
    rows = [{"text": "a", "label": label} for label in "xxxyz"]
    with lzma.open(tmp_path / "trec" / "test.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    lines = []
    for label in LABELS:
        for task in TEACHER:
            for seed in (0, 1):
                lost = {"teacher": 0, "student": 1}.get(label, 2)
                score = TEACHER[task][seed] - lost * (TEACHER[task][seed] - STUDENT[task][seed])
                line = {"label": label, "task": task, "seed": seed, "valid": score}
                lines += [line | {"rate": 1e-4, "test": {"metric": score, "other": 0.0}}]
                lines += [line | {"rate": 2e-4, "valid": 0.1}] if seed == 0 else []
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_what_is_kept_is_corrected_for_the_most_frequent_class(out: Path) -> None:
    found = summarize(out, [0, 1])
    assert found["tasks"] == ["trec", "ner"] and found["chance"] == {"trec": 0.6, "ner": 0.0}
    raw = [(0.84 + 0.76) / (0.90 + 0.80), (0.88 + 0.76) / (0.92 + 0.80)]
    assert found["kept"]["raw, student"]["each"] == pytest.approx(raw)
    corrected = [(0.24 / 0.4 + 0.76) / (0.3 / 0.4 + 0.8), (0.28 / 0.4 + 0.76) / (0.32 / 0.4 + 0.8)]
    assert found["kept"]["corrected, student"]["each"] == pytest.approx(corrected)
    assert found["at_chance"] == []


def test_differences_are_paired_by_seed(out: Path) -> None:
    one = summarize(out, [0, 1])["difference"]["raw, student - masked"]
    assert one["each"] == pytest.approx([0.05, 0.04]) and one["mean"] == pytest.approx(0.045)
    assert one["interval"] == pytest.approx(interval([0.05, 0.04])) and one["interval"][0] < 0 < one["interval"][1]
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-5)


def test_a_part_of_the_runs_makes_a_part_of_the_report(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = [line for line in (out / "results.jsonl").read_text().splitlines(True) if '"random"' not in line]
    (out / "results.jsonl").write_text("".join(kept))
    report(out, [0, 1])
    said = (out / "distillation.md").read_text()
    assert "student - random" not in said and "| trec | 60.0 | 91.00 ± 1.41 | 86.00 ± 2.83 |" in said
    assert capsys.readouterr().out.strip() == said.strip()
