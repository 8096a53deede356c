"""Norms equal their formulas, keep the dtype of the stream, and compute half precision in single."""

import pytest
import torch

from heddle.core import ConfigError, swap
from heddle.models.presets import preset
from heddle.nn.layers import (
    LayerNormConfig,
    NoNormConfig,
    NormConfig,
    OffsetRMSNormConfig,
    PartialRMSNormConfig,
    RMSNormConfig,
    ShiftConfig,
    ShiftScaleConfig,
)


def build(config: NormConfig, width: int) -> torch.nn.Module:
    norm = config.build(width)
    for name, weight in norm.named_parameters():
        torch.nn.init.constant_(weight, 0.0 if name == "bias" else 1.0)
    return norm


def test_layer_norm_of_the_worked_example() -> None:
    norm = build(LayerNormConfig(eps=0.0), 4).double()
    out = norm(torch.tensor([0.6, 0.8, 0.7, 0.7], dtype=torch.float64))
    torch.testing.assert_close(out, torch.tensor([-(2**0.5), 2**0.5, 0.0, 0.0], dtype=torch.float64))


def test_layer_norm_scales_and_shifts() -> None:
    norm = build(LayerNormConfig(), 8).double()
    with torch.no_grad():
        norm.weight.copy_(torch.arange(8))
        norm.bias.fill_(0.5)
    x = torch.randn(3, 8, dtype=torch.float64)
    wanted = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), wanted * torch.arange(8) + 0.5)


def test_layer_norm_can_do_without_a_bias() -> None:
    assert [n for n, _ in LayerNormConfig(bias=False).build(4).named_parameters()] == ["weight"]


def test_offset_rms_norm_scales_by_one_plus_its_weight() -> None:
    norm, plain = build(OffsetRMSNormConfig(), 8).double(), build(RMSNormConfig(), 8).double()
    with torch.no_grad():
        norm.weight.copy_(torch.arange(8))
        plain.weight.copy_(torch.arange(8) + 1)
    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(norm(x), plain(x))


def test_offset_rms_norm_keeps_small_weights_in_half_precision() -> None:
    norm = build(OffsetRMSNormConfig(), 8)
    torch.nn.init.constant_(norm.weight, 1e-3)  # 1 + 1e-3 is 1 in bfloat16
    assert (norm.bfloat16()(torch.ones(8)) > 1.0005).all()


def test_offset_rms_norm_begins_at_one() -> None:
    config = preset("first").config(layers=1, width=8, vocab=16, context=8)
    made = swap(RMSNormConfig, lambda _: OffsetRMSNormConfig())(config).build()
    assert not made.get_parameter("norm.weight").any()


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    norm = build(RMSNormConfig(), 8).double()
    with torch.no_grad():
        norm.weight.copy_(torch.arange(8))
    x = torch.randn(3, 8, dtype=torch.float64)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * torch.arange(8)
    torch.testing.assert_close(norm(x), wanted)


def test_no_norm_hands_on() -> None:
    x = torch.randn(2, 4)
    assert NoNormConfig().build(4)(x) is x


def test_partial_rms_norm_measures_the_first_features_and_divides_all() -> None:
    norm = build(PartialRMSNormConfig(), 768).double()
    assert norm.measured == 52
    x = torch.randn(3, 768, dtype=torch.float64)
    torch.testing.assert_close(norm(x), x / (x[:, :52].square().mean(-1, keepdim=True) + 1e-6).sqrt())
    whole, half = RMSNormConfig().build(8), PartialRMSNormConfig(share=1.0).build(8)
    for one in (whole, half):
        torch.nn.init.constant_(one.weight, 2.0)
    torch.testing.assert_close(half(x[:, :8].float()), whole(x[:, :8].float()))
    with pytest.raises(ConfigError, match="share: want above 0"):
        PartialRMSNormConfig(share=0.0)


def test_shifts_and_scales_are_single_numbers() -> None:
    x, shift, both = torch.randn(2, 4), build(ShiftConfig(), 4), build(ShiftScaleConfig(), 4)
    assert torch.equal(shift(x), x)
    assert torch.equal(both(x), x)
    with torch.no_grad():
        shift.bias.fill_(2.0)
        both.bias.fill_(2.0)
        both.scale.fill_(3.0)
    torch.testing.assert_close(shift(x), x + 2)
    torch.testing.assert_close(both(x), (x + 2) * 3)


@pytest.mark.parametrize("config", [LayerNormConfig(), RMSNormConfig(), PartialRMSNormConfig()], ids=lambda c: c.kind)
def test_half_precision_is_normed_in_single(config: NormConfig) -> None:
    norm, x = build(config, 64), (100 + torch.randn(5, 64)).bfloat16()
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), norm(x.float()).bfloat16())
