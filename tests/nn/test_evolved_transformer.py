"""The Evolved Transformer's parts against torch's own convolutions, and against the counts of Narang et al."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError
from heddle.nn.base import Context, Part, PartConfig, Place
from heddle.nn.convolution import (
    EvolvedDecoderConvolutionConfig,
    EvolvedEncoderConvolutionConfig,
    GatedLinearUnitConfig,
)
from heddle.nn.convolution.evolved_transformer import (
    EvolvedDecoderConvolution,
    EvolvedEncoderConvolution,
    GatedLinearUnit,
    SeparableConvolution,
)

WIDTH, LENGTH = 8, 13


def made(config: PartConfig, sight: str = "past") -> Part:
    torch.manual_seed(0)
    module = config.build(WIDTH, Place(sight=sight)).double()  # type: ignore[arg-type]
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return module


def x() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def convolved(row: Tensor, weight: Tensor, groups: int, sight: str) -> Tensor:
    """Pad by hand and let torch convolve: weight is [outputs, inputs per group, taps]."""
    taps = weight.shape[-1]
    after = 0 if sight == "past" else (taps - 1) // 2
    return F.conv1d(F.pad(row.mT, (taps - 1 - after, after)), weight, groups=groups).mT


def separable(module: SeparableConvolution, row: Tensor, sight: str) -> Tensor:
    inner = convolved(row, module.weight, row.shape[-1], sight) + module.bias
    return inner @ module.point.weight.T + module.point.bias


def zeros_after(row: Tensor, width: int) -> Tensor:
    return torch.cat((row, row.new_zeros(*row.shape[:2], width - row.shape[2])), dim=-1)


@torch.no_grad()
def test_gated_linear_unit_is_its_formula() -> None:
    module = made(GatedLinearUnitConfig())
    assert isinstance(module, GatedLinearUnit)
    value = x() @ module.value.weight.T + module.value.bias
    gate = x() @ module.gate.weight.T + module.gate.bias
    torch.testing.assert_close(module(x(), Context()), value / (1 + (-gate).exp()))


@pytest.mark.parametrize("sight", ["past", "all"])
@torch.no_grad()
def test_encoder_convolution_is_its_formula(sight: str) -> None:
    module = made(EvolvedEncoderConvolutionConfig(), sight)
    assert isinstance(module, EvolvedEncoderConvolution)
    left = (x() @ module.up.weight.T).relu()
    whole = module.short.weight.view(WIDTH // 2, WIDTH, 3)
    right = convolved(x(), whole, 1, sight).relu()
    inner = F.layer_norm(left + zeros_after(right, 4 * WIDTH), (4 * WIDTH,), module.norm.weight, module.norm.bias, 1e-5)
    want = zeros_after(separable(module.down, inner, sight), WIDTH)
    torch.testing.assert_close(module(x(), Context()), want)
    assert want[..., WIDTH // 2 :].count_nonzero() == 0


@pytest.mark.parametrize("sight", ["past", "all"])
@torch.no_grad()
def test_decoder_convolution_is_its_formula(sight: str) -> None:
    module = made(EvolvedDecoderConvolutionConfig(), sight)
    assert isinstance(module, EvolvedDecoderConvolution)
    left, right = separable(module.long, x(), sight).relu(), separable(module.short, x(), sight)
    inner = F.layer_norm(left + zeros_after(right, 2 * WIDTH), (2 * WIDTH,), module.norm.weight, module.norm.bias, 1e-5)
    torch.testing.assert_close(module(x(), Context()), separable(module.down, inner, sight))


def count(config: PartConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in config.build(768, Place()).parameters())


def apart(taps: int, inputs: int, outputs: int) -> int:
    """Count a separable convolution: taps and a bias for each channel, a map with bias."""
    return taps * inputs + inputs + inputs * outputs + outputs


def test_counts_are_those_of_narang() -> None:
    width = 768
    assert count(GatedLinearUnitConfig()) == 2 * (width * width + width)
    encoder = width * 4 * width + 3 * width * width // 2 + 2 * 4 * width + apart(9, 4 * width, width // 2)
    assert count(EvolvedEncoderConvolutionConfig()) == encoder
    decoder = apart(11, width, 2 * width) + apart(7, width, width // 2) + 2 * 2 * width + apart(7, 2 * width, width)
    assert count(EvolvedDecoderConvolutionConfig()) == decoder


def test_only_depth_wise_taps_are_counted_beyond_products() -> None:
    encoder, decoder = made(EvolvedEncoderConvolutionConfig()), made(EvolvedDecoderConvolutionConfig())
    assert encoder.narang_lookup_ops(10) == 10 * 9 * 4 * WIDTH
    assert decoder.narang_lookup_ops(10) == 10 * (11 * WIDTH + 7 * WIDTH + 7 * 2 * WIDTH)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: EvolvedEncoderConvolutionConfig(short=1), "short"),
        (lambda: EvolvedDecoderConvolutionConfig(long=5), "long"),
        (lambda: EvolvedDecoderConvolutionConfig(hidden=0), "hidden"),
        (lambda: made(EvolvedEncoderConvolutionConfig(narrow=WIDTH + 1)), "narrow"),
    ],
)
def test_what_cannot_be_is_refused(make: object, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field


def test_half_precision_streams_stay_so() -> None:
    for config in (EvolvedEncoderConvolutionConfig(), EvolvedDecoderConvolutionConfig(), GatedLinearUnitConfig()):
        assert made(config).float()(x().bfloat16(), Context()).dtype is torch.bfloat16
