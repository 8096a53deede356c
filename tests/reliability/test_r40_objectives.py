"""R40: a run of every objective is killed (SIGKILL) inside a step; it goes on and ends in the same bits."""

import json
import random
import signal
from pathlib import Path

import pytest
from data.sounds import RATE, write_folder
from reliability.harness import Blow, Nursery, differences, tiny, trainer_for, write_config, write_text
from training.test_labelled import OBJECTIVES
from training.test_labelled import run as labelled

from heddle.core import replace
from heddle.data.media import LogMelConfig, SpecAugmentConfig, SpeedConfig
from heddle.data.rows import MediaRows, PreferenceRows, SentencePairRows
from heddle.data.sources import HashSplit, corpus_for
from heddle.models.presets import PresetConfig
from heddle.objectives import (
    CtcAttentionConfig,
    CtcConfig,
    DenoisingConfig,
    DistillationConfig,
    MaskedTokenConfig,
    MixtureConfig,
    NextSentenceConfig,
    NextTokenConfig,
    ObjectiveConfig,
    PreferenceConfig,
    PrefixLMConfig,
    ReplacedTokenConfig,
    SentenceOrderConfig,
    SpanCorruptionConfig,
)
from heddle.text.tokenizers import CharacterTokenizer
from heddle.training import HardwareConfig, RunConfig, store_teacher_outputs

STEPS, SAVE, KILLS = 6, 2, 5
MANY = (KILLS + 2) * SAVE  # steps: each kill comes after one more save
SMALL = {"layers": 1, "width": 32, "heads": 2, "dropout": 0.1}
T5 = PresetConfig(name="t5-small", hidden=48, **SMALL)
# By name: the objective, its model, and changes of the rows.
RUNS: dict[str, tuple[ObjectiveConfig, PresetConfig, dict[str, object]]] = {
    "span_corruption": (SpanCorruptionConfig(z_loss=1e-4), T5, {"boundaries": "stream"}),
    "denoising": (DenoisingConfig(), PresetConfig(name="bart-base", **SMALL), {"boundaries": "stream"}),
    "mixture": (MixtureConfig(), T5, {"boundaries": "stream", "length": 48}),
    "prefix_lm": (PrefixLMConfig(), PresetConfig(name="first", **SMALL), {}),
    "masked_token": (MaskedTokenConfig(), PresetConfig(name="bert-base-masked", **SMALL), {}),
    "words": (MaskedTokenConfig(unit="word"), PresetConfig(name="bert-base-masked", **SMALL), {}),
    "static": (MaskedTokenConfig(static=10), PresetConfig(name="bert-base-masked", **SMALL), {"recut": False}),
    "next_sentence": (NextSentenceConfig(), PresetConfig(name="bert-base-pretraining", **SMALL), {"second": "random"}),
    "sentence_order": (
        SentenceOrderConfig(),
        PresetConfig(name="bert-base-pretraining", **SMALL),
        {"second": "swapped"},
    ),
    "replaced_token": (ReplacedTokenConfig(), PresetConfig(name="electra-small", **SMALL), {}),
    "distillation": (DistillationConfig(), PresetConfig(name="first", **SMALL), {"init_layers": 1}),
    "distillation_masked": (
        DistillationConfig(hard_targets=MaskedTokenConfig()),
        PresetConfig(name="bert-base-masked", **SMALL),
        {"init_layers": (1,)},
    ),
    "distillation_stored": (
        DistillationConfig(hard_targets=MaskedTokenConfig()),
        PresetConfig(name="bert-base-masked", **SMALL),
        {"init_layers": (1,), "stored": True},
    ),
    "ctc": (CtcConfig(), PresetConfig(name="speech_ctc", **SMALL), {"media": True}),
    "ctc_attention": (CtcAttentionConfig(), PresetConfig(name="speech_transformer", **SMALL), {"media": True}),
    "preference": (PreferenceConfig(), PresetConfig(name="first", **SMALL), {"init_layers": None}),
}


def config_for(name: str, folder: Path, steps: int = STEPS) -> RunConfig:
    """Return a run of an objective; sentence pairs need several documents."""
    if name in OBJECTIVES:
        return labelled(folder, name, training__steps=steps, every__save=SAVE, every__validate=3)
    objective, model, rows = RUNS[name]
    text = write_text(folder / "text.txt", lines=120)
    config = replace(
        tiny(text, training__steps=steps, every__save=SAVE, every__validate=3), model=model, objective=objective
    )
    if "media" in rows:
        return with_sounds(config, folder)
    if "init_layers" in rows:
        return beside_a_frozen_model(config, name, folder)
    if "second" not in rows:
        return replace(config, rows=replace(config.rows, **rows))
    lines = text.read_text().splitlines()
    texts = [" ".join(lines[first : first + 4]) for first in range(0, 120, 4)]
    (folder / "my.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    corpus = replace(corpus_for(str(folder / "my.jsonl")), split=HashSplit(fraction=0.3))
    return replace(config, data=corpus, rows=SentencePairRows(length=48, **rows))


def with_sounds(config: RunConfig, folder: Path) -> RunConfig:
    """Return a run on sounds, whose features are augmented by the row."""
    write_folder(folder / "sounds", 24)
    corpus = replace(corpus_for(str(folder / "sounds")), split=HashSplit(fraction=0.3))
    source = replace(corpus.sources[0], sample_rate=RATE)
    features = LogMelConfig(mels=8, sample_rate=RATE)
    augment = (SpeedConfig(), SpecAugmentConfig(band_width=2, time_width=8))
    batch = config.training.batch
    rows = MediaRows(length=8, source_length=80, batch=batch, features=features, augment=augment)
    return replace(config, data=replace(corpus, sources=(source,)), rows=rows, tokenizer=CharacterTokenizer())


def beside_a_frozen_model(config: RunConfig, name: str, folder: Path) -> RunConfig:
    """Return a run that starts from a model of two layers, which is also its teacher or its reference model."""
    objective, model, more = RUNS[name]
    hard = objective.hard_targets if isinstance(objective, DistillationConfig) else NextTokenConfig()
    start = replace(tiny(folder / "text.txt", training__steps=2), model=replace(model, layers=2), objective=hard)
    if not (folder / "start").exists():
        trainer_for(start, folder / "start").fit()
    config = replace(config, init=str(folder / "start"), init_layers=more["init_layers"])
    if "stored" in more:
        store_teacher_outputs(config, folder / "taught", 4, runs=folder / "teaching")
        return replace(config, objective=replace(objective, teacher=str(folder / "taught")))
    if more["init_layers"] is not None:
        return config
    words = (folder / "text.txt").read_text().split()
    threes = zip(words, words[1:], words[2:], strict=False)
    pairs = [{"prompt": f"{a} {b}", "chosen": f" {c}", "rejected": f" {c} {a}"} for a, b, c in threes]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs[:60]))
    corpus = replace(corpus_for(str(folder / "pairs.jsonl")), split=HashSplit(fraction=0.3))
    return replace(config, data=corpus, rows=PreferenceRows(length=32))


def kill(nest: Nursery, tmp_path: Path, config: RunConfig, blows: list[int]) -> None:
    """Kill a run at counted micro-batches, each of its own attempt, and compare its end with that of another."""
    target = str(write_config(tmp_path / "run.yaml", config))
    assert nest.one(tmp_path / "whole", target).code == 0
    for number in blows:
        outcome = nest.one(tmp_path / "cut", target, Blow("micro", number))
        target = str(tmp_path / "cut" / "runs" / "tiny")
        assert outcome.code == -signal.SIGKILL, outcome.said
    last = nest.one(tmp_path / "cut", target)
    assert last.code == 0, last.said
    found = differences(Path(target), tmp_path / "whole" / "runs" / "tiny")
    assert not found, f"differs in {found}"


@pytest.mark.parametrize(
    "name", ["span_corruption", "replaced_token", "distillation_stored", "preference", "ctc_attention"]
)
def test_r40_a_killed_run_ends_the_same(name: str, nest: Nursery, tmp_path: Path) -> None:
    kill(nest, tmp_path, config_for(name, tmp_path), [STEPS + 1])  # of two micro-batches a step: in the middle


REST = [name for name in (*RUNS, *OBJECTIVES) if name not in ("distillation", "contrastive")]  # its batch is the unit


@pytest.mark.parametrize("name", ["distillation", *(pytest.param(name, marks=pytest.mark.full) for name in REST)])
def test_r40_two_processes_end_the_same(name: str, nest: Nursery, tmp_path: Path) -> None:
    config = replace(config_for(name, tmp_path), hardware=HardwareConfig(device="cpu", workers=0, dtype="float32"))
    changes = {"steps": 3, "reduction": "deterministic", "micro_batch": 1}
    path = write_config(tmp_path / "run.yaml", replace(config, training=replace(config.training, **changes)))
    for world in (1, 2):
        done = nest.run(tmp_path / str(world), str(path), world=world)
        assert {one.code for one in done} == {0}, done[0].said
    found = differences(*(tmp_path / str(world) / "runs" / "tiny" for world in (1, 2)))
    assert not found, f"{name} differs in {found}"


@pytest.mark.full
@pytest.mark.parametrize("name", [*RUNS, *OBJECTIVES])
def test_r40_full(name: str, nest: Nursery, tmp_path: Path) -> None:
    config, draw = config_for(name, tmp_path, MANY), random.Random(name)
    a_step = config.training.batch // (config.training.micro_batch or config.training.batch)  # micro-batches
    kill(nest, tmp_path, config, [draw.randint(a_step * SAVE + 1, a_step * (SAVE + 2) - 1) for _ in range(KILLS)])
    print(f"R40: {name}: {KILLS} kills, equal in every bit")
