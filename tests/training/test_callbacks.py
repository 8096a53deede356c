"""Callbacks: stopping, saving, averaging, sampling, TensorBoard, and leaving in order when something fails."""

import errno
import math
from pathlib import Path

import pytest
import torch
from reliability.harness import tiny, trainer_for, write_text

from heddle.checkpoints import RunSource
from heddle.checkpoints.store import Store
from heddle.core import ConfigError, EnvironmentFault, override
from heddle.training import RunConfig
from heddle.training.callbacks import Diverged, EarlyStopping, HeldOutRows, Sample, TimeLimit
from heddle.training.loop import Callback, Report, Signals, SilentReporter, Trainer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


class Script(Callback):
    """Plays validation losses as if they had been measured, one a step."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses

    def after_step(self, trainer: Trainer, report: Report) -> None:
        trainer.metric = self.losses[trainer.step - 1]


# --- stopping ---------------------------------------------------------------------------------------------------------


def flat(text: Path, folder: Path, losses: list[float], patience: int = 2) -> Trainer:
    trainer = trainer_for(tiny(text, training__steps=len(losses), stop__patience=patience), folder)
    trainer.callbacks.insert(0, Script(losses))
    trainer.callbacks = [c for c in trainer.callbacks if type(c).__name__ not in ("Validate",)]
    return trainer


def test_a_run_stops_when_the_held_out_loss_no_longer_falls(text: Path, tmp_path: Path) -> None:
    trainer = flat(text, tmp_path / "run", [3, 2, 2.5, 1.9, 2.0, 1.95, 1.0, 0.5])
    trainer.fit()
    assert trainer.step == 6 and trainer.stop == "held-out loss has not fallen for 2 validations"
    newest = Store(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None and newest.step == 6


def test_equal_losses_have_not_fallen(text: Path, tmp_path: Path) -> None:
    trainer = flat(text, tmp_path / "run", [2, 2, 2, 2, 2])
    trainer.fit()
    assert trainer.step == 3


def test_patience_survives_a_resume(text: Path, tmp_path: Path) -> None:
    losses = [2, 3, 3, 3, 1, 1]
    first = flat(text, tmp_path / "run", losses, patience=3)
    first.steps = 2
    first.fit()
    again = flat(text, tmp_path / "run", losses, patience=3)
    assert again.step == 2
    again.fit()
    assert again.step == 4, "one of the three validations was seen before the resume"


def test_a_run_stops_when_its_time_is_up_with_a_checkpoint(text: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny(text, stop__minutes=0.0), tmp_path / "run")
    assert any(isinstance(callback, TimeLimit) for callback in trainer.callbacks)
    trainer.fit()
    assert trainer.step == 2 and trainer.stop == "0 minutes are over"  # asked for in the first step, done in the next
    newest = Store(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None and newest.step == 2


def test_bad_steps_in_a_row_stop_the_run_as_often_as_asked(text: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny(text, training__guard__max_consecutive=2), tmp_path / "run")
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(math.nan)
    with pytest.raises(Diverged, match="2 bad steps in a row at step 2"):
        trainer.fit()


def test_stop_when_flat_needs_a_measurement() -> None:
    assert EarlyStopping(1).state() == {"best": None, "since": 0}


# --- leaving ----------------------------------------------------------------------------------------------------------


class Note(Callback):
    def __init__(self, notes: list[str], name: str, fault: bool = False) -> None:
        self.notes, self.name, self.fault = notes, name, fault

    def before_fit(self, trainer: Trainer) -> None:
        self.notes.append(f"+{self.name}")

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if self.fault:
            raise ZeroDivisionError(self.name)

    def after_fit(self, trainer: Trainer) -> None:
        self.notes.append(f"-{self.name}")


def test_every_callback_is_told_of_the_end_even_after_a_fault(text: Path, tmp_path: Path) -> None:
    trainer, notes = trainer_for(tiny(text), tmp_path / "run"), list[str]()
    trainer.callbacks = [Note(notes, "a"), Note(notes, "b", fault=True), Note(notes, "c")]
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert notes == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_signal_handlers_are_put_back() -> None:
    import signal

    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    with Signals() as signals:
        assert signal.getsignal(signal.SIGTERM) == signals._catch
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == before
    assert signals.exit_code == 0 and signals.name == "none"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_memory_that_runs_out_is_one_line_that_says_what_to_do(error: Exception, text: Path, tmp_path: Path) -> None:
    class Starve(Callback):
        def after_step(self, trainer: Trainer, report: Report) -> None:
            raise error

    trainer = trainer_for(tiny(text), tmp_path / "run")
    trainer.callbacks.append(Starve())
    with pytest.raises(EnvironmentFault, match="out of memory at step 1 with 2 rows at once") as caught:
        trainer.fit()
    assert "\n" not in str(caught.value) and caught.value.exit_code == 3


def test_other_faults_are_not_taken_for_a_lack_of_memory(text: Path, tmp_path: Path) -> None:
    class Break(Callback):
        def after_step(self, trainer: Trainer, report: Report) -> None:
            raise RuntimeError("shapes differ")

    trainer = trainer_for(tiny(text), tmp_path / "run")
    trainer.callbacks.append(Break())
    with pytest.raises(RuntimeError, match="shapes differ"):
        trainer.fit()


# --- saving -----------------------------------------------------------------------------------------------------------


def entries(folder: Path) -> list[tuple[int, bool]]:
    return [(entry.step, entry.metric is not None) for entry in Store(folder / "checkpoints").list()]


def test_only_a_checkpoint_of_a_measured_step_is_ranked(text: Path, tmp_path: Path) -> None:
    config = tiny(text, training__steps=12, every__save=3, every__validate=6, keep__last=10)
    trainer_for(config, tmp_path / "run").fit()
    assert entries(tmp_path / "run") == [(3, False), (6, True), (9, False), (12, True)]


def test_saving_in_the_background_leaves_the_same_files(text: Path, tmp_path: Path) -> None:
    config = tiny(text, training__steps=7, every__save=2)
    trainer_for(config, tmp_path / "front" / "run").fit()
    trainer_for(override(config, "keep.background", True), tmp_path / "back" / "run").fit()
    kept = [Store(tmp_path / side / "run" / "checkpoints").newest() for side in ("front", "back")]
    assert kept[0] is not None and kept[1] is not None and kept[0].step == kept[1].step == 7
    for group in kept[0].groups:
        ours, theirs = (checkpoint.tensors(group) for checkpoint in kept)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


def averaged(text: Path, **changes: object) -> RunConfig:
    quiet = {"training__average": None, "training__steps": 8, "every__save": 2, "every__validate": 100}
    return tiny(text, **(quiet | changes))


def test_the_last_checkpoints_are_averaged_at_the_end_and_loaded_instead_of_the_weights(
    text: Path, tmp_path: Path
) -> None:
    trainer_for(averaged(text, training__average_last=3, keep__last=9), tmp_path / "run").fit()
    store = Store(tmp_path / "run" / "checkpoints")
    kept = {entry.step: store.newest(entry.step) for entry in store.list()}
    last = [c.tensors("model") for s, c in kept.items() if c is not None and s in (4, 6, 8)]
    mean = {name: sum(weights[name].double() for weights in last) / 3 for name in last[0]}
    loaded = RunSource(tmp_path / "run").model().weights()
    assert all(torch.allclose(loaded[n].double(), w, atol=1e-6) for n, w in mean.items())
    final = kept[8]
    assert final is not None and not torch.equal(loaded["embedding.weight"], final.tensors("model")["embedding.weight"])


def test_averaging_of_more_checkpoints_than_are_kept_is_refused(text: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep\.last: want at least 4, because training\.average_last needs"):
        averaged(text, training__average_last=5)


def test_two_kinds_of_averaging_are_refused(text: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.average_last: cannot be combined with training\.average"):
        averaged(text, keep__last=9, training__average={"kind": "moving", "decay": 0.9}, training__average_last=3)


# --- sampling, TensorBoard --------------------------------------------------------------------------------------------


def test_samples_are_written_in_evaluation_and_training_goes_on(text: Path, tmp_path: Path) -> None:
    modes = []
    trainer = trainer_for(tiny(text, training__steps=4), tmp_path / "run")

    def write(model: object) -> str:
        modes.append(trainer.model.training)
        return "once [bold] upon"

    trainer.callbacks.append(Sample(write, tmp_path / "samples.txt", SilentReporter(), every=2))
    trainer.fit()
    assert (tmp_path / "samples.txt").read_text() == "--- step 2\nonce [bold] upon\n--- step 4\nonce [bold] upon\n"
    assert modes == [False, False] and trainer.model.training


def test_samples_that_cannot_be_written_are_one_line(text: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny(text, training__steps=2), tmp_path / "run")
    trainer.callbacks.append(Sample(lambda model: "", tmp_path / "no" / "samples.txt", SilentReporter(), every=1))
    with pytest.raises(EnvironmentFault, match=r"samples\.txt: cannot be written: No such file"):
        trainer.fit()


def test_tensorboard_gets_the_same_numbers(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = tiny(text, training__steps=4, every__validate=2, tensorboard=True)
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert {"loss", "norm", "learning_rate", "validation_loss"} <= set(board.Tags()["scalars"])
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.step for event in board.Scalars("validation_loss")] == [2, 4]


# --- validation -------------------------------------------------------------------------------------------------------


def held_out(trainer: Trainer) -> HeldOutRows:
    (found,) = (c.held_out for c in trainer.callbacks if type(c).__name__ == "Validate")  # type: ignore[attr-defined]
    assert isinstance(found, HeldOutRows)
    return found


def test_validation_is_the_same_for_any_number_of_processes(text: Path, tmp_path: Path) -> None:
    """Each process measures its share; the shares are all rows, once, and of streams always the same lanes."""

    stream = {"rows": {"kind": "streams", "length": 8, "lanes": 4}, "model": {"kind": "preset", "name": "lstm_lm"}}
    small = {"model.width": 16, "model.layers": 1, "validation_rows": 10}
    for name, changes in (("packed", {}), ("streams", stream)):
        config = tiny(text)
        for path, value in (changes | (small if changes else {"validation_rows": 7})).items():
            config = override(config, path, value)
        rows = held_out(trainer_for(config, tmp_path / name / "run"))
        whole = [n for _, group in rows._groups(1) for n in group]
        assert whole == list(range(rows.rows)) and rows.rows == (12 if changes else 7)
        for world in (2, 3, 5):
            groups = rows._groups(world)
            shares = [[list(group) for lane, group in groups if lane % world == rank] for rank in range(world)]
            assert sorted(n for share in shares for batch in share for n in batch) == whole
            if changes:
                assert all(len({tuple(n % 4 for n in batch) for batch in share}) <= 1 for share in shares)


def test_a_full_disk_ends_the_run_in_one_line_and_leaves_older_checkpoints(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heddle.checkpoints.store import disk

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = trainer_for(tiny(text, training__steps=5, every__save=5), tmp_path / "run")
    trainer.fit()
    again = trainer_for(tiny(text, training__steps=10, every__save=5), tmp_path / "run")
    monkeypatch.setattr(disk.LocalDisk, "write", full)
    with pytest.raises(EnvironmentFault, match="not saved: No space left on device; older checkpoints are untouched"):
        again.fit()
    assert entries(tmp_path / "run") == [(5, True)]
