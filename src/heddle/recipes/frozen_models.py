"""Learning beside a frozen model: distillation from a teacher, and preferences against a reference (DPO)."""

from heddle.data.rows import PackedRows, PreferenceRows
from heddle.data.sources import CorpusConfig, HashSplit, PreferenceSource
from heddle.objectives import DistillationConfig, MaskedTokenConfig, PreferenceConfig
from heddle.training import EveryConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def distill() -> RunConfig:
    """A student with half the layers of the run `bert` learns its probabilities (DistilBERT): minutes on a GPU."""
    return RunConfig(
        name="distill",
        init="bert",
        init_layers=2,
        rows=PackedRows(length=128),
        objective=DistillationConfig(hard_targets=MaskedTokenConfig(unit="word")),
        training=TrainingConfig(
            steps=2000,
            batch=32,
            optimizer=AdamWConfig(learning_rate=5e-4, weight_decay=0.01),
            schedule=CosineConfig(warmup=100, floor=0.0),
        ),
        every=EveryConfig(log=10, validate=500, save=500, sample=1000),
    )


def dpo() -> RunConfig:
    """The run `finetune` learns to prefer the chosen answers of pairs.jsonl to the rejected ones (DPO)."""
    return RunConfig(
        name="dpo",
        init="finetune",
        data=CorpusConfig(sources=(PreferenceSource(path="pairs.jsonl"),), split=HashSplit(fraction=0.1)),
        rows=PreferenceRows(length=512),
        objective=PreferenceConfig(),
        training=TrainingConfig(
            steps=200,
            batch=32,
            micro_batch=4,
            optimizer=AdamWConfig(learning_rate=1e-5, weight_decay=0.0),
            schedule=CosineConfig(warmup=20, floor=0.1),
        ),
        every=EveryConfig(log=5, validate=50, save=50, sample=100),
    )
