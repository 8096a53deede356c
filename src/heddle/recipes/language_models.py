"""Language models: the first run, characters, words, GPT-2, and a speedrun."""

from heddle.data.rows import PackedRows, StreamRows
from heddle.models.presets import PresetConfig
from heddle.text.tokenizers import BpeTokenizer, CharacterTokenizer, WordTokenizer
from heddle.training import EveryConfig, HardwareConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig, MuonConfig, StableDecayConfig


def first() -> RunConfig:
    """A small Transformer on the sources of Python's standard library: minutes on a laptop."""
    return RunConfig(
        name="first",
        model=PresetConfig(name="first"),
        tokenizer=BpeTokenizer(),
        rows=PackedRows(length=256),
        training=TrainingConfig(
            steps=700,
            batch=8,
            optimizer=MuonConfig(learning_rate=0.02, rest=AdamWConfig(learning_rate=3e-3, weight_decay=0.0)),
            schedule=StableDecayConfig(warmup=10, decay=0.5),
        ),
        every=EveryConfig(log=10, validate=350, save=350, sample=350),
    )


def characters() -> RunConfig:
    """A character-level Transformer of 6 layers, for a megabyte of text such as tiny Shakespeare."""
    return RunConfig(
        name="characters",
        model=PresetConfig(name="first", layers=6, width=384, heads=6, dropout=0.3),
        tokenizer=CharacterTokenizer(),
        rows=PackedRows(length=256, boundaries="stream"),
        training=TrainingConfig(
            steps=2000,
            batch=64,
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=1.0),
            schedule=CosineConfig(warmup=100, floor=0.0),
        ),
    )


def lstm_characters() -> RunConfig:
    """A character-level LSTM with about as many parameters as `characters`."""
    return RunConfig(
        name="lstm_characters",
        model=PresetConfig(name="lstm_lm", layers=2, width=816, dropout=0.5),
        tokenizer=CharacterTokenizer(),
        rows=PackedRows(length=256, boundaries="stream"),
        training=TrainingConfig(
            steps=1500,
            batch=64,
            optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.1),
            schedule=CosineConfig(warmup=100, floor=0.0),
        ),
    )


def lstm() -> RunConfig:
    """A word-level LSTM with carried state."""
    return RunConfig(
        name="lstm",
        model=PresetConfig(name="lstm_lm", layers=2, width=650, dropout=0.5),
        tokenizer=WordTokenizer(least=2, punctuation="attached"),
        rows=StreamRows(length=70, lanes=40),
        training=TrainingConfig(
            steps=10_000,
            batch=40,
            optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.01),
            schedule=CosineConfig(warmup=200, floor=0.02),
            clip=0.25,
        ),
        every=EveryConfig(log=20, validate=500, save=500, sample=500),
    )


def gpt2() -> RunConfig:
    """GPT-2's smallest size, for a GPU and some gigabytes of text."""
    return RunConfig(
        name="gpt2",
        model=PresetConfig(name="gpt2"),
        tokenizer=BpeTokenizer(vocab=50_257),
        rows=PackedRows(length=1024),
        training=TrainingConfig(
            steps=20_000,
            batch=480,
            micro_batch=32,
            optimizer=AdamWConfig(learning_rate=6e-4),
            schedule=CosineConfig(warmup=700, floor=0.1),
        ),
    )


def speedrun() -> RunConfig:
    """The lowest loss in half a minute of one H200, on some 150 MB of English prose."""
    return RunConfig(
        name="speedrun",
        model=PresetConfig(name="speedrun"),
        tokenizer=BpeTokenizer(vocab=16_384),
        rows=PackedRows(length=1024, boundaries="stream"),
        training=TrainingConfig(
            steps=1900,
            batch=16,
            optimizer=MuonConfig(
                learning_rate=0.02, rest=AdamWConfig(learning_rate=8e-3, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
            ),
            schedule=StableDecayConfig(warmup=0, decay=0.6),
            clip=None,
        ),
        every=EveryConfig(log=100, validate=1900, save=1900, sample=1900),
        hardware=HardwareConfig(compile="graphs"),
    )
