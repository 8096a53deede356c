"""Horizons: sizes by step, the same after a resume, no trace in what is saved; refused where nothing sees all."""

from pathlib import Path

import pytest
from reliability.harness import differences, tiny, trainer_for, write_text

from heddle.checkpoints import RunSource
from heddle.core import ConfigError
from heddle.models.presets import PresetConfig
from heddle.nn.attention import Attention
from heddle.training.callbacks import GrowingWindowConfig, NoWindowWarmupConfig
from heddle.training.loop import Callback, Report, Trainer

GROWING = GrowingWindowConfig(sizes=(2, 4), share=0.5)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


def horizons(trainer: Trainer) -> set[int | None]:
    """Return the horizons that a model's attention has now."""
    found = [module.warmup_window for module in trainer.model.modules() if isinstance(module, Attention)]
    return {None if one is None else int(one) for one in found}


class Watch(Callback):
    """Note after each step the horizon that it had: it stands before the callback that sets the next."""

    def __init__(self) -> None:
        self.seen: list[set[int | None]] = []

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self.seen.append(horizons(trainer))


class Stop(Callback):
    """Ends a run after some steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, report: Report) -> None:
        trainer.stop = "enough" if trainer.step == self.step else trainer.stop


def test_each_size_has_its_steps_and_then_there_is_none() -> None:
    assert [GROWING.at(step, 8) for step in range(8)] == [2, 2, 4, 4, None, None, None, None]
    assert [GrowingWindowConfig(sizes=(3,), share=1.0).at(step, 3) for step in range(3)] == [3, 3, 3]
    assert NoWindowWarmupConfig().at(0, 8) is None


@pytest.mark.parametrize("sizes", [(), (0, 2), (4, 4), (4, 2)])
def test_sizes_that_do_not_grow_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="sizes"):
        GrowingWindowConfig(sizes=sizes)
    with pytest.raises(ConfigError, match="share"):
        GrowingWindowConfig(share=0.0)


def test_a_resumed_run_goes_on_with_the_horizon_of_its_step(text: Path, tmp_path: Path) -> None:
    config = tiny(text, training__steps=8, training__window_warmup=GROWING, every__save=3)
    whole, first = (trainer_for(config, tmp_path / name) for name in ("whole", "cut"))
    whole.callbacks.insert(0, watch := Watch())
    whole.fit()
    assert watch.seen == [{2}] * 2 + [{4}] * 2 + [{None}] * 4
    first.callbacks.insert(0, Stop(3))
    first.fit()
    assert first.step == 3 and horizons(first) == horizons(whole) == {None}
    again = trainer_for(config, tmp_path / "cut")
    again.callbacks.insert(0, later := Watch())
    again.fit()
    assert later.seen == watch.seen[3:]
    assert not differences(tmp_path / "cut", tmp_path / "whole")


def test_a_saved_model_knows_of_no_horizon(text: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny(text, training__steps=2, training__window_warmup=GROWING), tmp_path / "run")
    trainer.fit()
    model = RunSource(tmp_path / "run").model()
    assert all(module.warmup_window is None for module in model.modules() if isinstance(module, Attention))


def test_a_model_without_attention_that_sees_all_is_refused(text: Path, tmp_path: Path) -> None:
    model = PresetConfig(name="lstm_lm", layers=1, width=8)
    with pytest.raises(ConfigError, match=r"training\.window_warmup: want none"):
        trainer_for(tiny(text, model=model, training__window_warmup=GROWING), tmp_path / "run")
