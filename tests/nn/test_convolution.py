"""Lightweight and dynamic convolution against the sum written out, and against the counts of Narang et al."""

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.nn.base import Context, MixerConfig, Place
from heddle.nn.convolution import DynamicConvolutionConfig, LightweightConvolutionConfig
from heddle.nn.convolution.convolution import Convolution, DynamicConvolution, LightweightConvolution, ReceptiveField
from heddle.nn.state import State

WIDTH, LENGTH = 6, 11


def made(config: MixerConfig, sight: str = "past") -> Convolution:
    torch.manual_seed(0)
    module = config.build(WIDTH, Place(sight=sight)).double()  # type: ignore[arg-type]
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    assert isinstance(module, Convolution)
    return module


def x(length: int = LENGTH) -> Tensor:
    return torch.randn(2, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def shares(module: Convolution, gated: Tensor) -> Tensor:
    """Return the filter of each row, position and head."""
    taps = module.receptive.taps
    if isinstance(module, LightweightConvolution):
        return module.weight.softmax(-1).expand(*gated.shape[:2], -1, -1)
    assert isinstance(module, DynamicConvolution)
    logits = gated @ module.logits.weight.T + module.logits.bias
    return logits.view(*gated.shape[:2], module.heads, taps).softmax(-1)


def written_out(module: Convolution, stream: Tensor) -> Tensor:
    """Do one row, position, channel and tap after the other."""
    gated = (stream @ module.value.weight.T + module.value.bias) * torch.sigmoid(
        stream @ module.gate.weight.T + module.gate.bias
    )
    filters, mixed = shares(module, gated), module.bias.repeat(*stream.shape[:2], 1)
    each = WIDTH // module.heads
    for row in range(stream.shape[0]):
        for t in range(stream.shape[1]):
            for channel in range(WIDTH):
                for tap in range(module.receptive.taps):
                    seen = t + tap - module.receptive.before
                    if 0 <= seen < stream.shape[1]:
                        mixed[row, t, channel] += filters[row, t, channel // each, tap] * gated[row, seen, channel]
    for linear in (*module.inner, module.output):
        mixed = mixed @ linear.weight.T + linear.bias
    return mixed


@pytest.mark.parametrize("kind", [LightweightConvolutionConfig, DynamicConvolutionConfig])
@pytest.mark.parametrize("sight", ["past", "all"])
@pytest.mark.parametrize("options", [{"taps": 9}, {"taps": 4, "heads": 2}, {"taps": 3, "heads": 3, "maps": 2}])
@torch.no_grad()
def test_convolution_is_the_sum_over_its_taps(kind: type[MixerConfig], sight: str, options: dict[str, int]) -> None:
    module = made(kind(**options), sight)
    torch.testing.assert_close(module(x(5), Context()), written_out(module, x(5)), rtol=0, atol=1e-12)


def test_nine_taps_look_eight_back_or_four_to_each_side() -> None:
    assert ReceptiveField.of(9, "past") == ReceptiveField(8, 0)
    assert ReceptiveField.of(9, "all") == ReceptiveField(4, 4)
    assert ReceptiveField.of(4, "all") == ReceptiveField(2, 1)


@pytest.mark.parametrize("config", [LightweightConvolutionConfig(), DynamicConvolutionConfig(heads=2)])
@torch.no_grad()
def test_padding_on_the_right_is_not_seen_by_those_before_it(config: MixerConfig) -> None:
    module, stream = made(config, "all"), x()
    new = torch.tensor([LENGTH, 4])
    padded = module(stream, Context(lengths=new))
    torch.testing.assert_close(padded[1:, :4], module(stream[1:, :4], Context()))
    torch.testing.assert_close(padded[:1], module(stream[:1], Context()))


@pytest.mark.parametrize("config", [LightweightConvolutionConfig(taps=4), DynamicConvolutionConfig(taps=4)])
@torch.no_grad()
def test_a_carried_past_ends_where_a_document_begins(config: MixerConfig) -> None:
    module, stream = made(config), x(6)
    state = State.empty(2, 6)
    _, slot = module.step(stream[:, :3], Context(state=state), None)
    documents = torch.tensor([[0, 1, 1], [0, 0, 0]])
    y, after = module.step(stream[:, 3:], Context(documents=documents, state=state), slot)
    torch.testing.assert_close(y[0, 1:], module(stream[:1, 4:], Context())[0])
    torch.testing.assert_close(y[1], module(stream[1:], Context())[0, 3:])
    torch.testing.assert_close(y[0, :1], module(stream[:1, :4], Context())[0, 3:])
    _, alone = module.step(stream[:1, 4:], Context(state=state), None)
    torch.testing.assert_close(after.vectors[0][:1], alone.vectors[0])


def count(config: MixerConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in config.build(768, Place()).parameters())


def test_counts_are_those_of_narang() -> None:
    q = 768 * 768
    assert count(LightweightConvolutionConfig(maps=2)) == 4 * q + 14 * 768
    assert count(DynamicConvolutionConfig(maps=2)) == 13 * q + 14 * 768


def test_costs_are_taps_times_width_a_token() -> None:
    for config in (LightweightConvolutionConfig(heads=2), DynamicConvolutionConfig()):
        module = made(config)
        assert module.mixing_flops(512) == 2 * 9 * WIDTH
        assert module.narang_lookup_ops(10) == 10 * 9 * WIDTH
        assert module.state_elements() == 0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LightweightConvolutionConfig(taps=1), "taps"),
        (lambda: DynamicConvolutionConfig(maps=0), "maps"),
        (lambda: DynamicConvolutionConfig(dropout=1.0), "dropout"),
        (lambda: made(DynamicConvolutionConfig(heads=4)), "heads"),
    ],
)
def test_what_cannot_be_is_refused(make: object, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field


def test_dropout_takes_taps_in_training_only() -> None:
    module = made(LightweightConvolutionConfig(dropout=0.5))
    torch.manual_seed(0)
    assert not torch.equal(module(x(), Context()), module(x(), Context()))
    module.eval()
    assert torch.equal(module(x(), Context()), module(x(), Context()))


def test_half_precision_streams_stay_so() -> None:
    for config in (LightweightConvolutionConfig(heads=2), DynamicConvolutionConfig()):
        module = made(config).float()
        y = module(x().bfloat16(), Context())
        assert y.dtype is torch.bfloat16
        torch.testing.assert_close(y.float(), module(x().float(), Context()), rtol=0.05, atol=0.1)
