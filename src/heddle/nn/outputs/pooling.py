"""Pooling: one vector for a whole row: first token ([CLS], Devlin 2018), last token (Sutskever 2014), mean."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from heddle.core import Config, Share, part
from heddle.core.shapes import Stream, Vector
from heddle.nn.base import Context, Linear, Module
from heddle.nn.layers import ActivationName, activation


class PoolingConfig(Config, ABC):
    """How a row becomes one vector."""

    @abstractmethod
    def build(self, width: int) -> "Pooling":
        """Build the module."""


class Pooling(Module, ABC):
    """A module `(x, ctx) -> vector` that ignores padding."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> Vector:
        """Return one vector for each row."""


@part("first_token")
class FirstTokenConfig(PoolingConfig):
    """First-token ([CLS]) pooling."""

    def build(self, width: int) -> Pooling:
        return FirstToken()


class FirstToken(Pooling):
    """x[0]."""

    def forward(self, x: Stream, ctx: Context) -> Vector:
        return x[:, 0]


@part("last_token")
class LastTokenConfig(PoolingConfig):
    """Last-token pooling: the last state of a recurrent encoder."""

    def build(self, width: int) -> Pooling:
        return LastToken()


class LastToken(Pooling):
    """x[length - 1]."""

    def forward(self, x: Stream, ctx: Context) -> Vector:
        if ctx.lengths is None:
            return x[:, -1]
        return x[torch.arange(len(x), device=x.device), (ctx.lengths - 1).clamp(min=0)]


@part("mean")
class MeanConfig(PoolingConfig):
    """Mean pooling over all real tokens."""

    def build(self, width: int) -> Pooling:
        return Mean()


class Mean(Pooling):
    """sum(x) / length."""

    def forward(self, x: Stream, ctx: Context) -> Vector:
        real = ctx.real(x)
        if real is None:
            return x.mean(1)
        return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1).to(x.dtype)


@part("dense_first_token")
class DenseFirstTokenConfig(PoolingConfig):
    """BERT's pooler: first token, dense layer, tanh (Devlin et al. 2018).

    activation: the function after the dense layer.
    dropout: dropout before the dense layer.
    """

    activation: ActivationName = "tanh"
    dropout: Share = 0.0

    def build(self, width: int) -> Pooling:
        return Dense(FirstToken(), width, self.activation, self.dropout)


@part("dense_last_token")
class DenseLastTokenConfig(PoolingConfig):
    """BART's pooler: the decoder's last token, dense layer, tanh (Lewis et al. 2020).

    activation: the function after the dense layer.
    dropout: dropout before the dense layer.
    """

    activation: ActivationName = "tanh"
    dropout: Share = 0.0

    def build(self, width: int) -> Pooling:
        return Dense(LastToken(), width, self.activation, self.dropout)


class Dense(Pooling):
    """tanh(dense(dropout(x[first or last])))."""

    def __init__(self, token: Pooling, width: int, function: ActivationName, dropout: float) -> None:
        super().__init__()
        self.token, self.dropout = token, nn.Dropout(dropout)
        self.dense = Linear(width, width, bias=True)
        self.activation = activation(function)

    def forward(self, x: Stream, ctx: Context) -> Vector:
        return self.activation(self.dense(self.dropout(self.token(x, ctx))))
