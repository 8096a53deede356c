"""Heads: vector -> odds of every token. The head owns the loss, so that full logits need never exist in training."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heddle.core import Config, part
from heddle.nn.part import Module, Role, wide

# Logits held at once, in elements. More is recomputed in the backward pass, a chunk of tokens at a time.
CHUNK = 1 << 27


class HeadConfig(Config, ABC):
    """How vectors become odds."""

    @abstractmethod
    def build(self, vocab: int, width: int) -> "Head":
        """Build the head."""


class Head(Module, ABC):
    """Scores whose softmax is the distribution, and the loss without them."""

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "... width"]) -> Float[Tensor, "... vocab"]:
        """Return scores whose softmax is the distribution."""

    @abstractmethod
    def nll(
        self, hidden: Float[Tensor, "... width"], targets: Int[Tensor, "..."], smoothing: float = 0.0
    ) -> Float[Tensor, "..."]:
        """Return each target's negative log-likelihood in nats, mixed with the uniform one by `smoothing`."""


@part("softmax")
class SoftmaxHeadConfig(HeadConfig):
    """One matrix, one softmax over the whole vocabulary."""

    bias: bool = False

    def build(self, vocab: int, width: int) -> Head:
        return SoftmaxHead(vocab, width, self.bias)


class SoftmaxHead(Head):
    """softmax(weight · hidden + bias)."""

    roles = {"weight": Role.HEAD, "bias": Role.BIAS}

    def __init__(self, vocab: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.bias = nn.Parameter(torch.empty(vocab)) if bias else None

    def logits(self, hidden: Float[Tensor, "... width"]) -> Float[Tensor, "... vocab"]:
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return F.linear(hidden, self.weight.to(hidden.dtype), bias)

    def nll(
        self, hidden: Float[Tensor, "... width"], targets: Int[Tensor, "..."], smoothing: float = 0.0
    ) -> Float[Tensor, "..."]:
        vectors, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.flatten()
        tokens = max(1, CHUNK // len(self.weight))
        if len(wanted) <= tokens:
            return self._nll(vectors, wanted, smoothing).view_as(targets)
        losses = [
            checkpoint(self._nll, v, w, smoothing, use_reentrant=False, preserve_rng_state=False)
            for v, w in zip(vectors.split(tokens), wanted.split(tokens), strict=True)
        ]
        return torch.cat(losses).view_as(targets)

    def _nll(self, vectors: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
        scores = wide(self.logits(vectors))
        return F.cross_entropy(scores, wanted, reduction="none", label_smoothing=smoothing)
