"""Activation penalty: activation regularization (AR) and its temporal form (TAR) (Merity et al. 2017)."""

from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from heddle.core import part, within
from heddle.core.shapes import Stream
from heddle.nn.base import ChannelConfig, Context, HasAuxiliaryLoss, Place, upcast

Weight = Annotated[float, within("at least 0", lambda weight: weight >= 0)]


@part("activation_regularization", was="calm")
class ActivationPenaltyConfig(ChannelConfig):
    """Activation penalty: add the mean square of the stream to the loss; the stream itself does not change.

    AR applies to activations after dropout, TAR before it: use two branches, each with one of these.

    size: AR: nats for a mean square of one.
    change: TAR: the same for the difference between adjacent steps of a document.
    """

    size: Weight = 0.0
    change: Weight = 0.0

    def build(self, width: int, place: Place) -> "ActivationPenalty":
        return ActivationPenalty(self)


class ActivationPenalty(HasAuxiliaryLoss):
    """x, and size * mean(x²) + change * mean((x[t] - x[t - 1])²) as auxiliary loss."""

    def __init__(self, config: ActivationPenaltyConfig) -> None:
        super().__init__()
        self.size, self.change = config.size, config.change

    def forward(self, x: Stream, ctx: Context) -> Stream:
        if self.training and (self.size or self.change):
            self.record(self.penalty(upcast(x), ctx))
        return x

    def penalty(self, x: Stream, ctx: Context) -> Float[Tensor, ""]:
        """Return the penalty in nats per token."""
        real = ctx.real(x)
        counts = None if real is None else real.to(x.dtype)
        penalty = self.size * _mean(x.square().mean(-1), counts)
        if not self.change or x.shape[1] == 1:
            return penalty
        counts = None if counts is None else counts[:, 1:]
        if ctx.documents is not None:
            same_document = (ctx.documents[:, 1:] == ctx.documents[:, :-1]).to(x.dtype)
            counts = same_document if counts is None else counts * same_document
        return penalty + self.change * _mean((x[:, 1:] - x[:, :-1]).square().mean(-1), counts)


def _mean(values: Tensor, counts: Tensor | None) -> Float[Tensor, ""]:
    """Return the weighted mean; without weights the plain one, since Triton 3.6 fails on a sum of ones."""
    return values.mean() if counts is None else (values * counts).sum() / counts.sum().clamp(min=1)
