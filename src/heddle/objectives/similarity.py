"""Sentence-pair similarity: a score for two texts that are read together (STS, SICK; Devlin et al. 2018)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from heddle.core import Share, part
from heddle.core.metrics import pearson, spearman
from heddle.data.rows import Batch, check_examples
from heddle.data.shards import LabelSet, ScoreSet
from heddle.data.sources import LabelKind
from heddle.models.networks import Model
from heddle.nn.outputs import OutputConfig, RegressionOutputConfig
from heddle.nn.state import State
from heddle.objectives.examples import ExampleObjective, Predictions, mean_by_document, row_labels, scores_of
from heddle.objectives.objective import Loss, add_auxiliary_losses, with_predictions


@part("similarity")
class SimilarityConfig(ExampleObjective):
    """Similarity, or any other number, of one text or of two: squared error, in units of the training data's deviation.

    output: the output of the encoder that predicts it.
    dropout: dropout of the vector that it is predicted from.
    labels: mean and deviation of the scores; None: those of the training data.
    """

    output: str = "sequence_class"
    dropout: Share = 0.1
    labels: LabelSet | None = None

    label_kind: ClassVar[LabelKind | None] = "score"
    verb: ClassVar[str | None] = "classify"

    def output_config(self) -> OutputConfig:
        known = self.labels if isinstance(self.labels, ScoreSet) else ScoreSet()
        return RegressionOutputConfig(dropout=self.dropout, name=self.output, offset=known.mean, scale=known.deviation)

    def no_labels(self, rows: int) -> Tensor:
        return torch.zeros(rows, 1)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder, examples = self.checked_model(model), check_examples(batch)
        assert examples.labels is not None
        scores = scores_of(encoder, self.output, examples)
        losses = encoder.output(self.output).score_nll(scores, examples.labels)
        found = add_auxiliary_losses(encoder, (losses * examples.weights[:, 0]).sum(), examples)
        return found if model.training else with_predictions(found, scores)

    def prediction_width(self, length: int) -> int:
        return 1

    def metrics(self, predictions: Predictions, batches: Sequence[Batch]) -> dict[str, float]:
        """Return Spearman's and Pearson's correlation."""
        found, labels = mean_by_document(predictions, *row_labels(batches))
        mine, gold = found[:, 0].tolist(), labels[:, 0].tolist()
        return {"spearman": spearman(mine, gold), "pearson": pearson(mine, gold)}
