"""Coverage: how much of a source the target has attended to, and what it costs to leave some out (Wu et al. 2016).

The penalty of a sequence is the sum over the places of its source of log(min(attention that fell on it, 1)): 0 where
every place got the weight of a whole token or more, and never above. Attention is the mean over the heads of all layers
that read the source; each token of the target adds what was looked at when it was predicted.
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

LEAST = 1e-6  # attention of a place that got none, so that its logarithm is a number

Cover = Float[Tensor, "rows source"]
Weights = Float[Tensor, "rows heads length source"]


@dataclass
class Watch:
    """What layers looked at since it was last asked, by layer and turn."""

    looks: dict[str, Cover] = field(default_factory=dict)

    def add(self, layer: str, look: Cover) -> None:
        """Note what the tokens of one reading looked at."""
        self.looks[layer] = self.looks[layer] + look if layer in self.looks else look

    def take(self) -> Cover:
        """Return the mean over layers, and begin anew."""
        looks, self.looks = list(self.looks.values()), {}
        return torch.stack(looks).mean(0)


@contextlib.contextmanager
def watching(model: AutoregressiveModel) -> Iterator[Watch]:
    """Look over the shoulder of every layer that reads the source, or say that there is none."""
    readers = [
        branch
        for branch in model.decoder_tower.modules()
        if isinstance(branch, Branch) and any(_reading(branch.part, None))
    ]
    if not readers:
        raise UsageError("coverage: want a model whose decoder attends to its source, and this one does not")
    watch = Watch()

    def note(branch: Branch, given: tuple[Tensor, Context]) -> None:
        x, ctx = given
        key, real, normed = branch.path + ctx.turn, ctx.real(x), branch.norm(x)
        slot = None if ctx.state is None else ctx.state.slots.get(key)
        for name, part, own in _reading(branch.part, slot):
            shares = _weights(part, normed, ctx, own).mean(1).double()
            watch.add(key + name, (shares if real is None else shares * real[..., None]).sum(1))

    with contextlib.ExitStack() as hooks:
        for reader in readers:
            hooks.callback(reader.register_forward_pre_hook(note).remove)
        yield watch


def _reading(part: Part, slot: object) -> Iterator[tuple[str, CrossAttention | AttentionRNN, object]]:
    """Yield what in a part reads the source, each with its name and its slot."""
    if isinstance(part, CrossAttention | AttentionRNN):
        yield "", part, slot
    elif isinstance(part, Sum):
        slots = slot.slots if isinstance(slot, SumSlot) else {}
        for name in part.names:
            for rest, inner, own in _reading(part.inner(name), slots.get(name)):
                yield f".{name}{rest}", inner, own


def _weights(part: CrossAttention | AttentionRNN, x: Tensor, ctx: Context, slot: object) -> Weights:
    if isinstance(part, AttentionRNN):
        return part.attention_weights(x, ctx, slot)
    memory = ctx.memory
    assert memory is not None
    recalled = slot if isinstance(slot, CrossKVCache) else part.project_memory(memory)
    return part.score.attention_weights(part.inputs_from(x, recalled, memory))


def penalties_of(cover: Cover, allowed: Bool[Tensor, "rows 1 1 source"] | None) -> Float[Tensor, " rows"]:
    """Return the penalty of each row, at most 0; padding of the source has no say."""
    costs = cover.clamp(LEAST, 1.0).log()
    return costs.sum(1) if allowed is None else costs.masked_fill(~allowed[:, 0, 0], 0).sum(1)
