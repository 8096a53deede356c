"""Every variant of Narang et al. (2021) trains as the paper trained it: span corruption, z-loss, Adafactor, rsqrt."""

import math

import pytest
import torch

from heddle.core import replace
from heddle.data.rows import PackedRows
from heddle.models.presets import PRESETS, PresetConfig
from heddle.recipes import RECIPES
from heddle.training import HardwareConfig, RunConfig, build_dry_run
from heddle.training.optimizers import AdafactorConfig, RsqrtConfig

VARIANTS = [name for name in PRESETS if name.startswith("narang/")]
VOCAB = 256
# What a branch that begins at zero keeps still in its first steps.
STARTS_AT_ZERO = ("narang/rezero", "narang/fixup")


def config_of(name: str) -> RunConfig:
    """Return the recipe t5 with a small model of a variant: four layers, for experts are in every fourth."""
    known = set(PRESETS[name].option_names)
    sizes = {"layers": 4, "width": 24, "heads": 2, "hidden": 36, "vocab": VOCAB}
    model = PresetConfig(name=name, dials={"head_width": 12}, **{n: s for n, s in sizes.items() if n in known})
    config = RECIPES["t5"]()
    training = replace(config.training, batch=2, optimizer=AdafactorConfig(), schedule=RsqrtConfig())
    rows, hardware = PackedRows(length=32, boundaries="stream"), HardwareConfig(device="cpu", compile="off")
    return replace(config, model=model, rows=rows, training=training, hardware=hardware)


def test_there_are_all_rows_of_the_table() -> None:
    assert len(VARIANTS) >= 1 + 51


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_trains_on_spans(name: str) -> None:
    run = build_dry_run(config_of(name))
    before = {name: weight.clone() for name, weight in run.model.weights().items()}
    for number in range(2):
        batch = run.draw(number)
        assert batch.source is not None and (batch.source.shape, batch.targets.shape) == ((2, 30), (2, 8))
        report = run.step(batch, number, batch.tokens)
        assert not report.bad and 0.5 * math.log(VOCAB) < float(report.loss) < 2.5 * math.log(VOCAB)
    still = [name for name, weight in run.model.weights().items() if torch.equal(weight, before[name])]
    assert not still or (name.startswith(STARTS_AT_ZERO) and len(still) < len(before)), still
