"""What objectives over labelled texts share: the labels, the output that they train, and windows of long texts."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import ConfigError, replace
from heddle.data.rows import Batch, ExampleBatch, check_examples
from heddle.data.shards import LabelSet
from heddle.models.networks import Encoder, Model, NetworkConfig, require
from heddle.nn.base import Context
from heddle.nn.outputs import OutputConfig
from heddle.objectives.objective import ObjectiveConfig

Predictions = NDArray[np.float32]


class ExampleObjective(ObjectiveConfig, ABC):
    """An objective over labelled texts, which trains one output of an encoder."""

    reads_examples: ClassVar[bool] = True
    predicts_every_token: ClassVar[bool] = False
    new_weights: ClassVar[tuple[str, ...]] = ("outputs.", "pooling.")

    output: str
    labels: LabelSet | None

    @abstractmethod
    def output_config(self) -> OutputConfig:
        """Return the output that is trained; without labels, one of some size, to check and to time a model."""

    def with_labels(self, labels: LabelSet) -> "ObjectiveConfig":
        return replace(self, labels=labels)

    def model_for(self, config: NetworkConfig) -> NetworkConfig:
        return config.with_output(self.output_config())

    def checked_model(self, model: Model) -> Encoder:
        refusal = ConfigError("model.kind", want=f"an encoder for {self.kind}", got=type(model).__name__)
        encoder = require(model, Encoder, refusal)
        if self.output not in encoder.outputs:
            raise ConfigError("model.outputs", want=f"{self.output} among them", got=list(encoder.outputs))
        return encoder

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Return the batch; one that was drawn to time a step gets labels that mean nothing."""
        examples = check_examples(batch)
        if examples.labels is not None:
            return examples
        return replace_labels(examples, self.no_labels(len(examples)))

    def no_labels(self, rows: int) -> Tensor:
        """Return labels for rows without any."""
        return torch.zeros(rows, 1, dtype=torch.int64)


def replace_labels(batch: ExampleBatch, labels: Tensor) -> ExampleBatch:
    """Return a batch with other labels."""
    return dataclasses.replace(batch, labels=labels)


def run_examples(model: Encoder, batch: ExampleBatch) -> tuple[Tensor, Context]:
    """Return the last layer's vectors of examples, texts or media, and their context."""
    if batch.source is not None:
        return model.run(batch.source, Context(lengths=batch.source_lengths))
    assert batch.lengths is not None
    return model.run(batch.inputs, model.context_for(batch.lengths, batch.segments))


def scores_of(model: Encoder, output: str, batch: ExampleBatch) -> Tensor:
    """Return the scores of an output for examples."""
    x, ctx = run_examples(model, batch)
    found = model.output(output)
    return found.scores(x if found.reads == "tokens" else model.pool(x, ctx), ctx)


# --- grading ----------------------------------------------------------------------------------------------------------


def row_labels(batches: Sequence[Batch]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the documents that rows belong to (-1: none) and the labels of the rows."""
    found = [check_examples(batch) for batch in batches]
    examples = np.concatenate([batch.examples.numpy() for batch in found if batch.examples is not None])
    labels = np.concatenate([batch.labels.numpy() for batch in found if batch.labels is not None])
    return examples, labels.astype(np.float64)


def mean_by_document(
    predictions: Predictions, examples: NDArray[np.int64], labels: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean prediction of each document over its windows, and its label."""
    kept = examples >= 0
    documents, first, inverse = np.unique(examples[kept], return_index=True, return_inverse=True)
    total = np.zeros((len(documents), predictions.shape[1]))
    np.add.at(total, inverse, predictions[kept].astype(np.float64))
    counts = np.bincount(inverse, minlength=len(documents))[:, None]
    return total / np.maximum(1, counts), labels[kept][first]
