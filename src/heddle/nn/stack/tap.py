"""Tap: which encoder layers each decoder layer attends to (transparent attention: Bapna et al. 2018)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heddle.core import Config, Share, part
from heddle.core.shapes import Stream
from heddle.nn.base import InitialValues, Module, Role


class TapConfig(Config, ABC):
    """Which encoder layers the decoder attends to."""

    @abstractmethod
    def build(self, encoder_depth: int, decoder_depth: int) -> "Tap":
        """Build the module for an encoder and a decoder of these depths."""


class Tap(Module, ABC):
    """A module from the encoder's embedding and layer outputs to the memory of each decoder layer."""

    needs_all_layers: bool = False  # whether it needs more than the last

    @abstractmethod
    def forward(self, outputs: Sequence[Stream]) -> tuple[Stream, ...]:
        """Return one memory for all decoder layers, or one for each."""


@part("last")
class LastLayerConfig(TapConfig):
    """Every decoder layer attends to the encoder's last layer."""

    def build(self, encoder_depth: int, decoder_depth: int) -> Tap:
        return LastLayer()


class LastLayer(Tap):
    """outputs[-1]."""

    def forward(self, outputs: Sequence[Stream]) -> tuple[Stream, ...]:
        return (outputs[-1],)


@part("transparent")
class TransparentConfig(TapConfig):
    """Transparent attention: each decoder layer has its own mixture of all encoder layers (Bapna et al. 2018).

    dropout: dropout of the mixture's logits.
    """

    dropout: Share = 0.0

    def build(self, encoder_depth: int, decoder_depth: int) -> Tap:
        return Transparent(encoder_depth + 1, decoder_depth, self.dropout)


class Transparent(Tap):
    """sum over layers of softmax(weight) * output."""

    needs_all_layers = True
    roles = {"weight": Role.BIAS}

    def __init__(self, outputs: int, decoder_layers: int, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, decoder_layers))
        self.initial_values = {"weight": InitialValues(scale=outputs**-0.5)}
        self.dropout = nn.Dropout(dropout)

    def forward(self, outputs: Sequence[Stream]) -> tuple[Stream, ...]:
        weights: Tensor = self.dropout(self.weight).softmax(0).to(outputs[0].dtype)
        mixed = torch.einsum("ebsw,ed->dbsw", torch.stack(list(outputs)), weights)
        return tuple(mixed)
