"""The header of a run, threads that follow the free cores, and samples of chat models on held-out prompts."""

import json
import time
from pathlib import Path

import pytest
import torch
from reliability.harness import tiny, write_text

from heddle.cli.main import main
from heddle.core import ConfigError, encode, replace
from heddle.core.system import CoreWatch, cores, read_table, threads_for, write_json
from heddle.training import RunConfig, RunEnvironment, resolve_run, set_up, train_run
from heddle.training.callbacks import AdaptThreads
from heddle.training.environment import ENVIRONMENT
from heddle.training.header import duration
from heddle.training.loop import SilentReporter


class Heard(SilentReporter):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str, style: str = "plain") -> None:
        self.lines.append(text)


def heard(config: RunConfig, folder: Path) -> list[str]:
    """Set a run up; return what it says before training."""
    reporter = Heard()
    set_up(config, RunEnvironment(folder, reporter=reporter))
    return reporter.lines


def test_a_header_tells_what_will_be_trained(tmp_path: Path) -> None:
    lines = [{"text": f"a line of number {i}"} for i in range(60)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, lines[0], {"other": "x"}]) + "{broken\n"
    (tmp_path / "my.jsonl").write_text(text)
    words = heard(tiny(tmp_path / "my.jsonl", training__steps=12), tmp_path / "run")
    table = {line.split()[0]: line for line in words}
    assert "63 seen, 60 kept, 3 skipped" in table["documents:"] and "1 bad json, the first at" in table["documents:"]
    assert "12 steps of 4 rows of 32 tokens: 1,536 tokens" in table["training"] and "epochs" in table["training"]
    assert "parameters" in table["model"] and "held out" in table["tokens"]
    assert "cpu" in table["hardware"] and "float32, 1 thread" in table["hardware"].replace("bfloat16", "float32")


def test_times_are_readable() -> None:
    assert [duration(s) for s in (7, 99, 130, 7300, 90_000)] == ["7 s", "99 s", "2 min", "2 h 2 min", "25 h 0 min"]


def test_the_time_is_estimated_from_the_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.training.header.TIMED", 0.0)
    reporter = Heard()
    config = tiny(write_text(tmp_path / "my.txt"), training__steps=4)
    train_run(resolve_run(config, [], tmp_path, {}), tmp_path, reporter)
    (line,) = [line for line in reporter.lines if line.startswith("time ")]
    assert "to go" in line and "a step" in line


def test_a_model_that_cannot_be_built_is_told_before_the_text_is_read(tmp_path: Path) -> None:
    config = tiny(write_text(tmp_path / "my.txt"))
    config = replace(config, model=replace(config.model, width=33))  # type: ignore[type-var]
    (tmp_path / "my.txt").unlink()  # reading would fail otherwise
    with pytest.raises(ConfigError, match=r"model\.heads: want a divisor of the width 33"):
        set_up(config, RunEnvironment(tmp_path / "run"))


# --- threads ----------------------------------------------------------------------------------------------------------


def stat(path: Path, busy: int, nice: int, idle: int) -> None:
    """Write what Linux tells of two cores, in hundredths of a second."""
    path.write_text(f"cpu 0 0\ncpu0 {busy} {nice} 0 {idle} 0 0 0 0 0 0\ncpu1 {busy} {nice} 0 {idle} 0 0 0 0 0 0\n")


def test_free_cores_are_those_that_others_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "STAT", tmp_path / "stat")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    stat(tmp_path / "stat", 0, 0, 0)
    watch = CoreWatch()
    assert watch.free() is None, "too soon"
    stat(tmp_path / "stat", 100, 0, 100)  # of two seconds, one on each core
    free = watch.free()
    assert free is not None and 0.99 <= free < 1.2  # this process has used a little of it
    stat(tmp_path / "stat", 100, 100, 200)  # what has a lower priority makes room
    free = watch.free()
    assert free is not None and free > 1.9
    (tmp_path / "stat").unlink()
    assert watch.free() is None and CoreWatch().free() is None


@pytest.mark.parametrize(
    ("free", "most", "threads"), [(0.0, 2, 1), (0.8, 2, 1), (1.33, 2, 1), (1.7, 2, 2), (12.8, 16, 13)]
)
def test_threads_share_no_core(free: float, most: int, threads: int) -> None:
    assert threads_for(free, most) == threads


class Watched(CoreWatch):
    """Tells of free cores what it was given."""

    def __init__(self, *free: float) -> None:
        self.cores, self.given = 2, list(free)

    def free(self) -> float | None:
        return self.given.pop(0) if self.given else None


def test_fewer_threads_while_cores_are_taken_and_more_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: threads.append(number))
    monkeypatch.setattr("heddle.training.callbacks.threads.FIRST", 0.0)
    monkeypatch.setattr("heddle.training.callbacks.threads.LATER", 0.0)
    threads, reporter, changes = [2], Heard(), list[int]()
    trainer = set_up(tiny(write_text(tmp_path / "my.txt"), training__steps=6), RunEnvironment(tmp_path / "run"))
    adapt = AdaptThreads(Watched(0.8, 0.9, 2.0, 1.0, 2.0, 2.0, 2.0), reporter, changes.append)
    trainer.callbacks = [adapt]
    trainer.fit()
    assert changes == [1, 2], "lowered at once, raised after two calm looks"
    (line,) = reporter.lines
    assert "1.2 of 2 cores: 1 thread from step 0 on" in line and "hardware.threads=N" in line
    assert threads[-1] == 2, "given back"


def test_threads_are_the_users_where_he_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not AdaptThreads.wanted(cpu, None, "fast")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert AdaptThreads.wanted(cpu, None, "fast")
    assert not AdaptThreads.wanted(cpu, 2, "fast") and not AdaptThreads.wanted(cpu, None, "deterministic")
    assert not AdaptThreads.wanted(torch.device("cuda"), None, "fast")


def test_the_environment_records_the_threads(tmp_path: Path) -> None:
    from heddle.training.environment import record_threads

    write_json(tmp_path / ENVIRONMENT, {"torch": "x", "threads": 2})
    record_threads(tmp_path, 1)
    assert read_table(tmp_path / ENVIRONMENT) == {"torch": "x", "threads": 1}


# --- samples of chat models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [[], [{"role": "assistant", "content": "Yes?"}]], ids=["user", "assistant"])
def test_chat_models_answer_held_out_prompts(
    first: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chats = [
        {
            "messages": [
                *first,
                {"role": "user", "content": f"Say {i}."},
                {"role": "assistant", "content": f"It is {i}."},
            ]
        }
        for i in range(40)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    config = encode(tiny(tmp_path / "chats.jsonl", training__steps=2, every__sample=2, rows__length=64))
    config["data"] = {"sources": [{"kind": "chat", "path": "chats.jsonl"}], "template": "chatml"}
    config["data"]["split"] = {"kind": "hash", "fraction": 0.3}
    (tmp_path / "run.json").write_text(json.dumps(config))
    began = time.time()
    assert main(["train", "run.json"]) == 0
    out = capsys.readouterr().out
    sample = (tmp_path / "runs" / "tiny" / "samples.txt").read_text()
    assert sample.count("user    Say ") == 3 and sample.count("target  It is ") == 3 and sample.count("model   ") == 3
    assert "Try: heddle chat -m runs/tiny" in out and time.time() - began < 60
