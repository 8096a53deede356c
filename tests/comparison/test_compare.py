"""Comparisons from end to end: plan, runs, resume after kills, results, report, refusals."""

import csv
import json
import math
import random
import re
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from comparison.conftest import COMMAND, SETTINGS, heddle, result, write_text_to_learn

import heddle as heddle_package
from heddle.cli.main import main
from heddle.comparison.plan import CONTROLS, chosen, config_hash
from heddle.comparison.suites import SUITES, set_fields
from heddle.core.system import parse_overrides

TIMES = ("gpu_s", "tokens_s", "peak_gib", "wall_s")
SCIENCE = [
    "suite", "variant", "config_hash", "diff", "seed", "arm", "data_hash", "valid_hash", "tokenizer_hash", "params",
    "active_params", "flops_token", "steps", "tokens", "rate", "optimizer", "gpu_s", "tokens_s", "peak_gib",
    "loss_valid", "loss_test", "status", "guard_skips", "commit", "device", "torch",
]  # fmt: skip
RATIOS = (("_test", "test"), ("", "valid"))  # bits per byte, and nats, of the same rows
RESULTS = Path("comparisons", "first", "results.csv")
NAMES = ("base", "norm:layer_norm")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def table(path: Path) -> list[dict[str, str]]:
    """Read results.csv without what may differ between two runs, and without the controls, which cost time."""
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if "control" not in row["variant"]]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def test_a_suite_says_what_it_will_do_and_writes_every_run(small: tuple[Path, str]) -> None:
    folder, text = small
    plan = text.splitlines()
    assert plan[0] == "suite first: 1 variants and base, 2 seeds, arms tokens"
    assert plan[1] == "8 runs of 27 to 30 steps, 128 tokens a step; 8 to go"
    assert "is found in 80 % of cases" in plan[2] and plan[3].startswith("time: about ")
    rows = list(csv.DictReader((folder / RESULTS).read_text().splitlines()))
    assert list(rows[0])[: len(SCIENCE)] == SCIENCE
    assert [row["status"] for row in rows] == ["done"] * 8
    variants = ["base", "control: 90 % of the tokens", "control: base again", "norm:layer_norm"]
    assert [(row["variant"], row["seed"]) for row in rows] == [(name, seed) for name in variants for seed in "01"]
    for row in rows:
        assert 0 < float(row["loss_test"]) < 6 and row["loss_test"] != row["loss_valid"]
        of_test, of_valid = (float(row[f"bits_per_byte{x}"]) / float(row[f"loss_{y}"]) for x, y in RATIOS)
        assert of_test != of_valid and of_test == pytest.approx(of_valid, rel=0.2)  # each by the bytes of its own rows
        assert (row["diff"] != "") == row["variant"].startswith("norm")
    assert (folder / RESULTS).with_name("report.html").exists()


def test_seeds_pair_runs_and_controls_differ_where_they_should(small: tuple[Path, str]) -> None:
    """The base again reads the same data with other weights; fewer tokens are fewer steps of the same run."""
    folder = small[0] / "comparisons" / "first" / "runs"
    configs = [json.loads(path.read_text())["config"] for path in sorted(folder.glob("*/job.json"))]
    again = [one for one in configs if one["weight_seed"] is not None]
    assert [(one["seed"], one["weight_seed"]) for one in again] == [(0, 1000), (1, 1001)]
    assert sorted(one["training"]["steps"] for one in configs) == [27] * 2 + [30] * 6
    assert {one["hardware"]["threads"] for one in configs} == {1}


def test_what_is_done_is_never_run_again(small: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = small
    before = (folder / "comparisons/first/runs.jsonl").read_bytes()
    text = result(heddle(folder, *COMMAND))
    assert "; 0 to go" in text and "[1/8]" not in text
    assert (folder / "comparisons/first/runs.jsonl").read_bytes() == before
    results = (folder / RESULTS).read_bytes()
    (folder / RESULTS).unlink()
    assert "wrote " in result(heddle(folder, "compare", "--report", "comparisons/first"))
    assert (folder / RESULTS).read_bytes() == results


def test_a_folder_is_restored_from_its_ledger_alone_and_python_gives_the_verdicts_as_a_table(
    small: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = small
    monkeypatch.chdir(folder)
    (tmp_path / "runs.jsonl").write_bytes((folder / "comparisons/first/runs.jsonl").read_bytes())
    overrides = dict(parse_overrides(SETTINGS))
    rows = heddle_package.compare("first", ["norm:layer_norm"], overrides=overrides, out=tmp_path)
    assert (tmp_path / "results.csv").read_bytes() == (folder / RESULTS).read_bytes()
    assert not (tmp_path / "runs").exists()  # nothing was trained
    found = rows.to_dict("records") if find_spec("pandas") else list(rows)
    assert {row["variant"] for row in found} == {"norm:layer_norm", *CONTROLS}
    shown = next(row for row in found if row["variant"] == "norm:layer_norm")
    losses = {v: [float(r["loss_test"]) for r in table(folder / RESULTS) if r["variant"] == v] for v in NAMES}
    want = [sum(map(math.log, losses[name])) / 2 for name in NAMES]
    assert shown["effect"] == pytest.approx(want[1] - want[0]) and shown["arm"] == "tokens"
    assert "heddle.compare(&#x27;first&#x27;, [&#x27;norm:layer_norm" in (tmp_path / "report.html").read_text()


def test_the_logs_of_all_runs_are_one_file(small: tuple[Path, str]) -> None:
    folder = small[0] / "comparisons" / "first"
    logs = [json.loads(line) for line in (folder / "logs.jsonl").read_text().splitlines()]
    results = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert [log["key"] for log in logs] == [one["key"] for one in results] and len(logs) == 8
    for log, one in zip(logs, results, strict=True):
        last = [line["validation_loss"] for line in log["metrics"] if "validation_loss" in line][-1]
        assert last == one["loss_valid"] and log["config"]["seed"] == one["seed"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; make browser installs it and looks at a report closely")
def test_a_browser_shows_the_losses_of_the_runs(small: tuple[Path, str], tmp_path: Path) -> None:
    page = (small[0] / RESULTS).with_name("report.html").resolve().as_uri()
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    shown = subprocess.run([*words, page], capture_output=True, text=True, timeout=60, check=True).stdout
    for name in NAMES:
        losses = [float(row["loss_test"]) for row in table(small[0] / RESULTS) if row["variant"] == name]
        (found,) = re.findall(rf'<tr data-variant="{name}">.*?<td class="n">([\d.]+) ', shown)
        assert float(found) == pytest.approx(sum(losses) / 2, abs=6e-5)


def killed_and_resumed(folder: Path, kills: int, seed: int) -> int:
    """Kill a comparison at random moments and start it again; return how many kills it took."""
    draw, killed = random.Random(seed), 0
    while killed < kills:
        process = heddle(folder, *COMMAND, "--no-controls", "--processes", "1")
        time.sleep(draw.uniform(2.0, 8.0))
        process.kill()
        text = process.communicate()[0]
        assert process.returncode in (-9, 0), text
        if process.returncode == 0:
            break
        killed += 1
    result(heddle(folder, *COMMAND, "--no-controls", "--processes", "1"))
    return killed


def test_five_kills_change_nothing(small: tuple[Path, str], tmp_path: Path) -> None:
    write_text_to_learn(tmp_path)
    assert killed_and_resumed(tmp_path, 5, 1) > 0
    assert table(tmp_path / RESULTS) == table(small[0] / RESULTS)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_thirty_kills_change_nothing(small: tuple[Path, str], tmp_path: Path) -> None:
    killed = 0
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_text_to_learn(folder)
        killed += killed_and_resumed(folder, min(5, 30 - killed), number)
        assert table(folder / RESULTS) == table(small[0] / RESULTS)
        if killed >= 30:
            return
    assert killed >= 30


# --- refusals ---------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[str], str]] = {
    "unknown suite": (["pockets"], r"no suite is called 'pockets'.*pocket"),
    "unknown variant": (["pocket", "layernorm"], r"suite pocket: no variant is called 'layernorm'.*layer_norm"),
    "unknown part": (["first", "norm:rms_nrm"], r"swap.norm.kind: want .* got 'rms_nrm'.*rms_norm"),
    "unknown family": (["first", "nrm:rms_norm"], r"swap: want one of .* got 'nrm'"),
    "equal to its base": (["equal.yaml"], r"same: equal to the base"),
    "the same twice": (["first", "norm:none", "norm:none"], r"two variants are called 'norm:none'"),
    "budget below a step": (
        ["pocket", "budget.tokens=100"],
        r"base: a budget of 100 tokens, 1,024 a step, does",
    ),
    "two budgets": (["suite.yaml"], r"budget: want one of steps, tokens, flops and seconds, got 'steps and tokens'"),
    "no seeds": (["pocket", "seeds=0"], r"seeds: want at least 1, got 0"),
    "nats across vocabularies": (["other.yaml"], r"small: changes tokenizer, so its loss in nats would be of other"),
    "no variants": (["first"], r"first: want what to change in it"),
    "unknown arm": (["pocket", "arms=toknes"], r"arms.0: want one of tokens, rate, time, got 'toknes'"),
    "speeds unknown": (
        ["pocket", "arms=time"],
        r"equal seconds need the speed of each variant; run with",
    ),
    "unknown executor": (["pocket", "--executor", "slurm"], r"executor: want one of local, ray, got 'slurm'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_suites_are_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    two = {"budget": {"steps": 3, "tokens": 5}}
    suite: dict[str, Any] = {"name": "mine", "variants": [{"name": "small", "set": ["tokenizer.vocab=300"]}]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite | two))
    (tmp_path / "other.yaml").write_text(json.dumps(suite))
    (tmp_path / "equal.yaml").write_text(json.dumps(suite | {"variants": [{"name": "same"}]}))
    words, want = BAD[name]
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(want, error), error
    assert not list(tmp_path.glob("comparisons/*/runs*"))


# --- names of runs ----------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_what_is_trained_and_by_nothing_else() -> None:
    base = SUITES["pocket"]().base
    name = config_hash(base)
    for same in ("seed=5", "training.steps=7", "every.log=3", "hardware.threads=2", "name=other"):
        assert config_hash(set_fields(same)(base)) == name, same
    others = ("training.batch=16", "model.layers=3", "validation_rows=7", "objective.z_loss=1e-4", "rows.length=64")
    assert len({name, *(config_hash(set_fields(other)(base)) for other in others)}) == len(others) + 1
    written = json.dumps(chosen(base))
    assert "z_loss" not in written  # as usual: a later setting with a default leaves old names alone
