"""R8: the same run is the same bits in every process and under every hash seed; its losses are those that were stored;
what earlier releases saved goes on; a changed thread count is told."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import differences, write_text
from reliability.stored import HERE, LIST, SAVED, build, go_on, losses

import heddle
from heddle.checkpoints.store import open_run
from heddle.cli.main import main

STEPS, NEAR = 100, 1e-4  # relative, on another build; with fewer instructions of one chip 1e-6 was seen
BITS = 1e-7  # the same in the short form, of what should be one build: a cloud may give one name to two machines
RELEASES = sorted(path.parent.relative_to(HERE) for path in HERE.glob("*/*/expected.json"))


def start(folder: Path, text: Path, seed: int) -> "subprocess.Popen[str]":
    """Begin the fixed runs in a process of its own, under a hash seed."""
    folder.mkdir()
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    words = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).parent / "stored.py"), str(folder), str(text)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | words, stdout=subprocess.DEVNULL, stderr=pipe, text=True)


def together(tmp_path: Path, seeds: list[int]) -> list[Path]:
    """Run the fixed runs, two at a time; return their folders."""
    text = write_text(tmp_path / "text.txt")
    folders = [tmp_path / f"process-{number}" for number in range(len(seeds))]
    for first in range(0, len(seeds), 2):
        pairs = list(zip(folders, seeds, strict=True))[first : first + 2]
        for process in [start(folder, text, seed) for folder, seed in pairs]:
            said = process.communicate(timeout=120)[1]
            assert process.returncode == 0, said[-2000:]
    return [folder / "runs" for folder in folders]


def as_stored(found: list[float], wanted: dict[str, Any], which: str, exact: bool) -> bool:
    """Compare numbers with stored ones: bit for bit on the same build, nearly on another; tell which it is."""
    same = bool(wanted["build"] == build())
    near = (0.0 if exact else BITS) if same else NEAR
    assert found == pytest.approx(wanted[which], rel=near, abs=0.0), f"other {which}"
    return same


def trial(tmp_path: Path, seeds: list[int], exact: bool = False) -> None:
    """Compare runs of several processes with each other and with the stored list."""
    first, *others = together(tmp_path, seeds)
    for run in others:
        for name in ("steady", "drawn"):
            found = differences(run / name, first / name)
            assert not found, f"{run.parent.name}, {name}: differs in {found}"
            told = [(folder / name / "tokenizer.json").read_bytes() for folder in (run, first)]
            assert told[0] == told[1], f"{run.parent.name}, {name}: another tokenizer"
    found = losses(first / "steady")
    assert len(found) == STEPS
    same = as_stored(found, json.loads(LIST.read_text()), "losses", exact)
    apart = max(abs(one / other - 1) for one, other in zip(found, json.loads(LIST.read_text())["losses"], strict=True))
    print(
        f"R8: {len(seeds)}/{len(seeds)} runs under {len(set(seeds))} hash seeds equal in every bit; {STEPS} losses "
        f"of {'the same' if same else 'another'} build, {f'within {apart:.1e}' if apart else 'equal'}"
    )


def test_r08_a_run_is_the_same_bits_under_every_hash_seed(tmp_path: Path) -> None:
    trial(tmp_path, [1, 2])


@pytest.mark.full
def test_r08_full(tmp_path: Path) -> None:
    trial(tmp_path, [0, 1, 2, 0, 1], exact=True)


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("stored", RELEASES, ids=str)
def test_r08_what_a_release_saved_goes_on(
    stored: Path, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, kind = HERE / stored.parent, stored.name
    wanted = json.loads((HERE / stored / "expected.json").read_text())
    shutil.copytree(HERE / stored, tmp_path / "runs" / kind)
    shutil.copy(release / "text.txt", tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    assert open_run(tmp_path / "runs" / kind).step == SAVED
    found = go_on(tmp_path, kind)
    same = [as_stored(found[which], wanted, which, exact) for which in ("losses", "scores")]
    print(f"R8: {kind} of {release.name} loads and goes on, {'on the same build' if all(same) else 'on another'}")


def test_r08_one_bit_is_seen_on_the_same_build_and_a_wrong_loss_on_any() -> None:
    here: dict[str, Any] = {"build": build(), "losses": [1.0, 2.0]}
    elsewhere = here | {"build": build() | {"torch": "0.4"}}
    assert as_stored([1.0, 2.0], here, "losses", True) and not as_stored([1.0, 2.0 + 1e-6], elsewhere, "losses", True)
    for found, wanted in (([1.0, 2.0 + 1e-15], here), ([1.0, 2.001], elsewhere), ([1.0], elsewhere)):
        with pytest.raises(AssertionError):
            as_stored(found, wanted, "losses", True)
    with pytest.raises(AssertionError):
        as_stored([1.0, 2.0 + 1e-6], here, "losses", False)


def test_r08_this_version_is_stored_too() -> None:
    """At a new version, `tests/reliability/stored.py` stores its runs."""
    assert {path.name for path in RELEASES if path.parent.name == heddle.__version__} == {"packed", "streams"}


def test_r08_another_thread_count_is_told_once_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(HERE / RELEASES[-1], tmp_path / "runs" / "run")
    shutil.copy(HERE / RELEASES[-1].parent / "text.txt", tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    said, had = [], torch.get_num_threads()
    try:
        for number, threads in enumerate((1, 2, 2)):
            torch.set_num_threads(threads)
            assert main(["train", "runs/run", f"training.steps={SAVED + 1 + number}"]) == 0
            said.append([line for line in capsys.readouterr().out.splitlines() if "changed: threads" in line])
    finally:
        torch.set_num_threads(had)
    assert [len(lines) for lines in said] == [0, 1, 0]
    assert said[1][0].startswith("changed: threads 1 -> 2, since the run was last trained")
