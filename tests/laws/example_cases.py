"""Example cases: a small objective, encoder and batch of labelled texts for each objective that reads examples."""

import dataclasses
import math
from collections.abc import Callable

import torch
from laws.cases import ENCODERS, ids
from torch import Tensor

from heddle.core import replace
from heddle.data.rows import ExampleBatch
from heddle.data.shards import ClassSet, ScoreSet, TagSet
from heddle.models.networks import Encoder, EncoderConfig
from heddle.models.presets import preset
from heddle.objectives import (
    ClassifyConfig,
    ContrastiveConfig,
    ObjectiveConfig,
    SimilarityConfig,
    SpanConfig,
    TagConfig,
)

VOCAB, LENGTH, ROWS = 23, 12, 4
LENGTHS = torch.tensor([12, 7, 9, 1])  # the last row only fills the batch


def examples(labels: Tensor, places: Tensor | None = None, targets: Tensor | None = None) -> ExampleBatch:
    """Return rows of two texts; of the first three, some places count."""
    segments = (torch.arange(LENGTH) >= 4).long().expand(ROWS, -1)
    weights = torch.zeros(ROWS, LENGTH)
    for row, column in [(0, 0), (1, 0), (2, 0)] if places is None else places.tolist():
        weights[row, column] = 1
    start, stop = torch.zeros(ROWS), (LENGTHS - 4).clamp(min=0)
    return ExampleBatch(
        inputs=ids(ROWS, LENGTH, seed=3) % VOCAB,
        targets=torch.zeros(ROWS, LENGTH, dtype=torch.int64) if targets is None else targets,
        weights=weights,
        rows=torch.arange(ROWS),
        lengths=LENGTHS,
        segments=segments,
        labels=labels,
        examples=torch.tensor([0, 1, 2, -1]),
        windows=torch.stack([start, stop, torch.full((ROWS,), 4), stop], dim=1).long(),
    )


def encoder(objective: ObjectiveConfig, dropout: float = 0.0) -> Encoder:
    """Return a small BERT with the output of an objective."""
    config = preset("bert-base").config(**ENCODERS["bert"] | {"dropout": dropout}, vocab=VOCAB, context=LENGTH)
    assert isinstance(config, EncoderConfig)
    model = replace(objective.model_for(config)).build(3)
    assert isinstance(model, Encoder)
    return model.double()


def tagged() -> ExampleBatch:
    places = torch.tensor([(0, 1), (0, 4), (0, 11), (1, 2), (2, 8)])
    return examples(torch.zeros(ROWS, 0), places, ids(ROWS, LENGTH, seed=5) % 3)


@dataclasses.dataclass(frozen=True)
class ExampleCase:
    """An objective with its labels, what it reads, and what a model costs that knows nothing."""

    objective: ObjectiveConfig
    batch: Callable[[], ExampleBatch]
    uniform: float  # for each target that counts


THREE = ClassSet(names=("a", "b", "c"), counts=(5, 3, 1))
CASES = {
    "classify": ExampleCase(
        ClassifyConfig(labels=THREE, dropout=0.0), lambda: examples(torch.tensor([[0], [2], [1], [0]])), math.log(3)
    ),
    "several": ExampleCase(
        ClassifyConfig(labels=replace(THREE, several=True), dropout=0.0),
        lambda: examples(torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]])),
        math.log(2),
    ),
    "tag": ExampleCase(TagConfig(labels=TagSet(names=("B-X", "I-X", "O")), dropout=0.0), tagged, math.log(3)),
    "span": ExampleCase(
        SpanConfig(dropout=0.0),
        lambda: examples(torch.tensor([[5, 7], [0, 0], [6, 6], [0, 0]])),
        2 * sum(math.log(n) for n in (12, 7, 9)) / 3,
    ),
    "similarity": ExampleCase(
        SimilarityConfig(labels=ScoreSet(mean=3.0, deviation=0.5), dropout=0.0),
        lambda: examples(torch.tensor([[3.5], [2.5], [3.5], [0.0]])),
        1.0,
    ),
    "contrastive": ExampleCase(ContrastiveConfig(), lambda: examples(torch.zeros(ROWS, 0)), math.log(3)),
}
