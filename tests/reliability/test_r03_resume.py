"""R3: a run cut anywhere and resumed ends in the same bits; a save in the background holds the moment of its call."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reliability.harness import differences, tiny, trainer_for, write_text

from heddle.checkpoints.store import Store
from heddle.training import RunConfig
from heddle.training.loop import Callback, Report, Step, Trainer

STEPS = 30


@dataclass(frozen=True)
class Cut:
    """Where to stop: after a step, or by a signal in the first of its micro-batches, which must wait for the last."""

    name: str
    step: int
    by_signal: bool = False


class Stop(Callback):
    """Ends a run after a step, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step == self.step:
            trainer.stop = "cut"


def run_to(cut: Cut, config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Train up to a cut."""
    trainer = trainer_for(config, folder)
    if not cut.by_signal:
        trainer.callbacks.insert(-1, Stop(cut.step))  # before the save
        trainer.fit()
        return trainer
    real, calls = Step._forward, []

    def forward(step: Step, piece: object, index: int) -> torch.Tensor:
        calls.append(index)
        if len(calls) == 2 * (cut.step - 1) + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(step, piece, index)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Step, "_forward", forward)
        trainer.fit()
    assert calls[-1] == 1, "the save waits for the step's end"
    return trainer


def cuts(epoch: int) -> list[Cut]:
    """Return ten cuts for a run whose first epoch ends within step `epoch`."""
    return [
        Cut("first step", 1),
        Cut("mid-epoch", 7),
        Cut("mid-epoch, beside a save", 5),
        Cut("asked for mid-accumulation", 4, by_signal=True),
        Cut("asked for mid-accumulation, at a validation", 10, by_signal=True),
        Cut("asked for mid-accumulation, late", 27, by_signal=True),
        Cut("before the epoch's edge", epoch - 1),
        Cut("at the epoch's edge", epoch),
        Cut("after validation", 20),
        Cut("last but one", STEPS - 1),
    ]


def trial(tmp_path: Path, chosen: list[int], workers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> int:
    """Cut and resume a run at chosen cuts; return how many ended equal."""
    text, passed = write_text(tmp_path / "text.txt", lines=55), 0
    for count in workers:
        config = tiny(text, hardware__workers=count, training__steps=STEPS)
        whole = trainer_for(config, tmp_path / f"whole-{count}" / "run")
        epoch = -(-whole.loader.plan.rows_per_epoch // whole.loader.batch)
        assert 2 < epoch < STEPS and whole.loader.plan.rows_per_epoch % whole.loader.batch, "the edge falls inside"
        whole.fit()
        for cut in [cuts(epoch)[i] for i in chosen]:
            folder = tmp_path / f"cut-{count}-{cut.step}-{cut.by_signal}" / "run"
            assert run_to(cut, config, folder, monkeypatch).step == cut.step, cut.name
            trainer = trainer_for(config, folder)
            assert trainer.step == cut.step
            trainer.fit()
            found = differences(folder, whole.folder)
            assert not found, f"{cut.name}, {count} workers: differs in {found}"
            passed += 1
    return passed


def saved_in_background(tmp_path: Path, times: int) -> int:
    """Change every weight right after a background save; return how often the save holds what was before."""
    trainer = trainer_for(tiny(write_text(tmp_path / "text.txt")), tmp_path / "run")
    store, equal = Store(tmp_path / "store", keep_last=1, keep_best=0, background=True), 0
    for number in range(times):
        trainer.step = number
        wanted = {name: weight.clone() for name, weight in trainer.model.weights().items()}
        store.save(trainer.snapshot())
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight.add_(1.0)
        store.wait()
        found = store.newest()
        assert found is not None and found.step == number
        held = found.tensors("model")
        equal += all(torch.equal(held[name], weight) for name, weight in wanted.items())
    return equal


def test_r03_a_cut_run_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = trial(tmp_path, [4, 7], (0, 2), monkeypatch)
    saved = saved_in_background(tmp_path, 10)
    print(f"R3: {passed}/4 cuts and {saved}/10 background saves equal in every bit")
    assert (passed, saved) == (4, 10)


@pytest.mark.full
def test_r03_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = trial(tmp_path, list(range(10)), (0, 2), monkeypatch)
    saved = saved_in_background(tmp_path, 100)
    print(f"R3: {passed}/20 cuts and {saved}/100 background saves equal in every bit")
    assert (passed, saved) == (20, 100)
