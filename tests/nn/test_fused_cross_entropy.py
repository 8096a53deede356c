"""The product and its cross-entropy in one: the same loss and gradients as written out, chunk by chunk."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.nn.ends import fused_cross_entropy
from heddle.nn.ends.fused_cross_entropy import LinearSoftmax, fused_linear_cross_entropy

TOKENS, VOCAB, WIDTH = 150, 29, 6


def pieces(bias: bool) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(TOKENS, WIDTH), (VOCAB, WIDTH), *([(VOCAB,)] if bias else [])]
    return [torch.randn(*shape, dtype=torch.float64, generator=draw).requires_grad_() for shape in shapes]


def wanted() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    weights = torch.rand(TOKENS, dtype=torch.float64, generator=draw)
    return torch.randint(VOCAB, (TOKENS,), generator=draw), weights.where(weights > 0.2, 0)


def written_out(inputs: list[Tensor], softcap: float | None, smoothing: float, z_loss: float = 0.0) -> Tensor:
    logits = F.linear(inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    targets, weights = wanted()
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    return ((losses + z_loss * logits.exp().sum(-1).log() ** 2) * weights).sum()


def in_one(inputs: list[Tensor], softcap: float | None, smoothing: float, z_loss: float = 0.0) -> Tensor:
    vectors, matrix, *bias = inputs
    return fused_linear_cross_entropy(
        vectors, *wanted(), LinearSoftmax(matrix, bias[0] if bias else None, softcap, smoothing, z_loss)
    )


@pytest.mark.parametrize("at_once", [1, 70 * VOCAB, 10**6])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.1, 0.03), (0.0, 0.03)])
def test_loss_and_gradients_equal_those_written_out(
    monkeypatch: pytest.MonkeyPatch, at_once: int, bias: bool, softcap: float | None, smoothing: float, z_loss: float
) -> None:
    monkeypatch.setattr(fused_cross_entropy, "TORCH_CHUNK", at_once)
    inputs = pieces(bias)
    want, got = (how(inputs, softcap, smoothing, z_loss) for how in (written_out, in_one))
    torch.testing.assert_close(got, want)
    for mine, theirs in zip(torch.autograd.grad(3 * got, inputs), torch.autograd.grad(3 * want, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_padded_columns_change_nothing() -> None:
    inputs = pieces(bias=True)
    matrix, bias = (F.pad(t, (0, 0, 0, 3) if t.dim() == 2 else (0, 3)) for t in inputs[1:])
    targets, weights = wanted()
    softmax = LinearSoftmax(inputs[1], inputs[2], softcap=2.0, smoothing=0.1)
    scores = F.linear(inputs[0], matrix, bias)
    total, back = fused_cross_entropy.torch_cross_entropy(scores, targets, weights, softmax)
    torch.testing.assert_close(total, written_out(inputs, 2.0, 0.1))
    assert back[:, VOCAB:].abs().max() == 0


def test_a_matrix_that_does_not_learn_gets_no_gradient() -> None:
    vectors, matrix = pieces(bias=False)
    in_one([vectors, matrix.detach()], None, 0.0).backward()
    want = torch.autograd.grad(written_out([vectors, matrix], None, 0.0), vectors)[0]
    assert vectors.grad is not None
    torch.testing.assert_close(vectors.grad, want)


def test_half_precision_is_near() -> None:
    inputs = [t.detach().float() for t in pieces(bias=False)]
    vectors = inputs[0].bfloat16().requires_grad_()
    matrix = inputs[1].requires_grad_()
    targets, weights = wanted()
    total = fused_linear_cross_entropy(vectors, targets, weights.float(), LinearSoftmax(matrix))
    want = written_out([vectors.double(), matrix.double()], None, 0.0)
    assert total.dtype is torch.float32
    torch.testing.assert_close(total.double(), want, rtol=1e-2, atol=0)
    total.backward()
    assert matrix.grad is not None and matrix.grad.dtype is torch.float32
    assert vectors.grad is not None and vectors.grad.dtype is torch.bfloat16


def test_no_tokens_cost_nothing() -> None:
    matrix = torch.randn(VOCAB, WIDTH, requires_grad=True)
    none = torch.empty(0, WIDTH, requires_grad=True)
    total = fused_linear_cross_entropy(none, torch.empty(0, dtype=torch.long), torch.empty(0), LinearSoftmax(matrix))
    total.backward()
    assert total == 0 and matrix.grad is not None and matrix.grad.abs().max() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("vocab", "padded"), [(29, 64), (50_257, 50_304), (8_192, 8_192)])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.1, 0.03)])
def test_our_kernel_judges_as_written_out(
    dtype: torch.dtype, vocab: int, padded: int, softcap: float | None, smoothing: float, z_loss: float
) -> None:
    torch.manual_seed(0)
    scores = torch.randn(300, padded, device="cuda").to(dtype)
    targets = torch.randint(vocab, (300, 2), device="cuda")[:, 0]  # not side by side
    weights = torch.rand(300, device="cuda").round(decimals=1)
    softmax = LinearSoftmax(torch.empty(vocab, 1, device="cuda"), None, softcap, smoothing, z_loss)
    want, back = fused_cross_entropy.torch_cross_entropy(scores.double(), targets, weights.double(), softmax)
    got, mine = fused_cross_entropy.kernel_cross_entropy(scores, targets, weights, softmax)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    assert (mine.double() - back).norm() / back.norm() < (1e-2 if dtype is torch.bfloat16 else 1e-5)
