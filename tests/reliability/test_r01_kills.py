"""R1: the trainer is killed at random instants, most of them inside a save; it goes on by itself and ends the same."""

import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from reliability.harness import Blow, Nursery, differences, last_step, tiny, trainer_for, write_config, write_text

EVERY = 5  # steps from save to save
CALLS = 32  # of the disk in one save, about
KILLS = 6  # of one run, at most


@dataclass
class Tally:
    """What happened in all runs."""

    kills: int = 0
    aimed: int = 0
    resumed: int = 0
    most_lost: int = 0
    equal: int = 0
    runs: int = 0


def one_run(nest: Nursery, root: Path, config: Path, blows: list[Blow], tally: Tally) -> None:
    """Kill one run again and again, then let it end; count what was lost on the way."""
    run, target, kills = root / "runs" / "tiny", str(config), 0
    for blow in [*blows, None]:
        before = last_step(run)
        outcome = nest.one(root, target, blow)
        if target == str(run) and outcome.start is not None:
            tally.most_lost = max(tally.most_lost, before - outcome.start)
        if outcome.code == 0:
            break
        assert blow is not None and outcome.code == -signal.SIGKILL, outcome.said
        kills += 1
        tally.aimed += blow.place == "disk"
        target = str(run) if (run / "config.json").exists() else str(config)  # else it was killed before it began
    tally.kills += kills
    tally.resumed += kills if outcome.code == 0 else 0
    tally.runs += 1


def trial(nest: Nursery, tmp_path: Path, kills: int, aimed: int) -> Tally:
    config = write_config(tmp_path / "tiny.yaml", tiny(write_text(tmp_path / "text.txt"), every__save=EVERY))
    draw, tally = random.Random(1), Tally()
    assert nest.one(tmp_path / "whole", str(config)).code == 0
    began = time.monotonic()  # of a second run, for the first also waited for the nursery
    assert nest.one(tmp_path / "again", str(config)).code == 0
    took = time.monotonic() - began
    while tally.kills < kills:
        left, aim = kills - tally.kills, aimed - tally.aimed
        blows = [
            Blow("disk", draw.randint(1, 3 * CALLS))
            if draw.random() < aim / left
            else Blow("time", draw.uniform(0, took))
            for _ in range(min(KILLS, left))
        ]
        root = tmp_path / f"run-{tally.runs}"
        one_run(nest, root, config, blows, tally)
        found = differences(root / "runs" / "tiny", tmp_path / "whole" / "runs" / "tiny")
        assert not found, f"{root.name} differs in {found}"
        tally.equal += 1
        shutil.rmtree(root)
    return tally


def report(tally: Tally) -> str:
    return (
        f"R1: {tally.resumed}/{tally.kills} kills ({tally.aimed} inside a save) resumed unattended, at most "
        f"{tally.most_lost} of {EVERY} steps lost, {tally.equal}/{tally.runs} runs equal in every bit"
    )


def check(tally: Tally) -> None:
    print(report(tally))
    assert tally.resumed == tally.kills
    assert tally.most_lost <= EVERY
    assert tally.equal == tally.runs


def test_r01_the_harness_sees_a_run_that_differs(tmp_path: Path) -> None:
    """Two runs that part in one step of one dropout must not pass for equal, or the test below proves nothing."""
    config = tiny(write_text(tmp_path / "text.txt"), training__steps=3)
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer = trainer_for(config, tmp_path / folder / "run")
        trainer.take_step.seed = seed
        trainer.fit()
    whole = tmp_path / "a" / "run"
    assert differences(tmp_path / "b" / "run", whole) == []
    found = differences(tmp_path / "c" / "run", whole)
    assert {"model.safetensors", "optimizer.safetensors", "average.safetensors", "loss at 1"} <= set(found)


def test_r01_killed_trainers_go_on_and_end_the_same(nest: Nursery, tmp_path: Path) -> None:
    check(trial(nest, tmp_path, kills=6, aimed=4))


@pytest.mark.full
def test_r01_full(nest: Nursery, tmp_path: Path) -> None:
    tally = trial(nest, tmp_path, kills=50, aimed=35)
    check(tally)
    assert tally.kills == 50 and tally.aimed >= 35
