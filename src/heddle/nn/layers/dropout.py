"""Dropout (Srivastava et al. 2014), and variational dropout with one mask per row (Gal & Ghahramani 2016)."""

from abc import ABC, abstractmethod

from torch import nn
from torch.nn import functional as F

from heddle.core import Config, check_share, part
from heddle.core.shapes import Stream
from heddle.nn.base import Module


class DropoutConfig(Config, ABC):
    """Which numbers are set to zero in training, and at what rate; the others are scaled to keep the mean."""

    rate: float

    def __post_init__(self) -> None:
        check_share(dropout=self.rate)

    @abstractmethod
    def build(self) -> nn.Module:
        """Build the module `x -> x`."""


@part("element", was="each")
class ElementDropoutConfig(DropoutConfig):
    """Dropout of each number independently.

    rate: share that training sets to zero; 0: no dropout.
    """

    rate: float = 0.0

    def build(self) -> nn.Module:
        return nn.Dropout(self.rate) if self.rate else nn.Identity()


@part("variational", was="row")
class VariationalDropoutConfig(DropoutConfig):
    """Variational (locked) dropout: one mask for all positions of a row.

    rate: share that training sets to zero; 0: no dropout.
    """

    rate: float = 0.0

    def build(self) -> nn.Module:
        return VariationalDropout(self.rate) if self.rate else nn.Identity()


class VariationalDropout(Module):
    """x * mask, one mask for all positions."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Stream) -> Stream:
        return x * F.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.rate) if self.training else x
