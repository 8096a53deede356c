"""Recurrences as an operator: what cuDNN is handed on its way back; torch's cells play it, on memory as it reads it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.nn.recurrent import rnn_op as overtime
from heddle.nn.recurrent.rnn_op import KERNELS, RNNInput

BATCH, LENGTH, INPUTS, HIDDEN = 3, 5, 4, 6
RUNS = {1: torch.rnn_tanh, 2: torch.lstm, 3: torch.gru}
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 2, 2, 3]])


def played(
    x: Tensor, weights: Sequence[Tensor], begin: tuple[Tensor, Tensor | None], how: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """Return outputs, step by step in memory, and the last vectors."""
    mode, _, _, _, by_rows, _, _, _, sizes, _ = how
    vectors = begin[0] if begin[1] is None else list(begin)
    if sizes:
        y, *last = RUNS[mode](x, torch.tensor(sizes), vectors, list(weights), True, 1, 0.0, True, False)
        return y, *last
    y, *last = RUNS[mode](x.transpose(0, 1) if by_rows else x, vectors, list(weights), True, 1, 0.0, True, False, False)
    return y.contiguous(), *last


def there(x: Tensor, weights: Any, _four: int, beside: Tensor, *more: Any) -> tuple[Tensor, ...]:
    begin, how = (more[0], more[1]), more[2:]
    y, *last = played(x, weights, begin, how)
    turned = y.transpose(0, 1) if how[4] and not how[8] else y
    return turned, last[0], last[1] if len(last) > 1 else last[0][:0], torch.ones(7, dtype=torch.uint8), beside


def back(x: Tensor, weights: Any, _four: int, _beside: Tensor, *more: Any) -> tuple[Any, ...]:
    hidden, cell, y, by_y, by_hidden, by_cell, *how, reserve, _wanted = more
    assert reserve.tolist() == [1] * 7
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, hidden, *([] if cell is None else [cell]), *weights)]
        count = 1 if cell is None else 2
        begin = (leaves[1], None if cell is None else leaves[2])
        again, *last = played(leaves[0], leaves[1 + count :], begin, tuple(how))
        assert torch.allclose(torch.as_strided(y, again.shape, again.stride()), again)  # as cuDNN reads it: no strides
        turned = by_y.transpose(0, 1) if how[4] and not how[8] else by_y
        ends = [by_hidden] if by_cell is None else [by_hidden, by_cell]
        by_x, *found = torch.autograd.grad((again, *last), leaves, (turned, *ends))
    return by_x, found[0], found[1] if count > 1 else None, found[count:]


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's cells play cuDNN."""
    flat = lambda views, *_: torch.cat([view.flatten() for view in views])  # noqa: E731
    for name, act in {"_cudnn_rnn": there, "_cudnn_rnn_backward": back, "_cudnn_rnn_flatten_weight": flat}.items():
        monkeypatch.setattr(torch.ops.aten, name, act)
    monkeypatch.setattr(overtime, "_has_cudnn", lambda kernel, x: True)


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["rows", "documents"])
@pytest.mark.parametrize("kernel", GATES)
def test_cudnn_is_handed_what_it_left(kernel: str, documents: Tensor | None, cudnn: None) -> None:
    draw, sizes, number = torch.Generator().manual_seed(0), GATES[kernel] * HIDDEN, 2 if kernel == "lstm" else 1
    x = torch.randn(BATCH, LENGTH, INPUTS, generator=draw)
    start = torch.randn(number, BATCH, HIDDEN, generator=draw)
    shapes = [(sizes, INPUTS), (sizes, HIDDEN), (sizes,), (sizes,)]
    weights = [torch.randn(shape, generator=draw) for shape in shapes]
    leaves = [t.requires_grad_() for t in (x, start, *weights)]
    y, last = overtime._run_packed(KERNELS[kernel], RNNInput(x, documents, None, start.unbind(0)), weights)
    by_y, by_last = torch.randn(y.shape, generator=draw), torch.randn(start.shape, generator=draw)
    wanted = torch.autograd.grad((y, torch.stack(last)), leaves, (by_y, by_last))
    given = (kernel, x.detach(), documents, None, start.detach(), [w.detach() for w in weights])
    mine, ends, kept = torch.ops.heddle.run_rnn(*given, True)
    assert torch.allclose(mine, y) and torch.allclose(ends, torch.stack(last)) and mine.is_contiguous()
    found = torch.ops.heddle.rnn_backward(*given, mine, kept, by_y, by_last)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))
