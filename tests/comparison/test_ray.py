"""Ray: the same losses as by processes of this machine, also where a worker dies; one line where Ray is missing."""

import os
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from comparison.conftest import COMMAND, heddle, result, write_text_to_learn
from comparison.test_compare import RESULTS, table

from heddle.cli.main import main

HAVE_RAY = find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAVE_RAY, reason="Ray is not installed; make cluster installs it and runs this test")
BY_RAY = [*COMMAND, "--no-controls", "--executor", "ray", "--processes", "2"]
TASK = "ray::_train_group"


@pytest.mark.skipif(HAVE_RAY, reason="Ray is installed")
def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text_to_learn(tmp_path)
    assert main(BY_RAY) in (2, 3)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "heddle[cluster]" in error, error


def processes_called(name: str, session: int) -> list[int]:
    """Return the processes of a session by their name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words.startswith(name) and os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill_a_task(process: "subprocess.Popen[str]", folder: Path) -> int:
    """Wait until a run has saved something, and kill a task of Ray; return how many were killed."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if list(folder.glob("comparisons/first/runs/*/run/checkpoints/*")):
            for number in processes_called(TASK, os.getsid(process.pid))[:1]:
                os.kill(number, signal.SIGKILL)
                return 1
        time.sleep(0.05)
    return 0


@needs_ray
@pytest.mark.timeout(400)
def test_a_cluster_of_two_workers_gives_the_same_losses_and_repeats_a_run_whose_worker_died(
    small: tuple[Path, str], tmp_path: Path
) -> None:
    write_text_to_learn(tmp_path)
    process = heddle(tmp_path, *BY_RAY)
    assert kill_a_task(process, tmp_path) == 1
    text = result(process)
    assert "[4/4]" in text
    ours, theirs = ([row | {"processes": ""} for row in table(one / RESULTS)] for one in (tmp_path, small[0]))
    assert ours == theirs
