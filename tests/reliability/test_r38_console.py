"""R38: a console that is closed, full, not UTF-8 or one column wide: training is the same; other verbs say one line."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from cli.runs import save_run
from cli.screen import screen
from reliability.harness import final, metrics, tiny, write_config, write_text

from heddle.cli.main import main
from heddle.core.system import replacing

WEIRD = "naïve ✓ 文"


def full() -> IO[str]:
    return open("/dev/full", "w")


def ascii_only() -> IO[str]:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


def closed() -> None:
    """As Python has it after `>&-`."""


def shut() -> IO[str]:
    stream = io.StringIO()
    stream.close()
    return stream


def no_reader() -> IO[str]:
    ours, theirs = os.pipe()
    os.close(ours)
    return os.fdopen(theirs, "w")


BROKEN: dict[str, tuple[Callable[[], IO[str] | None], int]] = {
    "full": (full, 1),
    "ascii": (ascii_only, 0),
    "closed": (closed, 0),
    "shut": (shut, 0),
    "no reader": (no_reader, 0),
}  # and how many lines are said of it


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run with a console that works."""
    folder = tmp_path_factory.mktemp("r38")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = folder / f"{WEIRD}.txt"
        write_text(text)
        write_config(folder / "run.yaml", tiny(text, training__steps=6, every__log=2, every__sample=3, name=WEIRD))
        assert main(["train", "run.yaml"]) == 0
        (folder / "runs").rename("kept")
    return folder


def same_run(place: Path) -> None:
    made, kept = place / "runs" / WEIRD, place / "kept" / WEIRD
    assert metrics(made) == metrics(kept) and final(made) == final(kept)
    (place / "runs").rename(place / f"old-{len(list(place.iterdir()))}")


@pytest.mark.parametrize("name", BROKEN)
def test_training_is_the_same_without_its_console(
    name: str, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, lines = BROKEN[name]
    monkeypatch.chdir(whole)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", make())
        assert main(["train", "run.yaml"]) == 0
        if sys.stdout is not None:
            sys.stdout.close()
    err = capsys.readouterr().err
    assert err.count("\n") == lines and "Traceback" not in err, err
    same_run(whole)


def test_training_in_one_column_is_the_same(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)
    monkeypatch.setenv("COLUMNS", "1")
    with screen(monkeypatch, "xterm") as seen:
        assert main(["train", "run.yaml"]) == 0
    same_run(whole)
    assert f"run runs/{WEIRD}\n" in seen.text


def test_lines_in_a_pipe_are_whole(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(whole)
    long = "w" * 120
    assert main(["train", "run.yaml", f"name={long}"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.endswith(f"-m runs/{long}")]
    assert main(["show", f"runs/{long}"]) == 0
    assert long in capsys.readouterr().out


@pytest.mark.parametrize("name", ["full", "closed", "shut"])
@pytest.mark.parametrize("verb", ["generate", "generate many", "score", "show --json", "correct"])
def test_a_result_that_cannot_be_written_is_one_line(
    name: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "run")
    Path("text.txt").write_text("a b\nc d\n")
    words = {
        "generate": ["generate", "a", "-m", "run", "--max-tokens", "2"],
        "generate many": ["generate", "--file", "text.txt", "-m", "run", "--max-tokens", "2"],
        "score": ["score", "text.txt", "-m", "run"],
        "show --json": ["show", "run", "--json"],
        "correct": ["correct", "text.txt", "--no-model"],
    }[verb]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", BROKEN[name][0]())
        assert main(words) == 3
        if sys.stdout is not None:
            sys.stdout.close()
    err = capsys.readouterr().err
    assert err.startswith("heddle: standard output: ") and err.count("\n") == 1, err


def test_a_closed_standard_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "run")
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["score", "-m", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "heddle: standard input: closed; want a file\n"


@pytest.mark.full
@pytest.mark.parametrize("where", [">&-", "> /dev/full", "| head -c 1", "<&- > /dev/full 2> /dev/full"])
def test_a_whole_process_leaves_quietly(where: str, tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    line = f"{sys.executable} -m heddle generate a -m run --max-tokens 2 {where}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (3 if "head" not in where else done.returncode) and done.returncode < 4
    assert done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr, done.stderr


# --- full disks -------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_by_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one two three\n" * 50)

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    assert main(["tokenizer", "train", "text.txt", "--kind", "character", "-o", "made.json"]) == 3
    assert capsys.readouterr().err == "heddle: made.json: no space left on the device\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_replaced_file_is_brought_to_the_medium_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    with replacing(tmp_path / "a.json") as file:
        file.write(json.dumps({}).encode())
    assert len(synced) == 2 and synced[-1] == str(tmp_path) and (tmp_path / "a.json").exists()
