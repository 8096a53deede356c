"""CTC (Graves et al. 2006), and CTC jointly with attention (Watanabe et al. 2017): from frames to tokens."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import ConfigError, Share, part
from heddle.core.metrics import edit_distance
from heddle.core.shapes import Stream
from heddle.data.rows import Batch, RowsConfig
from heddle.models.networks import Model, NetworkConfig
from heddle.nn.base import Context
from heddle.nn.outputs import CtcOutput, CtcOutputConfig, collapse, needed_frames
from heddle.nn.state import State
from heddle.objectives.objective import (
    Loss,
    ObjectiveConfig,
    SequenceConfig,
    add_auxiliary_losses,
    after_last_target,
    head_loss,
    require_encoder_decoder,
    with_predictions,
)

Lengths = Int[Tensor, " batch"]


class _FrameObjective(ObjectiveConfig):
    """What objectives with CTC share."""

    predicts_every_token: ClassVar[bool] = False
    reads_media: ClassVar[bool] = True
    verb: ClassVar[str | None] = "transcribe"

    def check_rows(self, rows: RowsConfig) -> None:
        super().check_rows(rows)
        if not rows.reads_media:
            raise ConfigError("rows.kind", want=f"media, because {self.kind} reads frames", got=rows.kind)

    def prediction_width(self, length: int) -> int:
        return 2

    def metrics(self, predictions: NDArray[np.float32], batches: Sequence[Batch]) -> dict[str, float]:
        """Return the edits of the most probable paths, for each token of the texts."""
        edits, tokens = predictions.sum(0, dtype=np.float64).tolist()
        return {"token_error_rate": edits / max(1.0, tokens)}


@part("ctc")
class CtcConfig(_FrameObjective):
    """CTC: the sum of all paths of tokens and blanks that collapse to the text (Graves et al. 2006).

    output: the output that predicts tokens and blanks.
    dropout: dropout of the vectors that they are predicted from.
    """

    output: str = "ctc"
    dropout: Share = 0.0

    @property
    def new_weights(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the prefix of the names of the output's weights, which learn beside adapters."""
        return (f"outputs.{self.output}.",)

    def model_for(self, config: NetworkConfig) -> NetworkConfig:
        return config.with_ctc(CtcOutputConfig(name=self.output, dropout=self.dropout))

    def checked_model(self, model: Model) -> Model:
        ctc_output(model, self.output)
        return model

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        if batch.source is None:
            raise ConfigError("rows.kind", want="media, because the objective is CTC", got="another kind")
        vectors, real = model.token_vectors(batch.source, batch.source_lengths)
        frames = self.frame_loss(model, vectors, None if real is None else real.sum(1), batch)
        found = replace_metrics(add_auxiliary_losses(model, frames.total, batch), **frames.metrics)
        return found if frames.predictions is None else with_predictions(found, frames.predictions)

    def frame_loss(self, model: Model, vectors: Stream, lengths: Lengths | None, batch: Batch) -> Loss:
        """Return the loss of the frames alone, from their vectors; in validation, with the edits of best paths."""
        output, labels = ctc_output(model, self.output), labels_of(batch)
        scores = output.scores(vectors, Context())
        losses = output.score_nll(scores, labels, lengths=lengths)
        counted = (batch.weights > 0).any(1)
        most = torch.full_like(labels[:, 0], scores.shape[1]) if lengths is None else lengths
        few = (needed_frames(labels) > most) & counted
        found = Loss((losses * counted).sum(), {"too_few_frames": few.sum().float()})
        if model.training:
            return found
        return with_predictions(found, _edits(scores, most, labels, output.blank) * counted[:, None])


@part("ctc_attention")
class CtcAttentionConfig(_FrameObjective):
    """CTC and attention jointly: one encoder, whose frames CTC reads and the decoder attends to (Watanabe 2017).

    weight: share of CTC in the loss; attention has the rest.
    ctc: the loss of the frames.
    attention: the loss of the decoder's tokens.
    """

    weight: Share = 0.3
    ctc: CtcConfig = CtcConfig()
    attention: SequenceConfig = SequenceConfig()

    @property
    def new_weights(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the prefix of the names of the output's weights, which learn beside adapters."""
        return self.ctc.new_weights

    def scheduled_value(self, step: int, steps: int) -> float | None:
        return self.attention.scheduled_value(step, steps)

    def model_for(self, config: NetworkConfig) -> NetworkConfig:
        return self.ctc.model_for(config)

    def checked_model(self, model: Model) -> Model:
        return self.ctc.checked_model(require_encoder_decoder(model, self))

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        checked = require_encoder_decoder(model, self)
        if batch.source is None:
            raise ConfigError("rows.kind", want="media, because the objective is CTC", got="another kind")
        memory = checked.encode(batch.source, batch.source_lengths)
        lengths = None if memory.allowed is None else memory.allowed[:, 0, 0].sum(1)
        frames = self.ctc.frame_loss(model, memory.layers[-1], lengths, batch)
        ctx = Context(memory=memory, ignored=after_last_target(batch))
        hidden = checked(self.attention.sampling.model_inputs(checked, batch.inputs, ctx, scheduled), ctx)
        tokens = head_loss(checked, hidden, batch, self.attention.smoothing, self.attention.z_loss)
        metrics = {"ctc_loss": frames.total.detach(), "attention_loss": tokens.detach()}
        found = add_auxiliary_losses(model, self.weight * frames.total + (1 - self.weight) * tokens, batch)
        found = replace_metrics(found, **metrics, too_few_frames=frames.metrics["too_few_frames"])
        return found if frames.predictions is None else with_predictions(found, frames.predictions)


def ctc_output(model: Model, name: str) -> CtcOutput:
    """Return the CTC output of a model, or refuse the model."""
    found = model.output(name)
    if not isinstance(found, CtcOutput):
        raise ConfigError("model.outputs", want=f"one of the kind ctc, called {name}", got=type(found).__name__)
    return found


def labels_of(batch: Batch) -> Int[Tensor, "batch targets"]:
    """Return the tokens of each text without its end; -1 after them."""
    last = (batch.weights > 0).sum(1, keepdim=True) - 1
    return batch.targets.masked_fill(torch.arange(batch.targets.shape[1], device=last.device) >= last, -1)


def replace_metrics(loss: Loss, **metrics: Tensor) -> Loss:
    """Return a loss with more metrics."""
    return Loss(loss.total, {**loss.metrics, **metrics}, loss.carried, loss.predictions)


def _edits(scores: Tensor, lengths: Lengths, labels: Tensor, blank: int) -> Tensor:
    """Return for each row the edits from its most probable path to its text, and the tokens of that."""
    paths = scores.argmax(-1).tolist()
    rows = zip(paths, lengths.tolist(), labels.tolist(), strict=True)
    found = []
    for path, length, row in rows:
        right = [str(one) for one in row if one >= 0]
        found.append((edit_distance([str(one) for one in collapse(path[:length], blank)], right), len(right)))
    return torch.tensor(found, dtype=torch.float32, device=scores.device)
