"""Text classification: one class of each text, or any number of them (Devlin et al. 2018, fine-tuning)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from heddle.core import ConfigError, Share, part
from heddle.core.metrics import accuracy, macro_f1, multi_label_f1
from heddle.data.rows import Batch, check_examples
from heddle.data.shards import ClassSet, LabelSet
from heddle.data.sources import LabelKind
from heddle.models.networks import Model
from heddle.nn.outputs import MultiLabelOutputConfig, OutputConfig, SequenceClassOutputConfig
from heddle.nn.state import State
from heddle.objectives.examples import ExampleObjective, Predictions, mean_by_document, row_labels, scores_of
from heddle.objectives.objective import Loss, add_auxiliary_losses, with_predictions

LIKELY = 0.5  # the probability from which a text has a class, where it may have several


@part("classify")
class ClassifyConfig(ExampleObjective):
    """Text classification: the class of a text or of a pair of texts, or all its classes where labels are lists.

    output: the output of the encoder that predicts them.
    dropout: dropout of the vector that they are predicted from.
    smoothing: label smoothing: share of each label's probability that is spread over all classes.
    class_weights: how much a text counts in training, by its class: `none`, `balanced` (rare classes count more, as
    all together weigh the same), or a number for each class by its name.
    labels: the classes; None: those of the training data.
    """

    output: str = "sequence_class"
    dropout: Share = 0.1
    smoothing: Share = 0.0
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    labels: LabelSet | None = None

    reads_media: ClassVar[bool] = True
    label_kind: ClassVar[LabelKind | None] = "classes"
    verb: ClassVar[str | None] = "classify"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.labels, ClassSet) and self.labels.several and self.class_weights != "none":
            raise ConfigError("class_weights", want="none, where a text has several classes", got=self.class_weights)
        self.weights_by_class()

    @property
    def classes(self) -> ClassSet:
        """Return the classes; two before they are known."""
        return self.labels if isinstance(self.labels, ClassSet) else ClassSet(names=("0", "1"), counts=(1, 1))

    def output_config(self) -> OutputConfig:
        kind = MultiLabelOutputConfig if self.classes.several else SequenceClassOutputConfig
        names = self.classes.names
        return kind(classes=len(names), labels=names, dropout=self.dropout, name=self.output)

    def no_labels(self, rows: int) -> Tensor:
        return torch.zeros(rows, len(self.classes.names) if self.classes.several else 1, dtype=torch.int64)

    def weights_by_class(self) -> list[float] | None:
        """Return the weight of each class in training, or None where all weigh the same; their mean is 1."""
        names, counts = self.classes.names, self.classes.counts
        if self.class_weights == "none" or self.labels is None:
            return None
        if self.class_weights == "balanced":
            return [sum(counts) / (len(counts) * max(1, count)) for count in counts]
        for name in {*self.class_weights, *names}:
            if name not in names or name not in self.class_weights:
                want = f"a number for each of {', '.join(names)}"
                raise ConfigError("class_weights", want=want, got=sorted(self.class_weights))
        return [float(self.class_weights[name]) for name in names]

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder, examples = self.checked_model(model), check_examples(batch)
        assert examples.labels is not None
        scores, output = scores_of(encoder, self.output, examples), encoder.output(self.output)
        labels = examples.labels if self.classes.several else examples.labels[:, 0]
        losses = output.score_nll(scores, labels, self.smoothing if model.training else 0.0)
        weights = examples.weights[:, 0]
        by_class = self.weights_by_class() if model.training else None
        if by_class is not None:
            weights = weights * torch.tensor(by_class, device=weights.device)[labels]
        found = add_auxiliary_losses(encoder, (losses * weights).sum(), examples)
        return found if model.training else with_predictions(found, output.probabilities(scores))

    def prediction_width(self, length: int) -> int:
        return len(self.classes.names)

    def metrics(self, predictions: Predictions, batches: Sequence[Batch]) -> dict[str, float]:
        """Return accuracy and macro F1 over texts; probabilities of a long text's windows are averaged."""
        found, labels = mean_by_document(predictions, *row_labels(batches))
        if self.classes.several:
            micro, macro = multi_label_f1(found >= LIKELY, labels > 0)
            exact = float(np.mean(np.all((found >= LIKELY) == (labels > 0), axis=1)))
            return {"micro_f1": micro, "macro_f1": macro, "exact_match": exact}
        chosen, gold = found.argmax(1).tolist(), labels[:, 0].astype(int).tolist()
        return {"accuracy": accuracy(chosen, gold), "macro_f1": macro_f1(chosen, gold)}
