"""Scheduled sampling: a growing share of the model's own tokens among its inputs (Bengio et al. 2015).

A recurrent decoder samples token by token, so that each sampled token depends on those before it. A Transformer
samples all of them from one pass over the true tokens (Mihaylova & Martins 2019). Sampling is not differentiable, so
it is done without gradients; one ordinary forward pass over the mixed inputs follows.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heddle.core import part, within
from heddle.core.shapes import Ids
from heddle.models.networks import AutoregressiveModel
from heddle.nn.base import Context
from heddle.nn.recurrent import Recurrent
from heddle.nn.stack import Branch
from heddle.nn.state import State
from heddle.objectives.objective import SamplingConfig

Draw = Literal["sample", "best"]

LOGITS = 1 << 27  # held at once, in elements


HALF = "above 0: the part of training after which the share is one half"
Half = Annotated[float, within(HALF, lambda half: half > 0)]
Rate = Annotated[float, within("0 to 1", lambda rate: 0 <= rate <= 1)]


class ScheduledSamplingConfig(SamplingConfig):
    """Scheduled sampling: a growing share of the model's own tokens; outside training, the true ones."""

    old_fields = {"most": "max_rate"}

    max_rate: float  # the share beyond which it does not grow
    draw: Draw  # sampled from the probabilities, or always the likeliest

    def model_inputs(self, model: AutoregressiveModel, inputs: Ids, ctx: Context, share: Tensor | None) -> Ids:
        return mix_predictions(model, inputs, ctx, share, self.draw) if share is not None and model.training else inputs


@part("linear")
class LinearSamplingConfig(ScheduledSamplingConfig):
    """Let the share grow evenly from nothing to `max_rate`.

    max_rate: the largest share of own predictions.
    ramp: the part of training in which the share grows.
    draw: whether predictions are sampled, or the most probable tokens.
    """

    old_fields = {"most": "max_rate", "over": "ramp"}

    max_rate: Rate = 1.0
    ramp: Annotated[float, within("above 0, up to 1", lambda ramp: 0 < ramp <= 1)] = 1.0
    draw: Draw = "sample"

    def share_at(self, step: int, steps: int) -> float | None:
        return self.max_rate * min(1.0, step / (self.ramp * steps))


@part("exponential")
class ExponentialSamplingConfig(ScheduledSamplingConfig):
    """1 - k ** step: fast at first, then ever slower.

    half: the part of training after which the share is one half; it gives k.
    max_rate: the largest share of own predictions.
    draw: whether predictions are sampled, or the most probable tokens.
    """

    half: Half = 0.5
    max_rate: Rate = 1.0
    draw: Draw = "sample"

    def share_at(self, step: int, steps: int) -> float | None:
        return min(self.max_rate, 1 - math.exp(-math.log(2) * step / (self.half * steps)))


@part("inverse_sigmoid")
class InverseSigmoidSamplingConfig(ScheduledSamplingConfig):
    """1 - k / (k + exp(step / k)): almost nothing at first, then fast, then almost all.

    half: the part of training after which the share is one half: k · log(k) steps.
    max_rate: the largest share of own predictions.
    draw: whether predictions are sampled, or the most probable tokens.
    """

    half: Half = 0.5
    max_rate: Rate = 1.0
    draw: Draw = "sample"

    def share_at(self, step: int, steps: int) -> float | None:
        k = _k_of(self.half * steps)
        return min(self.max_rate, 1 / (1 + k * math.exp(-step / k)))


def _k_of(half: float) -> float:
    """Solve k · log(k) = half by Newton's method."""
    k = 1 + half
    for _ in range(60):
        k -= (k * math.log(k) - half) / (math.log(k) + 1)
    return k


# --- the mixed row ----------------------------------------------------------------------------------------------------


def mix_predictions(model: AutoregressiveModel, inputs: Ids, ctx: Context, share: Tensor, draw: Draw) -> Ids:
    """Return the inputs with a share of them replaced by what the model says there; first tokens stay true.

    Coins and draws come from torch's generator of the device, which training seeds for each step.
    """
    own = torch.rand(inputs.shape, device=inputs.device) < share
    own &= ~_document_starts(inputs, ctx)
    with torch.no_grad(), _without_recording(model):
        if is_fully_recurrent(model):
            return _stepwise(model, inputs, ctx, own, draw)
        hidden, _ = model.run(inputs, ctx)
        predicted = torch.nn.functional.pad(choose_tokens(model, hidden[:, :-1], draw), (1, 0))
        return torch.where(own, predicted, inputs)


def is_fully_recurrent(model: AutoregressiveModel) -> bool:
    """Tell whether all that moves information along the target is recurrent."""
    mixers = [b.part for b in model.decoder_tower.modules() if isinstance(b, Branch) and b.slot == "mixer"]
    return len(mixers) > 0 and all(isinstance(mixer, Recurrent) for mixer in mixers)


def _stepwise(
    model: AutoregressiveModel, inputs: Ids, ctx: Context, own: Bool[Tensor, "batch length"], draw: Draw
) -> Ids:
    """Feed token after token; where a coin says so, the one that the model gave a step before."""
    state, begins = _start(model, inputs, ctx), _document_starts(inputs, ctx)
    predicted, fed = inputs[:, 0], []
    for t in range(inputs.shape[1]):
        if ctx.documents is not None:
            state = state.reset(begins[:, t]) if t else state
        fed.append(torch.where(own[:, t], predicted, inputs[:, t]))
        positions = None if ctx.positions is None else ctx.positions[:, t : t + 1]
        hidden, after = model.run(fed[-1][:, None], Context(state=state, positions=positions, memory=ctx.memory))
        assert after.state is not None
        state = after.state.advance(1)
        predicted = choose_tokens(model, hidden[:, 0], draw)
    return torch.stack(fed, dim=1)


def _start(model: AutoregressiveModel, inputs: Ids, ctx: Context) -> State:
    if ctx.state is not None:
        return ctx.state
    return model.new_state(len(inputs), inputs.shape[1], ctx.memory)


def _document_starts(inputs: Ids, ctx: Context) -> Bool[Tensor, "batch length"]:
    """Tell where a row or a document begins: no token of the model's comes before."""
    begins = torch.zeros_like(inputs, dtype=torch.bool)
    begins[:, 0] = True
    if ctx.documents is not None:
        begins[:, 1:] |= ctx.documents[:, 1:] != ctx.documents[:, :-1]
    return begins


def choose_tokens(model: AutoregressiveModel, hidden: Float[Tensor, "... width"], draw: Draw) -> Int[Tensor, "..."]:
    """Return a token for each vector: sampled, or the likeliest; a chunk of the logits at a time."""
    vectors = hidden.reshape(-1, hidden.shape[-1])
    chosen = [_choose(model.head.logits(some), draw) for some in vectors.split(max(1, LOGITS // model.vocab))]
    return torch.cat(chosen).view(hidden.shape[:-1])


def _choose(logits: Float[Tensor, "tokens vocab"], draw: Draw) -> Int[Tensor, " tokens"]:
    if draw == "best":
        return logits.argmax(-1)
    # the largest of scores + Gumbel noise is a draw by the softmax, and the device need not be waited for
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log()
    return (logits.float() - noise).argmax(-1)


@contextlib.contextmanager
def _without_recording(model: AutoregressiveModel) -> Iterator[None]:
    """Discard what parts record within: the pass that chooses tokens has no loss."""
    before = [(module, list(module.penalties), list(module.metrics)) for module in model.auxiliary]
    try:
        yield
    finally:
        for module, penalties, metrics in before:
            module.penalties, module.metrics = penalties, metrics
