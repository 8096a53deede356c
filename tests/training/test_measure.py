"""Measuring a step on random tokens: every form of rows and objective, and the time by kind of work."""

import pytest
import torch

from heddle.core import ConfigError, replace
from heddle.data.rows import PackedRows, PairRows, RowsConfig, StreamRows
from heddle.models.presets import PresetConfig
from heddle.nn.attention import Attention
from heddle.objectives import MaskedTokenConfig, NextTokenConfig, ObjectiveConfig, SequenceConfig
from heddle.training import HardwareConfig, RunConfig, TrainingConfig, build_dry_run, measure
from heddle.training.breakdown import kind_of
from heddle.training.callbacks import GrowingWindowConfig

RUNS: list[tuple[str, RowsConfig, ObjectiveConfig]] = [
    ("first", PackedRows(length=16), NextTokenConfig()),
    ("lstm_lm", StreamRows(length=16, lanes=4), NextTokenConfig()),
    ("bart-base", PairRows(length=12, source_length=16, batch=4), SequenceConfig()),
    ("bert-base-masked", PackedRows(length=16), MaskedTokenConfig()),
]


def run(name: str, rows: RowsConfig, objective: ObjectiveConfig) -> RunConfig:
    model = PresetConfig(name=name, layers=1, width=48, vocab=300)
    hardware = HardwareConfig(device="cpu", dtype="float32")
    training = TrainingConfig(batch=4, micro_batch=2)
    return RunConfig(model=model, rows=rows, objective=objective, training=training, hardware=hardware)


@pytest.mark.parametrize(("name", "rows", "objective"), RUNS, ids=[name for name, *_ in RUNS])
def test_every_form_of_run_is_measured(name: str, rows: RowsConfig, objective: ObjectiveConfig) -> None:
    speed = measure(run(name, rows, objective), steps=3, warm=2)
    low, high = speed.quartiles
    assert 0 < low <= speed.tokens_per_second <= high
    assert speed.tokens_per_second == pytest.approx(speed.tokens_per_step / speed.seconds_per_step)
    assert 0 < speed.mfu < 1 and not speed.compiled and speed.peak_bytes > 1 << 20
    assert {"norms and elementwise", "head and loss", "optimizer"} <= speed.breakdown.keys()
    assert sum(speed.breakdown.values()) > 0


def test_rows_are_drawn_as_packing_makes_them() -> None:
    made = build_dry_run(run("first", PackedRows(length=400), NextTokenConfig()))
    batch = made.draw(0)
    assert batch.documents is not None and batch.positions is not None
    steps = batch.documents.diff(dim=1)
    assert set(steps.unique().tolist()) == {0, 1}
    assert torch.equal(batch.positions[:, 1:] == 0, steps == 1)
    assert not torch.equal(batch.inputs, made.draw(1).inputs)
    assert torch.equal(batch.inputs, made.draw(0).inputs)


def test_a_horizon_is_measured_at_its_first_size_and_refused_where_nothing_looks_back() -> None:
    growing = TrainingConfig(batch=4, window_warmup=GrowingWindowConfig(sizes=(4, 8)))
    asked = replace(run("first", PackedRows(length=16), NextTokenConfig()), training=growing)
    found = [m for m in build_dry_run(asked).model.modules() if isinstance(m, Attention)]
    assert found and all(
        attention.warmup_window is not None and int(attention.warmup_window) == 4 for attention in found
    )
    with pytest.raises(ConfigError, match=r"training\.window_warmup: want none"):
        build_dry_run(replace(run("lstm_lm", StreamRows(length=16, lanes=4), NextTokenConfig()), training=growing))


def test_a_device_that_is_not_there_is_named_by_its_whole_path() -> None:
    with pytest.raises(ConfigError, match=r"^hardware\.device: want"):
        HardwareConfig(device="cuda:77").choose()


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "matrix products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "attention"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_red_fused_log_softmax_nll_3", "head and loss"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("RNN_blockPersist_fp_LSTM", "recurrence"),
        ("triton_per_fused_native_layer_norm_7", "norms and elementwise"),
    ],
)
def test_kernels_are_known_by_their_names(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind
