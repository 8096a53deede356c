"""The two ways to mix values by attention are one: fused and written out."""

import pytest
import torch

from heddle.nn.scores import mix, written_out


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_fused_and_written_out_agree_with_their_gradients(kv_heads: int, masked: bool, causal: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, 7, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    key, value = (
        torch.randn(3, kv_heads, 9, 8, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    allowed = (torch.rand(3, 1, 7, 9, generator=draw) < 0.6) | torch.eye(7, 9, dtype=torch.bool)
    results = []
    for way in (mix, written_out):
        y = way(query, key, value, allowed if masked else None, causal, 0.0)
        grads = torch.autograd.grad(y.square().sum(), (query, key, value))
        results.append((y, *grads))
    for fused, written in zip(*results, strict=True):
        assert torch.allclose(fused, written, rtol=1e-12, atol=1e-12)


def test_half_precision_on_a_cpu_is_near_the_exact_answer() -> None:
    query, key, value = torch.randn(3, 2, 4, 33, 16, generator=torch.Generator().manual_seed(1)).unbind()
    exact = mix(query.double(), key.double(), value.double(), None, True, 0.0)
    half = mix(query.bfloat16(), key.bfloat16(), value.bfloat16(), None, True, 0.0)
    assert (half.double() - exact).abs().max() < 0.05


def test_dropout_of_the_weights_keeps_their_mean() -> None:
    value = torch.ones(1, 1, 400, 4)
    torch.manual_seed(0)
    y = written_out(torch.zeros(1, 1, 400, 4), torch.zeros(1, 1, 400, 4), value, None, False, 0.25)
    assert abs(float(y.mean()) - 1) < 0.02
