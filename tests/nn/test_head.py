"""The head: chunked loss equals the plain one, gradients too, and never holds all logits."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from heddle.nn.ends import Head, SoftmaxHeadConfig, head

VOCAB, WIDTH = 29, 6


def build(bias: bool = True) -> Head:
    torch.manual_seed(0)
    made = SoftmaxHeadConfig(bias=bias).build(VOCAB, WIDTH).double()
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    return made


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 7, WIDTH, dtype=torch.float64, generator=draw).requires_grad_()
    return hidden, torch.randint(VOCAB, (4, 7), generator=draw)


@pytest.fixture(params=[1, 3 * VOCAB, 7 * VOCAB + 5, 27 * VOCAB])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(head, "CHUNK", request.param)
    yield


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_cross_entropy_of_the_logits(smoothing: float) -> None:
    made, (hidden, targets) = build(), data()
    scores = made.logits(hidden)
    want = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(made.nll(hidden, targets, smoothing), want.view(4, 7))


def test_smoothing_mixes_in_the_uniform_distribution() -> None:
    made, (hidden, targets) = build(), data()
    logs = made.logits(hidden).log_softmax(-1)
    want = -(0.9 * logs.gather(-1, targets[..., None])[..., 0] + 0.1 * logs.mean(-1))
    torch.testing.assert_close(made.nll(hidden, targets, 0.1), want)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_chunked_loss_and_gradients_equal_the_plain_ones(smoothing: float) -> None:
    made, (hidden, targets) = build(), data()
    weights = torch.rand(4, 7, dtype=torch.float64)
    inputs = [hidden, *made.parameters()]
    chunked = made.nll(hidden, targets, smoothing)
    got = torch.autograd.grad((chunked * weights).sum(), inputs)
    logits = made.logits(hidden).flatten(0, 1)
    plain = F.cross_entropy(logits, targets.flatten(), reduction="none", label_smoothing=smoothing).view(4, 7)
    torch.testing.assert_close(chunked, plain)
    for mine, wanted in zip(got, torch.autograd.grad((plain * weights).sum(), inputs), strict=True):
        torch.testing.assert_close(mine, wanted)


class Largest(TorchDispatchMode):
    """Remembers the most elements that any result held."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_all_logits_never_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab, tokens, chunk = 1000, 64, 4000
    made = SoftmaxHeadConfig().build(vocab, 2)
    torch.nn.init.normal_(made.weight)
    hidden = torch.randn(1, tokens, 2, requires_grad=True)
    targets = torch.randint(vocab, (1, tokens))
    seen = {}
    for name, limit in (("plain", 1 << 27), ("chunked", chunk)):
        monkeypatch.setattr(head, "CHUNK", limit)
        with Largest() as largest:
            made.nll(hidden, targets).sum().backward()
        seen[name] = largest.elements
    assert seen == {"plain": vocab * tokens, "chunked": chunk}


def test_saved_for_backward_is_less_than_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab, tokens = 1000, 64
    made = SoftmaxHeadConfig().build(vocab, 2)
    torch.nn.init.normal_(made.weight)
    monkeypatch.setattr(head, "CHUNK", 4000)
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        made.nll(torch.randn(1, tokens, 2, requires_grad=True), torch.randint(vocab, (1, tokens)))
    assert sum(saved.values()) < vocab * tokens / 8


def test_a_single_vector_has_a_loss() -> None:
    made, (hidden, targets) = build(), data()
    torch.testing.assert_close(made.nll(hidden[0, 0], targets[0, 0]), made.nll(hidden, targets)[0, 0])


def test_half_precision_scores_are_summed_in_single() -> None:
    made, (hidden, targets) = build(bias=True).float(), data()
    half = made.nll(hidden.bfloat16(), targets)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, made.nll(hidden.float(), targets), atol=0.1, rtol=0.02)


def test_a_uniform_head_costs_log_vocab() -> None:
    made, (hidden, targets) = build(), data()
    for weight in made.parameters():
        torch.nn.init.zeros_(weight)
    want = torch.full((4, 7), VOCAB, dtype=torch.float64).log()
    for smoothing in (0.0, 0.3):
        torch.testing.assert_close(made.nll(hidden, targets, smoothing), want)
