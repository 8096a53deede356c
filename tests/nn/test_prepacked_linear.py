"""Prepacked weights: the same products, also after a change of weights; gradients and other dtypes go another way."""

import copy
from pathlib import Path

import pytest
import torch

import heddle
from heddle.nn.base import FusedLinear, Linear
from heddle.nn.quantization import is_quantized, prepack_linears
from heddle.nn.quantization.prepacked_linear import PrepackedLinear, _can_prepack, _cgroup_bytes

pytestmark = pytest.mark.skipif(not _can_prepack(), reason="this build of torch has no oneDNN products")


def filled(inputs: int, outputs: int, bias: bool = False) -> Linear:
    linear = Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for weight in linear.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(outputs))
    return linear


@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_matrix(bias: bool) -> None:
    linear, x = filled(96, 72, bias), torch.randn(3, 5, 96)
    with torch.no_grad():
        wanted = linear(x)
        assert prepack_linears(linear) == 1 and isinstance(linear.kernel, PrepackedLinear)
        torch.testing.assert_close(linear(x), wanted, rtol=1e-5, atol=1e-4)
        for rows in (1, 4, 33):
            several = linear(x[0, :1].expand(rows, 96))
            torch.testing.assert_close(several, wanted[0, :1].expand(rows, 72), rtol=1e-5, atol=1e-4)


def test_fused_layers_are_packed_as_one() -> None:
    fused, x = FusedLinear(filled(96, 64), filled(96, 32)), torch.randn(4, 96)
    with torch.no_grad():
        wanted = fused(x)
        assert prepack_linears(fused) == 1
        for found, one in zip(fused(x), wanted, strict=True):
            torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-4)
    found = fused(x)  # with gradients
    for part, one in zip(found, wanted, strict=True):
        torch.testing.assert_close(part, one, rtol=1e-5, atol=1e-4)
    found[1].sum().backward()
    assert fused.linears[1].weight.grad is not None


def test_changed_weights_are_seen() -> None:
    linear, x = filled(96, 72), torch.randn(4, 96)
    prepack_linears(linear)
    with torch.no_grad():
        linear.weight.mul_(2)
        torch.testing.assert_close(linear(x), x @ linear.weight.T, rtol=1e-5, atol=1e-4)
    linear.double()
    with torch.no_grad():
        torch.testing.assert_close(linear(x.double()), x.double() @ linear.weight.T)


def test_rows_do_not_depend_on_their_number() -> None:
    linear, x = filled(96, 72), torch.randn(64, 96)
    prepack_linears(linear)
    with torch.no_grad():
        for rows in (4, 8, 16, 32):
            assert torch.equal(linear(x)[:rows], linear(x[:rows]))


def test_whole_models_compute_the_same_and_are_saved_as_before() -> None:
    model = heddle.build("llama", layers=2, width=64, heads=4, kv_heads=2, hidden=128, vocab=211).eval()
    before, ids = copy.deepcopy(model.state_dict()), torch.arange(1, 13)[None]
    with torch.no_grad():
        wanted = model.logits(ids)
        assert prepack_linears(model) == 2 * 4 + 1  # Q, K and V; output; gate and up; down; head
        assert prepack_linears(model) == 0
        torch.testing.assert_close(model.logits(ids), wanted, rtol=1e-4, atol=1e-5)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(twin.logits(ids), model.logits(ids))
        for weight in twin.parameters():
            weight.zero_()
        torch.testing.assert_close(model.logits(ids), wanted, rtol=1e-4, atol=1e-5)  # the copy has its own
        assert not twin.logits(ids).any()
    assert model.state_dict().keys() == before.keys() and not is_quantized(model)


def test_copies_that_would_fill_the_memory_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.nn.quantization.prepacked_linear._available_bytes", lambda: 1000.0)
    linear = filled(96, 72)
    assert prepack_linears(linear) == 0 and linear.kernel is None


def test_matrices_made_in_inference_mode_are_packed_too() -> None:
    """Such tensors count no versions; asking for one is an error."""
    with torch.inference_mode():
        kernel = PrepackedLinear([torch.randn(64, 64)])
        x = torch.randn(4, 64)
        torch.testing.assert_close(kernel(x, kernel.weights[0], None), x @ kernel.weights[0].T)


def test_changed_matrices_are_packed_anew() -> None:
    linear, x = filled(96, 72), torch.randn(4, 96)
    prepack_linears(linear)
    first = linear.kernel
    with torch.no_grad():
        linear.weight.mul_(2)
        assert prepack_linears(linear) == 1 and linear.kernel is not first
        assert isinstance(linear.kernel, PrepackedLinear) and linear.kernel._serves(x)
        torch.testing.assert_close(linear(x), x @ linear.weight.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("line", "base", "limit", "used"),
    [
        ("0::/pod/box", "", "memory.max", "memory.current"),
        ("9:cpu,memory:/pod/box", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_limits_of_cgroups_count(line: str, base: str, limit: str, used: str, tmp_path: Path) -> None:
    groups, box = tmp_path / "cgroup", tmp_path / "root" / base / "pod" / "box"
    box.mkdir(parents=True)
    groups.write_text(f"3:cpuset:/\n{line}\n")
    assert _cgroup_bytes(groups, tmp_path / "root") == float("inf")
    for folder, most in ((box, "max"), (box.parent, "1000")):
        (folder / limit).write_text(f"{most}\n")
        (folder / used).write_text("700\n")
        (folder / "memory.stat").write_text("anon 600\ninactive_file 100\n")
    assert _cgroup_bytes(groups, tmp_path / "root") == 400
    assert _cgroup_bytes(tmp_path / "none", tmp_path / "root") == float("inf")
