"""R7: planted NaN gradients, infinite losses and spikes are caught at their step and leave no trace; memory that runs
out leaves a checkpoint and says why."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reliability.harness import Blow, Nursery, differences, tiny, trainer_for, write_config, write_text
from torch import Tensor, nn

from heddle.checkpoints.store import Store
from heddle.core import override
from heddle.data.rows import Batch, StreamRows
from heddle.models.presets import PresetConfig
from heddle.nn.state import State
from heddle.objectives import Loss
from heddle.training import RunConfig
from heddle.training.callbacks import Diverged
from heddle.training.loop import Callback, Report, Trainer

Fault = Callable[[Tensor], Tensor]


def nan_gradient(loss: Tensor) -> Tensor:
    loss.register_hook(lambda gradient: gradient * math.nan)
    return loss


FAULTS: dict[str, Fault] = {
    "nan gradient": nan_gradient,
    "infinite loss": lambda loss: loss * math.inf,
    "100x spike": lambda loss: loss * 100,
}


class Planted(nn.Module):
    """The losses of a trainer, wrong at chosen steps."""

    def __init__(self, trainer: Trainer, faults: dict[int, Fault]) -> None:
        super().__init__()
        self.inner, self.faults, self.trainer = trainer.take_step.losses, faults, [trainer]

    def forward(self, batch: Batch, carried: State | None, dial: Tensor | None) -> Loss:
        loss: Loss = self.inner(batch, carried, dial)
        step = self.trainer[0].step
        if step not in self.faults:
            return loss
        poisoned = None if loss.carried is None else loss.carried.map(lambda tensor: tensor * math.nan)
        return Loss(self.faults[step](loss.total), carried=poisoned)


class Watch(Callback):
    """Notes which steps were skipped, and that every weight stays finite."""

    def __init__(self) -> None:
        self.bad: list[int] = []

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if report.bad:
            self.bad.append(trainer.step - 1)
        assert all(weight.isfinite().all() for weight in trainer.model.parameters())
        tensors = trainer.take_step.optimizers.tensors() | trainer.take_step.guard.tensors()
        assert all(tensor.isfinite().all() for tensor in tensors.values())


def leave_out(trainer: Trainer, steps: set[int]) -> None:
    """Let a trainer pass over some batches as if its plan had not held them; the step still counts."""
    real = trainer._train_step

    def one(batch: Batch) -> Report:
        if trainer.step not in steps:
            return real(batch)
        nothing = torch.zeros(())
        return Report(loss=nothing, norm=nothing, bad=torch.tensor(True), tokens=0, learning_rate=0.0)

    trainer._train_step = one  # type: ignore[method-assign]


def faults(each: int, first: int) -> dict[int, Fault]:
    """Plant every fault so many times, at every other step."""
    kinds = [fault for _ in range(each) for fault in FAULTS.values()]
    return {first + 2 * number: fault for number, fault in enumerate(kinds)}


def skipped(config: RunConfig, tmp_path: Path, each: int) -> int:
    """Train with planted faults and with those batches left out; return how many faults were caught."""
    planted = faults(each, first=8)
    config = override(override(config, "training.steps", 10 + 6 * each), "training.guard.patience", 4)
    trainer, watch = trainer_for(config, tmp_path / "planted" / "run"), Watch()
    trainer.take_step.losses = Planted(trainer, planted)
    trainer.callbacks.append(watch)
    trainer.fit()
    assert watch.bad == sorted(planted), "caught at that step, and nothing else"
    without = trainer_for(config, tmp_path / "without" / "run")
    leave_out(without, set(planted))
    without.fit()
    ours, theirs = trainer.snapshot().tensors, without.snapshot().tensors
    assert ours.keys() == theirs.keys()
    for group in ours:
        for name in ours[group]:
            if (group, name) != ("guard", "skipped"):
                assert torch.equal(ours[group][name], theirs[group][name]), f"{group} {name}"
    assert int(ours["guard"]["skipped"]) == len(planted)
    return len(watch.bad)


def diverges(config: RunConfig, folder: Path) -> str:
    """Plant bad steps in a row; return what is said, once the last checkpoint has been seen to be good."""
    trainer = trainer_for(config, folder)
    trainer.take_step.losses = Planted(trainer, {step: FAULTS["nan gradient"] for step in (3, *range(11, 16))})
    with pytest.raises(Diverged) as caught:
        trainer.fit()
    assert trainer.step == 16 and caught.value.exit_code == 3
    found = Store(folder / "checkpoints").newest()
    assert found is not None and found.step == 15
    assert all(weight.isfinite().all() for weight in found.tensors("model").values())
    return str(caught.value)


def starved(nest: Nursery, tmp_path: Path, blows: list[Blow]) -> int:
    """Let memory run out at some places; return how often that was said in a line and a checkpoint went on."""
    config = write_config(tmp_path / "tiny.yaml", tiny(write_text(tmp_path / "text.txt")))
    assert nest.one(tmp_path / "whole", str(config)).code == 0
    passed = 0
    for number, blow in enumerate(blows):
        root = tmp_path / f"starved-{number}"
        outcome = nest.one(root, str(config), blow)
        assert outcome.code == 3, outcome.said
        lines = outcome.said.splitlines()
        assert len(lines) == 1 and lines[0].startswith("heddle: out of memory at step "), outcome.said
        assert Store(root / "runs" / "tiny" / "checkpoints").newest() is not None
        assert nest.one(root, str(root / "runs" / "tiny")).code == 0
        assert not differences(root / "runs" / "tiny", tmp_path / "whole" / "runs" / "tiny")
        passed += 1
    return passed


def streams(text: Path) -> RunConfig:
    """Return a run of an LSTM that carries its state from step to step."""
    config = tiny(text)
    model = PresetConfig(name="lstm_lm", width=16, layers=1, dropout=0.1)
    rows = StreamRows(length=16, lanes=4)
    return replace(config, model=model, rows=rows)


PLACES = [Blow("micro", 15, memory=True), Blow("validate", 2, memory=True), Blow("row", 29, memory=True)]


def test_r07_bad_steps_leave_no_trace(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    caught = skipped(tiny(text), tmp_path, each=3)
    said = diverges(tiny(text), tmp_path / "diverged" / "run")
    assert said.startswith("5 bad steps in a row at step 16 (loss") and "\n" not in said
    print(f"R7: {caught}/9 bad steps caught, weights finite, bits equal to a run without them; 5 in a row stop")


def test_r07_a_bad_step_does_not_poison_what_an_lstm_carries(tmp_path: Path) -> None:
    assert skipped(streams(write_text(tmp_path / "text.txt")), tmp_path, each=2) == 6


def test_r07_memory_that_runs_out_leaves_a_checkpoint(nest: Nursery, tmp_path: Path) -> None:
    passed = starved(nest, tmp_path, PLACES[:1])
    print(f"R7: {passed}/1 memory limit leaves a loadable checkpoint and is named")


@pytest.mark.full
def test_r07_full(nest: Nursery, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    caught = skipped(tiny(text), tmp_path, each=10)
    diverges(tiny(text), tmp_path / "diverged" / "run")
    passed = starved(nest, tmp_path, [*PLACES, Blow("micro", 22, memory=True), Blow("validate", 9, memory=True)])
    print(
        f"R7: {caught}/30 caught at their step, 0 weights not finite, bits equal to a run without those batches; "
        f"5 in a row stop; {passed}/5 memory limits leave a loadable checkpoint and are named"
    )
    assert (caught, passed) == (30, 5)
