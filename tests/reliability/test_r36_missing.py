"""R36: checkpoints, folder, lock or text missing: refused or exact, no line of the metrics lost, never two trainers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from reliability.harness import differences, metrics, tiny, trainer_for, write_text

from heddle.core import DamageError, EnvironmentFault, HeddleError, UsageError
from heddle.training import RunConfig, resolve_run, train_run
from heddle.training.loop import Callback, Report, Trainer

HALF, WHOLE = 4, 8


class At(Callback):
    """Does something after a step, before that step is saved."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.step, self.act = step, act

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step == self.step:
            self.act()


def config(text: Path, steps: int = WHOLE) -> RunConfig:
    return tiny(text, training__steps=steps, every__save=2, every__validate=4)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "tiny"
    trainer_for(config(text), run).fit()
    return run


@pytest.fixture
def half(text: Path, tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "tiny"
    trainer_for(config(text, HALF), run).fit()
    return run


@pytest.mark.parametrize("empty", [False, True])
def test_missing_checkpoints_are_refused_where_the_metrics_tell_of_saves(half: Path, text: Path, empty: bool) -> None:
    lines = (half / "metrics.jsonl").read_bytes()
    shutil.move(half / "checkpoints", half.parent / "unmounted")
    if empty:
        (half / "checkpoints").mkdir()
    with pytest.raises(DamageError, match=r"no checkpoint, though metrics\.jsonl tells of step-00000004"):
        trainer_for(config(text), half)
    assert (half / "metrics.jsonl").read_bytes() == lines


@pytest.mark.parametrize("background", [False, True])
def test_a_run_killed_before_its_first_save_begins_again(text: Path, tmp_path: Path, background: bool) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    run = tmp_path / "run"
    trainer = trainer_for(tiny(text, every__save=2, keep__background=background), run)
    trainer.callbacks.insert(1, At(2, kill))
    with pytest.raises(Killed):
        trainer.fit()
    assert metrics(run) and trainer_for(config(text), run).step == 0


def test_a_folder_renamed_while_training_is_not_made_again(half: Path, text: Path, whole: Path) -> None:
    moved, trainer = half.with_name("moved"), trainer_for(config(text), half)
    trainer.callbacks.insert(0, At(HALF + 1, lambda: half.rename(moved)))
    with pytest.raises(EnvironmentFault, match="tiny was moved or removed"):
        trainer.fit()
    assert not half.exists()
    assert max(line["step"] for line in metrics(moved)) == HALF + 2, "lines after the move"
    trainer_for(config(text), moved).fit()
    assert differences(moved, whole) == []


def test_a_folder_that_another_run_took_over_is_left_alone(half: Path, text: Path) -> None:
    trainer = trainer_for(config(text), half)

    def take_over() -> None:
        half.rename(half.with_name("moved"))
        half.mkdir()

    trainer.callbacks.insert(0, At(HALF + 1, take_over))
    with pytest.raises(EnvironmentFault, match="tiny was moved or removed"):
        trainer.fit()
    assert list(half.iterdir()) == []


def test_two_trainers_never_share_a_folder_whatever_is_removed_from_it(half: Path, text: Path) -> None:
    runs, told = half.parent, []

    def second() -> None:
        for path in half.glob(".*"):
            path.unlink()
        with pytest.raises(UsageError, match="another process is training this run") as refusal:
            train_run(resolve_run(half, [("training.steps", 9)], runs, {}), runs)
        told.append(str(refusal.value))

    def sample(*_: object) -> Callable[[object], str]:
        return lambda _: second() or "a sample"

    words = [("training.steps", 5), ("every.sample", 5)]
    train_run(resolve_run(half, words, runs, {}), runs, writer_for=sample)
    assert told


def test_a_resumed_run_needs_no_text_where_its_shards_are_whole(half: Path, text: Path, whole: Path) -> None:
    settled, away = config(text), text.rename(text.with_name("away.txt"))
    try:
        trainer_for(settled, half).fit()
        assert differences(half, whole) == []
    finally:
        away.rename(text)


def test_a_new_run_still_needs_its_text(half: Path, text: Path) -> None:
    settled, away = config(text), text.rename(text.with_name("away.txt"))
    try:
        with pytest.raises(HeddleError, match="no such file"):
            trainer_for(settled, half.with_name("new"))
    finally:
        away.rename(text)


def test_damaged_shards_are_built_again_from_the_text(half: Path, text: Path, whole: Path) -> None:
    damage(half)
    trainer_for(config(text), half).fit()
    assert differences(half, whole) == []


def test_damaged_shards_without_their_text_are_refused_and_kept(half: Path, text: Path) -> None:
    path, settled = damage(half), config(text)
    away = text.rename(text.with_name("away.txt"))
    try:
        with pytest.raises(HeddleError, match="no such file"):
            trainer_for(settled, half)
        assert path.exists()
    finally:
        away.rename(text)


def damage(run: Path) -> Path:
    """Flip a bit of the token shards of a run."""
    (path,) = (run.parent / ".data").glob("*/train/tokens-00000.bin")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path
