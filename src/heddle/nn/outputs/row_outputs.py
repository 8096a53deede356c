"""Outputs for whole rows: several classes of one text, and a number, such as the similarity of two sentences."""

from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Share, part, within
from heddle.core.shapes import Losses
from heddle.nn.base import Context, Linear, Role, upcast
from heddle.nn.outputs.encoder_outputs import ClassOutputConfig, Output, OutputConfig, Vectors


@part("multi_label")
class MultiLabelOutputConfig(ClassOutputConfig):
    """Multi-label classification: any number of classes of a row, each by a sigmoid.

    classes: how many classes.
    name: what the output is called.
    dropout: dropout of the pooled vector.
    labels: names of the classes; (): numbers only.
    """

    name: str = "sequence_class"
    reads = "pooled"

    def build(self, vocab: int | None, width: int) -> Output:
        return MultiLabelOutput(width, self.classes, self.dropout)


class MultiLabelOutput(Output):
    """sigmoid(classes(dropout(x)))."""

    reads = "pooled"

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classes = Linear(width, classes, bias=True, role=Role.HEAD)

    def scores(self, x: Vectors, ctx: Context) -> Tensor:
        return self.classes(self.dropout(x))  # type: ignore[no-any-return]

    def nll(self, x: Vectors, labels: Int[Tensor, "batch classes"], ctx: Context) -> Float[Tensor, " batch"]:
        return self.score_nll(self.scores(x, ctx), labels)

    def score_nll(self, scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> Losses:
        """Return the mean cross-entropy over the classes, of which each label is 0 or 1."""
        targets = labels.float() * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(upcast(scores), targets, reduction="none").mean(-1)

    def probabilities(self, scores: Tensor) -> Tensor:
        return upcast(scores).sigmoid()


@part("regression")
class RegressionOutputConfig(OutputConfig):
    """Regression: one number for a row, such as the similarity of two texts.

    name: what the output is called.
    dropout: dropout of the pooled vector.
    offset: added to the number; the mean of what is to be predicted.
    scale: the number is multiplied by it; the deviation of what is to be predicted.
    """

    name: str = "sequence_class"
    dropout: Share = 0.0
    offset: float = 0.0
    scale: Annotated[float, within("above 0", lambda scale: scale > 0)] = 1.0
    reads = "pooled"

    def build(self, vocab: int | None, width: int) -> Output:
        return RegressionOutput(width, self)


class RegressionOutput(Output):
    """offset + scale * classes(dropout(x))."""

    reads = "pooled"

    def __init__(self, width: int, config: RegressionOutputConfig) -> None:
        super().__init__()
        self.offset, self.scale = config.offset, config.scale
        self.dropout = nn.Dropout(config.dropout)
        self.classes = Linear(width, 1, bias=True, role=Role.HEAD)

    def scores(self, x: Vectors, ctx: Context) -> Float[Tensor, "batch 1"]:
        return self.offset + self.scale * upcast(self.classes(self.dropout(x)))

    def nll(self, x: Vectors, labels: Float[Tensor, "batch 1"], ctx: Context) -> Float[Tensor, " batch"]:
        return self.score_nll(self.scores(x, ctx), labels)

    def score_nll(self, scores: Tensor, labels: Tensor, smoothing: float = 0.0) -> Losses:
        """Return the squared error in units of the scale: 1 for a model that always says the mean."""
        return (((scores - labels) / self.scale) ** 2).squeeze(-1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the numbers themselves."""
        return scores
