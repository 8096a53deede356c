"""Joins: how a branch meets the stream (residual, He et al. 2015; replace, for plain stacks of layers)."""

from abc import ABC, abstractmethod

from heddle.core import Config, part
from heddle.core.shapes import Stream
from heddle.nn.part import Module, Place


class JoinConfig(Config, ABC):
    """How the output of a branch is put back into the stream."""

    @abstractmethod
    def build(self, width: int, place: Place) -> "Join":
        """Build the join."""


class Join(Module, ABC):
    """A module `(x, y) -> x` for a stream and what a branch made of it."""

    @abstractmethod
    def forward(self, x: Stream, y: Stream) -> Stream:
        """Put y back into x."""


@part("residual")
class ResidualConfig(JoinConfig):
    """Add."""

    def build(self, width: int, place: Place) -> Join:
        return Residual()


class Residual(Join):
    """x + y."""

    def forward(self, x: Stream, y: Stream) -> Stream:
        return x + y


@part("replace")
class ReplaceConfig(JoinConfig):
    """Take the branch instead of the stream."""

    def build(self, width: int, place: Place) -> Join:
        return Replace()


class Replace(Join):
    """y."""

    def forward(self, x: Stream, y: Stream) -> Stream:
        return y
