"""Grouped products equal one product for each group, forward and backward, in every dtype."""

import pytest
import torch

from heddle.nn.channels.grouped_gemm import grouped_gemm, permute, sort_by_group


def test_sorting_brings_rows_together_and_back() -> None:
    group_ids = torch.tensor([2, 0, 3, 0, 2, 1, 3])  # three groups; three means none
    groups, order, back = sort_by_group(group_ids, 3)
    assert groups.offsets.tolist() == [2, 3, 5]
    assert groups.group_ids.tolist() == sorted(group_ids.tolist())
    assert torch.equal(group_ids[order][back], group_ids)
    rows = torch.ones(7, 2)
    assert groups.zero_ungrouped(rows)[:, 0].tolist() == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [16, 5])
def test_each_group_meets_its_own_matrix(dtype: torch.dtype, outputs: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(9, 8).to(dtype).requires_grad_()
    weight = torch.randn(3, outputs, 8).to(dtype).requires_grad_()
    offsets = torch.tensor([4, 4, 9], dtype=torch.int32)
    got = grouped_gemm(rows, weight, offsets)
    want = torch.cat((rows[:4] @ weight[0].T, rows[4:] @ weight[2].T))
    torch.testing.assert_close(got, want)
    direction = torch.randn(9, outputs).to(dtype)
    ours, theirs = (torch.autograd.grad((y * direction).sum(), (rows, weight)) for y in (got, want))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_products_and_moves_pass_gradcheck() -> None:
    torch.manual_seed(0)
    rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([1, 6], dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda r, w: grouped_gemm(r, w, offsets), (rows, weight))
    _, order, back = sort_by_group(torch.randint(3, (12,)), 3)
    assert torch.autograd.gradcheck(lambda r: permute(r, order // 2, back, 2), (rows,))
    assert torch.equal(permute(rows, order // 2, back, 2)[back], rows.repeat_interleave(2, dim=0))
