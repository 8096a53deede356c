"""Average: an exponential moving average of the weights, kept beside them (Polyak & Juditsky 1992)."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from heddle.models import Model


class Average:
    """Weights that follow the trained ones slowly; a skipped step leaves them alone."""

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.weights = {name: tensor.clone() for name, tensor in model.weights().items()}

    @torch.no_grad()
    def update(self, model: Model, bad: Tensor, steps: Tensor) -> None:
        """Move a little towards the weights, and more than a little in the first steps: the start is soon forgotten."""
        share = torch.where(bad, 0.0, (9 / (10 + steps)).clamp(min=1 - self.decay))
        for name, weight in model.weights().items():
            self.weights[name].lerp_(weight, share.to(weight.dtype))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved weights."""
        for name, tensor in tensors.items():
            self.weights[name].copy_(tensor)

    @contextlib.contextmanager
    def in_place(self, model: Model) -> Iterator[None]:
        """Let the model be the average for a while."""
        kept = {name: tensor.clone() for name, tensor in model.weights().items()}
        model.load_weights(self.weights)
        try:
            yield
        finally:
            model.load_weights(kept)
