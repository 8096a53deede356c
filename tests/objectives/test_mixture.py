"""Mixtures of denoisers: UL2's seven, chosen by weight for each row, after their mode tokens; one shape; a run."""

import dataclasses
from pathlib import Path

import pytest
import torch
from laws.objective_cases import CASES, MODES, SPANS, TRAITS, encoder_decoder, plain
from reliability.harness import tiny, trainer_for, write_text

from heddle.core import ConfigError, decode, encode, replace
from heddle.models.presets import PresetConfig
from heddle.objectives import DenoisingConfig, MixedObjectiveConfig, MixtureConfig, NextTokenConfig, ObjectiveConfig
from heddle.objectives.span_corruption import SENTINEL_NAMES, corrupted_lengths

CASE = CASES["mixture"]


def test_the_default_is_ul2() -> None:
    found = [(one.mode, one.objective.mean_span, one.objective.corruption_rate) for one in MixtureConfig().objectives]  # type: ignore[attr-defined]
    assert found == [
        ("r", 3.0, 0.15),
        ("r", 8.0, 0.15),
        ("s", None, 0.25),
        ("x", 3.0, 0.5),
        ("x", 8.0, 0.5),
        ("x", 64.0, 0.15),
        ("x", 64.0, 0.5),
    ]


def test_the_sequential_denoiser_hides_the_last_quarter() -> None:
    made = replace(SPANS, mean_span=None, corruption_rate=0.25).prepare(plain(cut=False), 3)
    text = plain(cut=False).targets
    assert corrupted_lengths(40, 0.25, None) == (32, 12)
    assert made.source is not None and torch.equal(made.source[:, :30], text[:, :30])
    assert torch.equal(made.targets[:, 1:11], text[:, 30:])


def test_rows_are_chosen_by_weight_and_are_what_their_objective_makes() -> None:
    batch = plain(rows=400, cut=False)
    made = CASE.prepare(batch, 3)
    assert made.source is not None and made.source_lengths is not None
    modes = made.source[:, 0]
    counts = [int((modes == mode).sum()) for mode in MODES]
    assert sum(counts) == 400 and 160 < counts[1] < 240, "the second weighs as much as the others together"
    for mode, one in zip(MODES, CASE.objective.objectives, strict=True):  # type: ignore[attr-defined]
        rows = (modes == mode).nonzero().flatten()
        alone = one.objective.prepare(batch.select(rows), 3)
        length, written = alone.source.shape[1], alone.targets.shape[1]
        assert (made.source_lengths[rows] == 1 + length).all()
        assert torch.equal(made.source[rows, 1 : 1 + length], alone.source)
        assert torch.equal(made.targets[rows, :written], alone.targets)
        assert torch.equal(made.inputs[rows, :written], alone.inputs)
        assert made.weights[rows].sum() == alone.weights.sum()


def test_other_denoisers_can_be_mixed() -> None:
    bart = CASES["denoising"].objective
    mixed = MixtureConfig(
        objectives=(MixedObjectiveConfig(objective=bart), MixedObjectiveConfig(objective=SPANS)), modes=MODES
    )
    made = mixed.preparer(3, lambda: TRAITS)(plain(rows=20))
    assert made.source is not None and made.source.shape == (20, 42) and made.targets.shape == (20, 41)
    assert torch.isfinite(mixed(encoder_decoder(), made.slice(0, 4)).total)
    assert decode(ObjectiveConfig, encode(mixed)) == mixed


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="objectives: want at least one objective"):
        MixtureConfig(objectives=())
    with pytest.raises(ConfigError, match=r"objectives\.0\.objective: want one that makes source and target"):
        MixtureConfig(objectives=(MixedObjectiveConfig(objective=NextTokenConfig()),))
    with pytest.raises(ConfigError, match="weight: want above 0"):
        MixedObjectiveConfig(objective=DenoisingConfig(), weight=0.0)
    special = {name: number for number, name in enumerate((*SENTINEL_NAMES, "end", "decoder_start"))}
    with pytest.raises(ConfigError, match=r"tokenizer\.special: want <\|mode_r\|> among them"):
        MixtureConfig().resolve(special, 200)
    assert set(MixtureConfig().missing_control_tokens({"<extra_id_0>": 5})) == {
        "<|mask|>",
        *(f"<|mode_{m}|>" for m in "rsx"),
    }
    assert dataclasses.replace(CASE, objective=MixtureConfig()).objective.side_lengths(284)[0] <= 284


def test_a_run_resumes_in_the_same_bits(tmp_path: Path) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), every__save=2, rows__boundaries="stream", rows__length=48)
    model = PresetConfig(name="t5-small", layers=1, width=32, heads=2, hidden=48)
    config, ended = replace(config, model=model, objective=MixtureConfig()), []
    for name, stops in (("whole", (4,)), ("cut", (2, 4))):
        for steps in stops:
            trainer = trainer_for(
                replace(config, training=replace(config.training, steps=steps)), tmp_path / name / "run"
            )
            trainer.fit()
        ended.append(trainer.model.weights())
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())
