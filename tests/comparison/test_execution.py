"""Execution: slots, runs that would end too late, logs that a kill has cut off."""

import json
import subprocess
import sys
import time
import typing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from heddle.comparison.execution import Job, Limit, StepSpeed, keep_log, local, pilot_worker
from heddle.comparison.execution.ledger import Result
from heddle.comparison.execution.local import LocalExecutor
from heddle.comparison.execution.training_slots import TOO_LATE, TooLate, TrainingSlot, TrainingSlots
from heddle.comparison.execution.worker import PROBED, WARM, Measure
from heddle.comparison.suites import SUITES, choose_suite
from heddle.training.loop import Report, Trainer


def test_only_so_many_hold_a_turn_and_it_passes_on_when_one_ends(tmp_path: Path) -> None:
    slots = TrainingSlots(str(tmp_path), at_once=2)
    first, second, third = TrainingSlot(slots), TrainingSlot(slots), TrainingSlot(slots)
    for slot in (first, second):
        slot.take(lambda: False)
        assert slot.is_held and slot.waited < 1
    until = time.monotonic() + 0.2
    third.take(lambda: time.monotonic() > until)  # told to stop while it waits
    assert not third.is_held and third.waited >= 0.2
    second.release()
    third.take(lambda: False)
    assert third.is_held and not second.is_held


def test_the_turn_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from heddle.comparison.execution.training_slots import TrainingSlot, TrainingSlots\n"
        "slot = TrainingSlot(TrainingSlots(sys.argv[1], 1)); slot.take(lambda: False)\n"
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    slot, until = TrainingSlot(TrainingSlots(str(tmp_path), 1)), time.monotonic() + 0.1
    slot.take(lambda: time.monotonic() > until)
    assert not slot.is_held
    process.kill()
    process.communicate()
    slot.take(lambda: time.monotonic() > until + 5)
    assert slot.is_held


def test_a_run_that_would_end_too_late_leaves_and_one_that_ends_in_time_stays() -> None:
    slot = TrainingSlot(TrainingSlots(until=time.time() + 100))
    slot.check(80)
    with pytest.raises(TooLate):
        slot.check(95)  # validations come on top
    TrainingSlot(TrainingSlots()).check(1e9)  # no limit: what takes longer is saved


def test_on_a_gpu_a_step_is_timed_between_two_moments_at_which_nothing_is_left_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Laps say nothing there: launching runs ahead of the device, by hundreds of steps where graphs are replayed."""
    waits: list[int] = []

    def wait() -> None:
        waits.append(1)
        time.sleep(0.24 if len(waits) == 2 else 0)  # what the device still has to do after steps of no time at all

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    trainer = typing.cast(Trainer, SimpleNamespace(steps=1000, step=0, signals=SimpleNamespace(caught=None)))
    measure = Measure(TrainingSlots(until=time.time() + 5))
    measure.before_fit(trainer)
    with pytest.raises(TooLate):  # 1,000 steps of 10 ms
        for _ in range(40):
            trainer.step += 1
            measure.after_step(trainer, typing.cast(Report, None))
    assert measure.step_seconds() == pytest.approx(0.24 / (PROBED - WARM), rel=0.2) and len(measure.laps) == PROBED


def job(folder: Path, number: int) -> Job:
    """Return a job that nobody will train."""
    return Job(folder / str(number), {"name": "run", "training": {"steps": 3}}, {"key": f"k{number}"}, cost=1.0)


def test_runs_that_left_are_no_failures_and_are_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two variants of two runs each, all would end too late: each is tried once, nothing is counted."""
    started: list[Path] = []

    def leave_at_once(log: Path, processes: int) -> "subprocess.Popen[bytes]":
        started.append(log)
        code = f"import sys; sys.stdin.readline(); sys.exit({TOO_LATE})"
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)

    monkeypatch.setattr(local, "start_process", leave_at_once)
    groups = [[job(tmp_path, 0), job(tmp_path, 1)], [job(tmp_path, 2), job(tmp_path, 3)]]
    results: list[Result] = []
    limit = Limit(60, whole=True)
    LocalExecutor(2).run(groups, limit, results.append, lambda running, waiting: None)
    assert results == [] and len(started) == 2
    assert limit.late == {"k0", "k1", "k2", "k3"}
    assert not limit.allows(groups[0][0]) and limit.until is not None and limit.until > time.time()


COMPILER = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.stdin.readline().strip()).parent
time.sleep(json.loads((folder / "job.json").read_text())["cost"])
(folder / "ready").touch()
sys.stdin.readline()
speed = {"seconds": 0.01, "first_seconds": 1.0, "peak_gib": 0.0, "reason": ""}
(folder / "speed.json").write_text(json.dumps(speed))
"""


@pytest.mark.parametrize(("seconds", "shortest"), [(None, 1.0), (8, 60.0)], ids=["far slower", "share is over"])
def test_a_pilot_does_not_wait_for_the_slowest_compilation(
    seconds: float | None, shortest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler(log: Path, processes: int, module: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", COMPILER], stdin=subprocess.PIPE)

    monkeypatch.setattr(pilot_worker, "start_process", compiler)
    monkeypatch.setattr(pilot_worker, "SHORTEST", shortest)
    jobs = {f"{n}": replace(job(tmp_path, n), cost=cost) for n, cost in enumerate((0.0, 120.0, 0.1, 0.0))}
    began, found = time.monotonic(), dict[str, StepSpeed]()
    pilot_worker.measure_in_waves(jobs, 3, Limit(seconds), lambda name, speed: found.update({name: speed}))
    assert time.monotonic() - began < 20
    assert [found[name].seconds for name in ("0", "2", "3")] == [0.01] * 3, "the next wave is measured too"
    assert found["1"].reason.startswith("stopped: it compiled for longer than its share")


def test_a_log_that_a_kill_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    one = Job(tmp_path / "a", {"name": "run"}, {"key": "a", "variant": "v", "seed": 0, "arm": "tokens"})
    one.run.mkdir(parents=True)
    (one.run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    (tmp_path / "logs.jsonl").write_text('{"key": "z", "met')
    keep_log(tmp_path, one)
    cut, whole = (tmp_path / "logs.jsonl").read_text().splitlines()
    assert cut == '{"key": "z", "met' and json.loads(whole)["metrics"] == [{"step": 1, "loss": 2.5}]


def test_the_base_may_be_named_among_the_variants() -> None:
    chosen = choose_suite("narang", ["vanilla-transformer", "geglu"])
    assert [variant.name for variant in chosen.variants] == ["geglu"] and chosen.base_name == "vanilla-transformer"
    assert len(SUITES["narang"]().variants) == 51
