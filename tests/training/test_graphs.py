"""CUDA graphs: for a GPU, refused where shapes change or a replay would read what another left."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import tiny, trainer_for, write_text

from heddle.core import ConfigError, override, replace
from heddle.core.system import Hardware, choose_hardware
from heddle.data.rows import PackedRows, PairRows, SentencePairRows
from heddle.data.sources import CorpusConfig, ParallelSource
from heddle.models.presets import PresetConfig, build
from heddle.objectives import (
    DenoisingConfig,
    MaskedTokenConfig,
    MixtureConfig,
    SentenceOrderConfig,
    SequenceConfig,
    SpanCorruptionConfig,
)
from heddle.training import HardwareConfig, RunConfig
from heddle.training.assemble import resolve_model
from heddle.training.compiling import should_compile_run


def test_graphs_are_for_a_gpu_and_a_cpu_goes_on_without(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    config = tiny(
        text, training__steps=2, training__micro_batch=None, hardware__compile="graphs", hardware__device="cpu"
    )
    model = build("first", layers=1, width=16, heads=2, vocab=300, context=16)
    assert not should_compile_run(config, model, choose_hardware("cpu", "float32"))
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    assert trainer.step == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rows": {"kind": "streams", "length": 8, "lanes": 4}}, "rows of the kind streams, which carry state"),
        ({"rows": {"kind": "pairs"}}, "rows of the kind pairs, whose batches differ in shape"),
        (
            {"rows": {"kind": "pairs", "length": 16, "source_length": 40, "multiple": 16}},
            "rows of the kind pairs, whose batches differ in shape",
        ),
        ({"training.batch": 8, "training.micro_batch": 4}, "several micro-batches a step"),
    ],
)
def test_what_one_replay_would_leave_to_the_next_is_refused(changes: dict[str, Any], why: str) -> None:
    config = RunConfig()
    for path, value in changes.items():
        config = override(config, path, value)
    with pytest.raises(ConfigError, match=f"hardware.compile: want on, auto or off with {why}, got 'graphs'"):
        override(config, "hardware.compile", "graphs")


def config_of(name: str, folder: Path) -> RunConfig:
    """Return a small run of an encoder-decoder or encoder, as CUDA graphs would replay it."""
    text, other = (write_text(folder / name, seed=seed) for seed, name in enumerate(("a.txt", "b.txt")))
    config = tiny(text, training__micro_batch=None, training__steps=1, rows__boundaries="stream")
    t5 = PresetConfig(name="t5-small", layers=1, width=16, heads=2, hidden=24)
    if name in ("fixed pairs", "pairs"):
        pairs = CorpusConfig(sources=(ParallelSource(source=str(text), target=str(other)),))
        rows = PairRows(length=256, source_length=200, batch=4, multiple=256 if name == "fixed pairs" else 8)
        return replace(config, model=t5, objective=SequenceConfig(), data=pairs, rows=rows)
    if name in ("sentence_order", "masked_token"):
        model = PresetConfig(name="bert-base-pretraining", layers=1, width=16, heads=2)
        if name == "sentence_order":
            rows = SentencePairRows(length=32, second="swapped")
            return replace(config, model=model, objective=SentenceOrderConfig(), rows=rows)
        return replace(config, model=model, objective=MaskedTokenConfig(unit="word"), rows=PackedRows(length=32))
    objectives = {"span_corruption": SpanCorruptionConfig(), "denoising": DenoisingConfig(), "mixture": MixtureConfig()}
    return replace(config, model=t5, objective=objectives[name])


def shapes(config: RunConfig, folder: Path, batches: int) -> set[tuple[Any, ...]]:
    """Return the shapes and types of all tensors of the batches that a run would train on, each once."""
    loader = trainer_for(config, folder).loader
    loader.workers = 0
    found = set()
    for batch in itertools.islice(loader, batches):
        tensors = {name: tensor for name, tensor in vars(batch).items() if tensor is not None}
        found.add(tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in sorted(tensors.items())))
    return found


@pytest.mark.parametrize(
    "name", ["span_corruption", "denoising", "mixture", "fixed pairs", "sentence_order", "masked_token"]
)
def test_rows_that_promise_one_shape_are_replayed_and_keep_it(name: str, tmp_path: Path) -> None:
    config = override(config_of(name, tmp_path), "hardware.compile", "graphs")  # not refused
    hardware = Hardware(torch.device("cuda"), torch.bfloat16)
    with torch.device("meta"):
        model = resolve_model(config, 400, None).build()
    assert config.rows.fixed_shape and should_compile_run(config, model, hardware)
    assert len(shapes(replace(config, hardware=HardwareConfig(device="cpu")), tmp_path / "run", 200)) == 1


def test_other_pairs_do_differ_in_shape(tmp_path: Path) -> None:
    config = config_of("pairs", tmp_path)
    assert not config.rows.fixed_shape
    assert len(shapes(config, tmp_path / "run", 200)) > 1
