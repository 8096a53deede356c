"""Soft targets: how far a model's distribution is from a teacher's, at a temperature (Hinton et al. 2015)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heddle.core.shapes import Hidden, Losses
from heddle.nn.base import upcast
from heddle.nn.ends import head


@dataclass(frozen=True)
class Prediction:
    """Hidden states, and the function by which they become logits over this many ids."""

    hidden: Hidden
    logits: Callable[[Tensor], Tensor]
    vocab: int

    def soft_target_loss(self, teacher: "Prediction", temperature: float) -> Losses:
        """Return KL(teacher || student) of each position in nats, both softened, times the temperature squared.

        The square keeps the size of gradients, which the temperature divides twice. Ids that only one of the
        two has are not compared. Logits exist for a chunk of tokens at a time, and are recomputed in the backward pass.
        """
        own, given = (each.hidden.reshape(1, -1, each.hidden.shape[-1]) for each in (self, teacher))
        tokens = max(1, head.CHUNK // (self.vocab + teacher.vocab))
        divergence = partial(_divergence, self, teacher, temperature)
        if own.shape[1] <= tokens:
            return divergence(own, given).view(self.hidden.shape[:-1])
        losses = [
            checkpoint(divergence, *both, use_reentrant=False, preserve_rng_state=False)
            for both in zip(own.split(tokens, 1), given.split(tokens, 1), strict=True)
        ]
        return torch.cat(losses, 1).view(self.hidden.shape[:-1])


def _divergence(student: Prediction, teacher: Prediction, temperature: float, own: Tensor, given: Tensor) -> Tensor:
    ids = min(student.vocab, teacher.vocab)
    with torch.no_grad():
        wanted = (upcast(teacher.logits(given))[..., :ids] / temperature).log_softmax(-1)
    found = (upcast(student.logits(own))[..., :ids] / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
