"""Fused linear layers give what each gives alone, whether their matrices are slices of one or not."""

import copy

import pytest
import torch
from torch import Tensor

from heddle.models.presets import build
from heddle.nn.adapters import LoraConfig
from heddle.nn.base import FusedLinear, Linear, fuse_linears


def maps(bias: bool) -> list[Linear]:
    torch.manual_seed(0)
    made = [Linear(6, outputs, bias=bias) for outputs in (4, 3, 3)]
    for one in made:
        for weight in one.parameters():
            torch.nn.init.normal_(weight)
    return made


def apart(made: list[Linear], x: Tensor) -> list[Tensor]:
    return [one(x) for one in made]


@pytest.mark.parametrize("bias", [False, True])
def test_side_by_side_in_memory_gives_the_same(bias: bool) -> None:
    made, x = maps(bias), torch.randn(2, 5, 6)
    fused = FusedLinear(*made)
    with torch.no_grad():
        want = apart(made, x)
        assert fused.fuse() and not fused.fuse()
        assert fused.fused_weight is not None
        for got, each in zip(fused(x), want, strict=True):
            torch.testing.assert_close(got, each)


def test_learning_goes_on_in_the_memory_they_share() -> None:
    made, x = maps(bias=False), torch.randn(5, 6)
    fused = FusedLinear(*made)
    fused.fuse()
    with torch.no_grad():
        made[1].weight.add_(1)
        for got, each in zip(fused(x), apart(made, x), strict=True):
            torch.testing.assert_close(got, each)


def test_another_dtype_or_a_copy_takes_them_apart() -> None:
    holder = torch.nn.Module()
    for name, one in zip("abc", maps(bias=False), strict=True):
        holder.add_module(name, one)
    holder.fused = FusedLinear(holder.a, holder.b, holder.c)
    holder.fused.fuse()
    twin = copy.deepcopy(holder)
    twin.a.weight.data.zero_()
    holder.double()
    assert holder.fused.fused_weight is None
    with torch.no_grad():
        x = torch.randn(5, 6)
        assert twin.fused(x)[0].abs().max() == 0
        assert holder.fused(x.double())[0].abs().max() > 0


def test_an_adapter_over_one_of_them_is_added() -> None:
    made, x = maps(bias=False), torch.randn(5, 6)
    made[1].adapter = LoraConfig(rank=2).build(made[1])
    for weight in made[1].adapter.parameters():
        torch.nn.init.normal_(weight)
    fused = FusedLinear(*made)
    with torch.no_grad():
        want = apart(made, x)
        fused.fuse()
        for got, each in zip(fused(x), want, strict=True):
            torch.testing.assert_close(got, each)


def test_a_fused_model_gives_the_same_and_has_no_new_names() -> None:
    model = build("llama", layers=2, width=16, heads=4, vocab=31, context=8)
    names, ids = list(model.weights()), torch.randint(31, (2, 8))
    with torch.no_grad():
        want = model.logits(ids)
        assert fuse_linears(model) and not fuse_linears(model)
        torch.testing.assert_close(model.logits(ids), want)
    assert list(model.weights()) == names == [name for name in model.state_dict()]
