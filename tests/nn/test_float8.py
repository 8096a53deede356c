"""Float8 products are close to the plain ones, forward and backward, and train a model."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.models.presets import build
from heddle.nn.base import Linear
from heddle.nn.quantization import use_float8
from heddle.nn.quantization.float8 import BACKWARD, FORWARD, Float8, to_float8

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_tensor_comes_back_within_the_rounding_of_its_kind() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32) * 1e-4
    small, standing, factor = to_float8(x, FORWARD)
    assert small.dtype is FORWARD and torch.equal(standing.float(), small.float().t())
    apart = (small.float() * factor - x).abs()
    assert (apart <= x.abs() / 16 + 2**-10 * factor * 448).all()
    zeros, _, factor = to_float8(torch.zeros(16, 16), FORWARD)
    assert torch.isfinite(factor) and zeros.float().abs().max() == 0


@pytest.mark.parametrize("bias", [False, True])
def test_product_and_gradients_are_near_the_plain_ones(bias: bool) -> None:
    torch.manual_seed(0)
    made, x = Linear(64, 48, bias=bias), torch.randn(2, 16, 64, requires_grad=True)
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    inputs, pull = [x, *made.parameters()], torch.randn(2, 16, 48)
    want, exact = made(x), torch.autograd.grad((made(x) * pull).sum(), inputs)
    made.kernel = Float8()
    got, near = made(x), torch.autograd.grad((made(x) * pull).sum(), inputs)
    assert 0 < (got - want).norm() / want.norm() < 0.05
    for mine, theirs in zip(near, exact, strict=True):
        assert (mine - theirs).norm() / theirs.norm() < 0.1


def test_float32_weights_are_cast_as_in_plain_products() -> None:
    torch.manual_seed(0)
    made, x = Linear(64, 48), torch.randn(2, 16, 64, dtype=torch.bfloat16)
    torch.nn.init.normal_(made.weight)
    made.kernel = Float8()
    y = made(x)
    y.float().sum().backward()
    assert y.dtype is torch.bfloat16 and made.weight.grad is not None and made.weight.grad.dtype is torch.float32
    made.weight.data = made.weight.data.to(torch.bfloat16).float()
    assert torch.equal(made(x), y)


def test_sides_that_do_not_fit_are_multiplied_plainly() -> None:
    torch.manual_seed(0)
    made, x = Linear(64, 48), torch.randn(3, 5, 64)
    torch.nn.init.normal_(made.weight)
    want = made(x)
    made.kernel = Float8()
    assert torch.equal(made(x), want)


def test_only_maps_inside_layers_change() -> None:
    model = build("llama", layers=2, width=32, heads=2, vocab=64, context=16)
    assert use_float8(model) == 2 * 7
    ids = torch.randint(64, (2, 16))
    model.head.nll(model(ids), ids).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with pytest.raises(ConfigError, match="multiples of 16"):
        use_float8(build("llama", layers=1, width=12, heads=2, hidden=20, vocab=64, context=16))


@GPU
def test_a_gpu_multiplies_as_float32_does() -> None:
    torch.manual_seed(0)
    made = Linear(64, 48).cuda()
    torch.nn.init.normal_(made.weight)
    made.kernel = Float8()
    x = torch.randn(2, 16, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    pull = torch.randn(2, 16, 48, device="cuda", dtype=torch.bfloat16)
    there = torch.autograd.grad((made(x) * pull).sum(), [x, made.weight])
    here = Linear(64, 48)
    here.weight.data.copy_(made.weight.cpu())
    here.kernel = Float8()
    back = x.detach().cpu().requires_grad_()
    for mine, other in zip(
        there, torch.autograd.grad((here(back) * pull.cpu()).sum(), [back, here.weight]), strict=True
    ):
        assert (mine.cpu().float() - other.float()).norm() / other.float().norm() < 0.02


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_lost(device: str, strange: float) -> None:
    x = torch.ones(64, 48, device=device, dtype=torch.bfloat16)
    x[3, 5] = strange
    assert not to_float8(x, FORWARD)[2].isfinite()


@GPU
@pytest.mark.parametrize("shape", [(48, 80), (4096, 512), (16, 8208)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_a_gpu_casts_as_the_cpu_does(shape: tuple[int, int], dtype: torch.dtype, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda").to(dtype)
    lying, standing, factor = to_float8(x, kind)
    small, turned, by = to_float8(x.cpu(), kind)
    assert torch.equal(standing.float(), lying.float().t())
    torch.testing.assert_close(factor.cpu(), by)
    apart = (lying.float().cpu() != small.float()).float().mean()  # a quotient on the border of two may fall either way
    assert apart < 1e-3 and turned.shape == standing.shape
