"""The scan equals the loop, with its gradient; the QRNN equals its equations written plainly."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import QRNNConfig
from heddle.nn.recurrent.scan import linear_scan
from heddle.nn.state import HiddenState

WIDTH = 6


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def looped(keep: Tensor, new: Tensor) -> Tensor:
    y, outputs = torch.zeros_like(new[:, 0]), []
    for t in range(new.shape[1]):
        y = keep[:, t] * y + new[:, t]
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 16, 31, 70, 257])
def test_the_scan_equals_the_loop(length: int) -> None:
    keep, new = numbers(2, length, 3).sigmoid(), numbers(2, length, 3, seed=1)
    torch.testing.assert_close(linear_scan(keep, new), looped(keep, new))


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_the_gradient_of_the_scan_is_right(length: int) -> None:
    keep, new = numbers(2, length, 3).sigmoid().requires_grad_(), numbers(2, length, 3, seed=1).requires_grad_()
    assert gradcheck(linear_scan, (keep, new))
    direction = numbers(2, length, 3, seed=2)
    ours = torch.autograd.grad((linear_scan(keep, new) * direction).sum(), (keep, new))
    theirs = torch.autograd.grad((looped(keep, new) * direction).sum(), (keep, new))
    torch.testing.assert_close(ours, theirs)


def test_the_scan_is_as_exact_as_the_loop_in_single_precision_over_thousands_of_steps() -> None:
    keep, new = (2 + numbers(2, 4096, 3)).sigmoid(), numbers(2, 4096, 3, seed=1)
    keep[:, ::97] = 0.0  # a document's beginning
    keep[:, 1000:1100] = 1.0
    want = looped(keep, new)
    scanned = (linear_scan(keep.float(), new.float()) - want).abs().max()
    stepped = (looped(keep.float(), new.float()) - want).abs().max()
    assert scanned < 2 * stepped + 1e-6


def built(config: QRNNConfig) -> Any:
    module = config.build(WIDTH, Place()).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def plainly(m: Any, row: Tensor) -> Tensor:
    """Run the equations of the paper over one row: Z, F, O by a causal convolution, then fo-pooling."""
    padded = torch.cat((row.new_zeros(m.window - 1, WIDTH), row))
    cell, outputs = row.new_zeros(m.hidden), []
    for t in range(len(row)):
        z, f, o = (m.weight @ padded[t : t + m.window].flatten() + m.bias).chunk(3)
        cell = torch.sigmoid(f) * cell + (1 - torch.sigmoid(f)) * torch.tanh(z)
        outputs.append(torch.sigmoid(o) * cell)
    return m.output(torch.stack(outputs))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("hidden", [None, 4])
def test_a_row_equals_the_equations(window: int, hidden: int | None) -> None:
    module = built(QRNNConfig(window=window, hidden=hidden))
    for row, want in zip(module(numbers(3, 9, WIDTH), Context()), numbers(3, 9, WIDTH), strict=True):
        torch.testing.assert_close(row, plainly(module, want))


def test_documents_begin_anew_and_padding_leaves_the_state_alone() -> None:
    module, rows = built(QRNNConfig(hidden=4)), numbers(2, 8, WIDTH)
    documents, new = torch.tensor([[0, 0, 0, 1, 1, 1, 9, 9], [0, 1, 1, 2, 2, 2, 2, 2]]), torch.tensor([6, 8])
    got, slot = module.step(rows, Context(documents=documents, lengths=new), None)
    for row, cuts in enumerate([((0, 3), (3, 6)), ((0, 1), (1, 3), (3, 8))]):
        for start, stop in cuts:
            torch.testing.assert_close(got[row, start:stop], plainly(module, rows[row, start:stop]))
    _, alone = module.step(rows[:1, 3:6], Context(), None)
    for ours, want in zip(slot.vectors, alone.vectors, strict=True):
        torch.testing.assert_close(ours[:1], want)


def test_a_row_without_new_tokens_stays_as_it_was() -> None:
    module, rows = built(QRNNConfig()), numbers(2, 5, WIDTH)
    _, before = module.step(rows, Context(), None)
    _, after = module.step(rows, Context(lengths=torch.tensor([0, 2])), before)
    for old, now in zip(before.vectors, after.vectors, strict=True):
        assert torch.equal(old[0], now[0])
        assert not torch.equal(old[1], now[1])


def test_gradient_flows_through_the_carried_state() -> None:
    module, rows = built(QRNNConfig()), numbers(2, 8, WIDTH).requires_grad_()
    _, carried = module.step(rows[:, :4], Context(), None)
    assert isinstance(carried, HiddenState)
    second, _ = module.step(rows[:, 4:], Context(), carried)
    (parted,) = torch.autograd.grad(second[:, 2].sum(), rows)
    (whole,) = torch.autograd.grad(module(rows, Context())[:, 6].sum(), rows)
    torch.testing.assert_close(parted, whole)
    assert parted[:, :4].abs().min() > 0


def test_zoneout_keeps_some_cells_in_training_and_their_mean_at_rest() -> None:
    module, plain = built(QRNNConfig(zoneout=0.3)), built(QRNNConfig())
    take = torch.full((200, 50, WIDTH), 0.4, dtype=torch.float64)
    torch.manual_seed(0)
    drawn = module.apply_zoneout(take)
    assert set(drawn.unique().tolist()) == {0.0, 0.4}
    assert drawn.mean().item() == pytest.approx(0.4 * 0.7, rel=0.02)
    torch.testing.assert_close(module.eval().apply_zoneout(take), 0.7 * take)
    assert plain.apply_zoneout(take) is take


def test_dropped_weights_are_a_plain_qrnn_with_part_of_its_matrix() -> None:
    dropping, plain, rows = built(QRNNConfig(weight_drop=0.5)), built(QRNNConfig()), numbers(2, 5, WIDTH)
    torch.manual_seed(3)
    got = dropping(rows, Context())
    torch.manual_seed(3)
    with torch.no_grad():
        plain.weight.mul_(torch.nn.functional.dropout(torch.ones_like(plain.weight), 0.5))
    torch.testing.assert_close(got, plain(rows, Context()))


def test_half_precision_streams_stay_half() -> None:
    module = built(QRNNConfig()).float()
    rows = numbers(2, 40, WIDTH, dtype=torch.float32)
    got, slot = module.step(rows.bfloat16(), Context(documents=torch.arange(40)[None].expand(2, -1) // 9), None)
    assert got.dtype == torch.bfloat16 == slot.vectors[0].dtype
    want = module(rows.bfloat16().float(), Context(documents=torch.arange(40)[None].expand(2, -1) // 9))
    torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02)


WHOLE = """
import torch
from heddle.models.presets import build
from heddle.nn.base import Context
model = build("qrnn_lm", layers=2, width=8, hidden=12, vocab=11, context=9)
ids = torch.randint(11, (2, 9))
documents = torch.arange(9)[None].expand(2, -1) // 4
whole = torch.compile(model, fullgraph=True, backend="aot_eager")
whole(ids, Context(documents=documents)).sum().backward()
model.eval()
assert torch.allclose(whole(ids, Context(documents=documents)), model(ids, Context(documents=documents)), atol=1e-5)
assert model.should_compile()
"""


def test_a_qrnn_model_is_one_graph() -> None:
    """Run in a process of its own, for the shape checks that tests switch on cannot be traced."""
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("field", "value"), [("window", 3), ("zoneout", 1.0), ("weight_drop", -0.1), ("hidden", 0)])
def test_what_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        QRNNConfig(**{field: value})
