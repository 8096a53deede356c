"""Words: word-level language models for small texts such as Penn Treebank, under strong regularization."""

from heddle.data.rows import StreamRows
from heddle.models.presets import PresetConfig
from heddle.text.tokenizers import WordTokenizer
from heddle.training import EveryConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, ConstantConfig, CosineConfig, SGDConfig, TriggeredAverageConfig


def awd_lstm() -> RunConfig:
    """An AWD-LSTM on the words of a text of some megabytes, with carried state: minutes on a GPU."""
    return RunConfig(
        name="awd_lstm",
        model=PresetConfig(name="awd_lstm"),
        tokenizer=WordTokenizer(punctuation="attached"),
        rows=StreamRows(length=70, lanes=64),
        training=TrainingConfig(
            steps=24_000,
            batch=64,
            optimizer=AdamWConfig(learning_rate=3e-3, betas=(0.9, 0.99), weight_decay=0.02),
            schedule=CosineConfig(warmup=1000, floor=0.0),
            clip=0.25,
        ),
        every=EveryConfig(log=100, validate=1000, save=6000, sample=6000),
    )


def awd_lstm_sgd() -> RunConfig:
    """The AWD-LSTM as it was published: descent at a constant rate, weights averaged once the held-out loss stalls."""
    return RunConfig(
        name="awd_lstm_sgd",
        model=PresetConfig(name="awd_lstm"),
        tokenizer=WordTokenizer(punctuation="attached"),
        rows=StreamRows(length=70, lanes=20),
        training=TrainingConfig(
            steps=332_000,
            batch=20,
            optimizer=SGDConfig(learning_rate=30.0, weight_decay=1.2e-6),
            schedule=ConstantConfig(),
            clip=0.25,
            average=TriggeredAverageConfig(patience=5),
        ),
        every=EveryConfig(log=100, validate=664, save=6640, sample=33_200),
    )
