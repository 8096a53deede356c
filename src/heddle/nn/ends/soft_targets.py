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

LEAST = -1e4  # log-probability that half precision holds, instead of minus infinity


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
        return self._chunked(partial(_divergence, self, teacher, temperature), teacher.vocab, teacher.hidden)

    def stored_target_loss(self, logprobs: Tensor, ids: Tensor | None, temperature: float) -> Losses:
        """Return the same loss for stored log-probabilities of a teacher of as many ids, at this temperature.

        With `ids`, they are those of these ids and, last, the log of what all others have together, which counts as one
        more outcome; without, those of all ids.
        """
        given = (logprobs,) if ids is None else (logprobs, ids)
        return self._chunked(partial(_stored_divergence, self, temperature), logprobs.shape[-1], *given)

    def _chunked(self, divergence: Callable[..., Tensor], vocab: int, *given: Tensor) -> Losses:
        parts = [each.reshape(1, -1, each.shape[-1]) for each in (self.hidden, *given)]
        tokens = max(1, head.CHUNK // (self.vocab + vocab))
        if parts[0].shape[1] <= tokens:
            return divergence(*parts).view(self.hidden.shape[:-1])
        losses = [
            checkpoint(divergence, *some, use_reentrant=False, preserve_rng_state=False)
            for some in zip(*(part.split(tokens, 1) for part in parts), strict=True)
        ]
        return torch.cat(losses, 1).view(self.hidden.shape[:-1])

    @torch.no_grad()
    def soft_targets(self, temperature: float, vocab: int, top_k: int | None) -> tuple[Tensor, Tensor | None]:
        """Return what `stored_target_loss` takes: log-probabilities of the first `vocab` ids at a temperature.

        With `top_k`, those of the most probable ids and the log of the rest, and these ids.
        """
        found, ids = list[Tensor](), list[Tensor]()
        for some in self.hidden.split(max(1, head.CHUNK // self.vocab), -2):
            logprobs = (upcast(self.logits(some))[..., :vocab] / temperature).log_softmax(-1)
            if top_k is not None and top_k < vocab:
                best = logprobs.topk(top_k, dim=-1)
                rest = logprobs.scatter(-1, best.indices, -torch.inf).logsumexp(-1, keepdim=True)
                logprobs = torch.cat((best.values, rest), -1).clamp(min=LEAST)
                ids.append(best.indices)
            found.append(logprobs)
        return torch.cat(found, -2), torch.cat(ids, -2) if ids else None


def _stored_divergence(
    student: Prediction, temperature: float, own: Tensor, logprobs: Tensor, ids: Tensor | None = None
) -> Tensor:
    found = (upcast(student.logits(own))[..., : student.vocab] / temperature).log_softmax(-1)
    wanted = upcast(logprobs).clamp(min=LEAST).log_softmax(-1)  # rounding has left a sum that is not quite 1
    if ids is not None:
        ids = ids.long()
        rest = found.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
        found = torch.cat((found.gather(-1, ids), rest), -1)
    return temperature**2 * F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)


def _divergence(student: Prediction, teacher: Prediction, temperature: float, own: Tensor, given: Tensor) -> Tensor:
    ids = min(student.vocab, teacher.vocab)
    with torch.no_grad():
        wanted = (upcast(teacher.logits(given))[..., :ids] / temperature).log_softmax(-1).clamp(min=LEAST)
    found = (upcast(student.logits(own))[..., :ids] / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
