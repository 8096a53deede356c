"""Pre-training on plain text: BERT, T5, BART, ELECTRA."""

from heddle.data.rows import PackedRows
from heddle.models.presets import PresetConfig
from heddle.objectives import DenoisingConfig, MaskedTokenConfig, ReplacedTokenConfig, SpanCorruptionConfig
from heddle.text.tokenizers import BpeTokenizer
from heddle.training import EveryConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def bert() -> RunConfig:
    """A small BERT learns hidden words of plain text (masked language modelling): minutes on a GPU."""
    return RunConfig(
        name="bert",
        model=PresetConfig(name="bert-base-masked", layers=4, width=256, heads=4),
        tokenizer=BpeTokenizer(),
        rows=PackedRows(length=128),
        objective=MaskedTokenConfig(unit="word"),
        training=TrainingConfig(
            steps=2000,
            batch=32,
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.01),
            schedule=CosineConfig(warmup=200, floor=0.0),
        ),
        every=EveryConfig(log=10, validate=500, save=500, sample=1000),
    )


def t5() -> RunConfig:
    """A small T5 learns to fill in hidden spans of plain text: an hour on a laptop, minutes on a GPU."""
    return RunConfig(
        name="t5",
        model=PresetConfig(name="t5.1.1-small", layers=4, width=256, heads=4, hidden=512),
        tokenizer=BpeTokenizer(),
        rows=PackedRows(length=284, boundaries="stream"),
        objective=SpanCorruptionConfig(z_loss=1e-4),
        training=TrainingConfig(
            steps=2000,
            batch=32,
            optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.01),
            schedule=CosineConfig(warmup=100, floor=0.1),
        ),
        every=EveryConfig(log=10, validate=500, save=500, sample=1000),
    )


def bart() -> RunConfig:
    """A small BART learns to restore plain text from which spans are missing and whose sentences are permuted."""
    return RunConfig(
        name="bart",
        model=PresetConfig(name="bart-base", layers=3, width=256, heads=4),
        tokenizer=BpeTokenizer(),
        rows=PackedRows(length=255, boundaries="stream"),
        objective=DenoisingConfig(),
        training=TrainingConfig(
            steps=2000,
            batch=32,
            optimizer=AdamWConfig(learning_rate=5e-4, weight_decay=0.01),
            schedule=CosineConfig(warmup=200, floor=0.0),
        ),
        every=EveryConfig(log=10, validate=500, save=500, sample=1000),
    )


def electra() -> RunConfig:
    """A small ELECTRA learns to detect tokens that a generator replaced: every token of a text teaches."""
    return RunConfig(
        name="electra",
        model=PresetConfig(name="electra-small", layers=4, width=256, heads=4),
        tokenizer=BpeTokenizer(),
        rows=PackedRows(length=128),
        objective=ReplacedTokenConfig(),
        training=TrainingConfig(
            steps=2000,
            batch=32,
            optimizer=AdamWConfig(learning_rate=5e-4, weight_decay=0.01),
            schedule=CosineConfig(warmup=200, floor=0.0),
        ),
        every=EveryConfig(log=10, validate=500, save=500, sample=1000),
    )
