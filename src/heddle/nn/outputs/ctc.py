"""Connectionist temporal classification (CTC): tokens and blanks, one for each frame (Graves et al. 2006)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, Share, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Linear, Role, upcast
from heddle.nn.outputs.encoder_outputs import Output, OutputConfig


@part("ctc")
class CtcOutputConfig(OutputConfig):
    """CTC: the probability of each token, or of a blank, at each frame; a text is all paths that collapse to it.

    name: what the output is called.
    dropout: dropout of each frame's vector.
    """

    name: str = "ctc"
    dropout: Share = 0.0

    def build(self, vocab: int | None, width: int) -> Output:
        if vocab is None:
            raise ConfigError("vocab", want="the number of token ids, because CTC predicts them", got=None)
        return CtcOutput(vocab, width, self.dropout)


class CtcOutput(Output):
    """softmax(classes(dropout(x))); the last class is the blank."""

    def __init__(self, vocab: int, width: int, dropout: float) -> None:
        super().__init__()
        self.blank = vocab
        self.dropout = nn.Dropout(dropout)
        self.classes = Linear(width, vocab + 1, bias=True, role=Role.HEAD)

    def scores(self, x: Stream, ctx: Context) -> Float[Tensor, "batch length classes"]:
        return self.classes(self.dropout(x))  # type: ignore[no-any-return]

    def nll(self, x: Stream, labels: Int[Tensor, "batch targets"], ctx: Context) -> Float[Tensor, " batch"]:
        """Return the loss of each row's tokens; labels below 0 are padding, at the end of a row."""
        return self.score_nll(self.scores(x, ctx), labels, lengths=ctx.lengths)

    def weighted_nll(
        self, x: Stream, labels: Int[Tensor, "batch targets"], weights: Float[Tensor, " batch"], ctx: Context
    ) -> Float[Tensor, ""]:
        return (self.nll(x, labels, ctx) * weights).sum()

    def score_nll(
        self,
        scores: Float[Tensor, "batch length classes"],
        labels: Int[Tensor, "batch targets"],
        smoothing: float = 0.0,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return the loss of each row's tokens over its first `lengths` frames; 0 where they are too few for them."""
        if smoothing:
            raise UsageError("smoothing: want 0, because CTC has no single target at a frame")
        logprobs = upcast(scores).log_softmax(-1).transpose(0, 1)
        if lengths is None:
            lengths = torch.full((len(scores),), scores.shape[1], device=scores.device)
        real, counts = labels.clamp(min=0), (labels >= 0).sum(1)
        return F.ctc_loss(logprobs, real, lengths, counts, self.blank, reduction="none", zero_infinity=True)


def needed_frames(labels: Int[Tensor, "batch targets"]) -> Int[Tensor, " batch"]:
    """Return how few frames a row's tokens fit into: one each, and a blank between two that are equal."""
    real = labels >= 0
    repeats = (labels[:, 1:] == labels[:, :-1]) & real[:, 1:]
    return real.sum(1) + repeats.sum(1)


def collapse(path: list[int], blank: int) -> list[int]:
    """Return the tokens of a path: equal neighbours are one, and blanks are none."""
    changes = [one for place, one in enumerate(path) if place == 0 or one != path[place - 1]]
    return [one for one in changes if one != blank]
