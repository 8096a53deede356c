"""Pair runs: small corpora of pairs and small encoder-decoders, for tests of the road to translations."""

import random
from pathlib import Path
from typing import Any

import torch

from heddle.core import override
from heddle.data.rows import PairRows
from heddle.data.sources import CorpusConfig, FileSplit, ParallelSource
from heddle.models.networks import EncoderDecoder, EncoderDecoderConfig, TowerConfig, pre_norm
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig
from heddle.nn.base import FanInInitConfig, PartConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import LayerNormConfig
from heddle.nn.positions import SinusoidalPositionConfig
from heddle.nn.stack import RepeatConfig
from heddle.objectives import SequenceConfig
from heddle.text.tokenizers import ByteTokenizer
from heddle.training import EveryConfig, HardwareConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, ConstantConfig, MovingAverageConfig

TOKENIZER = ByteTokenizer().train([])
CONTEXT = 40
WORDS = {"the": "das", "a": "ein", "cat": "Katze", "dog": "Hund", "sees": "sieht", "and": "und", "big": "groß"}


def write_pairs(folder: Path, name: str, lines: int, seed: int = 0) -> ParallelSource:
    """Write two files whose lines translate each other word by word."""
    draw = random.Random(seed)
    drawn = [draw.choices(list(WORDS), k=draw.randint(1, 6)) for _ in range(lines)]
    left, right = folder / f"{name}.en", folder / f"{name}.de"
    left.write_text("".join(" ".join(words) + "\n" for words in drawn))
    right.write_text("".join(" ".join(WORDS[w] for w in words) + "\n" for words in drawn))
    return ParallelSource(source=str(left), target=str(right))


def small_pair(dropout: float = 0.0) -> EncoderDecoderConfig:
    """Return a Transformer of one layer a side over bytes."""

    def tower(*parts: PartConfig) -> TowerConfig:
        body = pre_norm(*parts, norm=LayerNormConfig(), dropout=dropout)
        plan = RepeatConfig(body=body, times=1)
        return TowerConfig(plan=plan, position=SinusoidalPositionConfig(), norm=LayerNormConfig())

    attention, channel = AttentionConfig(heads=2), FeedForwardConfig(hidden=32)
    return EncoderDecoderConfig(
        vocab=TOKENIZER.vocab,
        width=16,
        context=CONTEXT,
        encoder=tower(attention, channel),
        decoder=tower(attention, CrossAttentionConfig(heads=2), channel),
        init=FanInInitConfig(embedding=0.5, into_stream=0.5),
    )


def loud_pair(seed: int = 0) -> EncoderDecoder:
    """Build a small encoder-decoder whose probabilities are far from uniform."""
    model = small_pair().build(seed)
    assert isinstance(model, EncoderDecoder)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    return model.eval()


def tiny_pairs(folder: Path, **changes: Any) -> RunConfig:
    """Return a run on pairs of a fraction of a second, with all that makes resuming hard."""
    corpus = CorpusConfig(
        sources=(write_pairs(folder, "train", 40),), split=FileSplit(source=write_pairs(folder, "valid", 9, seed=1))
    )
    config = RunConfig(
        name="pairs",
        model=small_pair(dropout=0.1),
        tokenizer=ByteTokenizer(),
        data=corpus,
        rows=PairRows(length=CONTEXT, source_length=CONTEXT, batch=8),
        objective=SequenceConfig(smoothing=0.1),
        training=TrainingConfig(
            steps=12,
            batch=8,
            micro_batch=4,
            average=MovingAverageConfig(decay=0.9),
            optimizer=AdamWConfig(learning_rate=3e-3),
            schedule=ConstantConfig(warmup=3),
        ),
        every=EveryConfig(log=1, validate=6, save=4, sample=1000),
        hardware=HardwareConfig(device="cpu", workers=0),
    )
    for path, value in changes.items():
        config = override(config, path.replace("__", "."), value)
    return config
