"""Norms: LayerNorm (Ba et al. 2016), RMSNorm (Zhang & Sennrich 2019), pRMSNorm, and Fixup's shifts and scales."""

import math
from abc import ABC, abstractmethod
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, part, within
from heddle.nn.base import InitialValues, Module, Role, upcast

Eps = Annotated[float, within("at least 0", lambda eps: eps >= 0)]


class NormConfig(Config, ABC):
    """How vectors are normalized."""

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Build the norm for vectors of this width."""


@part("none")
class NoNormConfig(NormConfig):
    """No norm."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


@part("layer_norm")
class LayerNormConfig(NormConfig):
    """LayerNorm: subtract the mean, divide by the standard deviation, scale and shift (Ba et al. 2016).

    eps: added to the variance, so that nothing is divided by zero.
    bias: whether the result is also shifted by a learned vector.
    """

    eps: Eps = 1e-5
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        return LayerNorm(width, self)


class LayerNorm(Module):
    """(x - mean) / deviation * weight + bias."""

    roles = {"weight": Role.GAIN, "bias": Role.BIAS}

    def __init__(self, width: int, config: LayerNormConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = upcast(x)
        bias = None if self.bias is None else self.bias.to(y.dtype)
        return F.layer_norm(y, self.weight.shape, self.weight.to(y.dtype), bias, self.eps).to(x.dtype)


@part("rms_norm")
class RMSNormConfig(NormConfig):
    """RMSNorm: divide by the root mean square, then scale (Zhang & Sennrich 2019).

    eps: added to the mean square, so that nothing is divided by zero.
    """

    eps: Eps = 1e-6

    def build(self, width: int) -> nn.Module:
        return RMSNorm(width, self.eps)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    roles = {"weight": Role.GAIN}

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        y = upcast(x)
        return F.rms_norm(y, self.weight.shape, self.weight.to(y.dtype), self.eps).to(x.dtype)


@part("offset_rms_norm")
class OffsetRMSNormConfig(NormConfig):
    """RMSNorm with scale 1 + weight, where the weight begins at zero (Gemma, 2024).

    A small weight keeps more digits in half precision, and weight decay pulls the scale towards one.

    eps: added to the mean square, so that nothing is divided by zero.
    """

    eps: Eps = 1e-6

    def build(self, width: int) -> nn.Module:
        return OffsetRMSNorm(width, self.eps)


class OffsetRMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * (1 + weight)."""

    roles = {"weight": Role.GAIN}
    initial_values = {"weight": InitialValues(mean=0.0)}

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        y = upcast(x)
        return F.rms_norm(y, self.weight.shape, 1 + self.weight.to(y.dtype), self.eps).to(x.dtype)


@part("partial_rms_norm")
class PartialRMSNormConfig(NormConfig):
    """Partial RMSNorm (pRMSNorm): the root mean square of the first features normalizes all.

    Zhang & Sennrich (2019) use 6.25 %; Narang et al. (2021) ran 6.75 % under the name of RMSNorm.

    share: share of the features whose mean square counts.
    eps: added to the mean square, so that nothing is divided by zero.
    """

    share: Annotated[float, within("above 0, at most 1", lambda share: 0 < share <= 1)] = 0.0675
    eps: Eps = 1e-6

    def build(self, width: int) -> nn.Module:
        return PartialRMSNorm(width, math.ceil(self.share * width), self.eps)


class PartialRMSNorm(Module):
    """x / sqrt(mean(x[:measured]^2) + eps) * weight."""

    roles = {"weight": Role.GAIN}

    def __init__(self, width: int, measured: int, eps: float) -> None:
        super().__init__()
        self.measured, self.eps = measured, eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        y = upcast(x)
        square = y[..., : self.measured].square().mean(-1, keepdim=True)
        return (y * torch.rsqrt(square + self.eps) * self.weight.to(y.dtype)).to(x.dtype)


@part("shift")
class ShiftConfig(NormConfig):
    """Add one learned number, initially zero, to every feature: Fixup's replacement of a norm."""

    def build(self, width: int) -> nn.Module:
        return Shift()


class Shift(Module):
    """x + bias."""

    roles = {"bias": Role.BIAS}

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.to(x.dtype)


@part("shift_scale")
class ShiftScaleConfig(NormConfig):
    """Add one learned number, then multiply by another (Fixup, Zhang et al. 2019)."""

    def build(self, width: int) -> nn.Module:
        return ShiftScale()


class ShiftScale(Module):
    """(x + bias) * scale."""

    roles = {"bias": Role.BIAS, "scale": Role.GAIN}

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.scale = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bias.to(x.dtype)) * self.scale.to(x.dtype)
