"""Coverage penalty of beam search: how much of the source the target has attended to (GNMT, Wu et al. 2016).

The penalty of a sequence is the sum over the positions of its source of log(min(attention received, 1)): 0 where every
position received the weight of a whole token or more, and negative otherwise. Attention is the mean over the heads of
all layers that attend to the source, summed over the tokens of the target.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heddle.core import UsageError
from heddle.models.networks import AutoregressiveModel
from heddle.nn.attention import CrossAttention
from heddle.nn.base import Context, Part
from heddle.nn.recurrent import AttentionRNN
from heddle.nn.stack import Branch, Sum, SumSlot
from heddle.nn.state import CrossKVCache

EPS = 1e-6  # of a position without attention, so that the logarithm is finite

Coverage = Float[Tensor, "rows source"]
AttentionWeights = Float[Tensor, "rows heads length source"]


@dataclass
class AttentionRecorder:
    """Attention of each layer and turn since the last `take`."""

    attention: dict[str, Coverage] = field(default_factory=dict)

    def add(self, layer: str, attention: Coverage) -> None:
        """Add the attention of the tokens of one step."""
        before = self.attention.get(layer)
        self.attention[layer] = attention if before is None else before + attention

    def take(self) -> Coverage:
        """Return the mean over layers, and start again."""
        layers, self.attention = list(self.attention.values()), {}
        return torch.stack(layers).mean(0)


@contextlib.contextmanager
def record_attention(model: AutoregressiveModel) -> Iterator[AttentionRecorder]:
    """Record the attention of every layer that attends to the source; refuse a model without one."""
    branches = [one for one in model.decoder_tower.modules() if isinstance(one, Branch)]
    branches = [branch for branch in branches if any(_attending(branch.part, None))]
    if not branches:
        raise UsageError("coverage: want a model whose decoder attends to its source, and this one does not")
    recorder = AttentionRecorder()

    def record(branch: Branch, inputs: tuple[Tensor, Context]) -> None:
        x, ctx = inputs
        key, real, normed = branch.path + ctx.turn, ctx.real(x), branch.norm(x)
        slot = None if ctx.state is None else ctx.state.slots.get(key)
        for name, part, own in _attending(branch.part, slot):
            weights = _weights(part, normed, ctx, own).mean(1).double()
            recorder.add(key + name, (weights if real is None else weights * real[..., None]).sum(1))

    with contextlib.ExitStack() as hooks:
        for branch in branches:
            hooks.callback(branch.register_forward_pre_hook(record).remove)
        yield recorder


def _attending(part: Part, slot: object) -> Iterator[tuple[str, CrossAttention | AttentionRNN, object]]:
    """Yield every attention to the source inside a part, with its name and its slot."""
    if isinstance(part, CrossAttention | AttentionRNN):
        yield "", part, slot
    elif isinstance(part, Sum):
        slots = slot.slots if isinstance(slot, SumSlot) else {}
        for name in part.names:
            for rest, inner, own in _attending(part.inner(name), slots.get(name)):
                yield f".{name}{rest}", inner, own


def _weights(part: CrossAttention | AttentionRNN, x: Tensor, ctx: Context, slot: object) -> AttentionWeights:
    if isinstance(part, AttentionRNN):
        return part.attention_weights(x, ctx, slot)
    memory = ctx.memory
    assert memory is not None
    recalled = slot if isinstance(slot, CrossKVCache) else part.project_memory(memory)
    return part.score.attention_weights(part.inputs_from(x, recalled, memory))


def coverage_penalties(coverage: Coverage, allowed: Bool[Tensor, "rows 1 1 source"] | None) -> Float[Tensor, " rows"]:
    """Return the penalty of each row, at most 0; padding of the source does not count."""
    costs = coverage.clamp(EPS, 1.0).log()
    return costs.sum(1) if allowed is None else costs.masked_fill(~allowed[:, 0, 0], 0).sum(1)
