"""Adafactor: equal to the paper's algorithm written out, and to another library's; no wait for the device in a step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import metrics, tiny, trainer_for, write_text
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from heddle.core import ConfigError, decode, encode, replace
from heddle.models.presets import PresetConfig, build
from heddle.objectives import SpanCorruptionConfig
from heddle.training.optimizers import AdafactorConfig, OptimizerConfig, RsqrtConfig
from heddle.training.optimizers.adafactor import Adafactor, AdafactorOptions

SHAPES = [(24, 8), (24, 8), (8, 24), (3, 5, 4), (16,), (16,), ()]
OPTIONS = AdafactorOptions(clip_threshold=1.0, decay_exponent=0.8, eps=1e-30)


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draw).to(dtype) * 0.1) for shape in SHAPES]


def push(weights: list[nn.Parameter], seed: int) -> None:
    """Draw gradients of very different sizes, so that some updates are clipped."""
    draw = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = (torch.randn(weight.shape, generator=draw) * 10 ** (seed % 3)).to(weight.dtype)


class Written:
    """Algorithms 4 and 5 of Shazeer & Stern 2018 with plain sums, one tensor at a time, in double precision."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.time = weight.detach().double().clone(), 0
        self.rows: Tensor | float = 0.0
        self.columns: Tensor | float = 0.0

    def step(self, gradient: Tensor, rate: float) -> float:
        """Move the weight; return the root mean square of the update before it is clipped."""
        self.time, g = self.time + 1, gradient.double()
        beta = 1 - self.time**-0.8
        alpha = max(1e-3, _rms(self.weight)) * rate
        if g.dim() < 2:
            self.rows = beta * self.rows + (1 - beta) * (g**2 + 1e-30)
            moment = self.rows
        else:
            self.rows = beta * self.rows + (1 - beta) * (g**2 + 1e-30).sum(-1, keepdim=True)
            self.columns = beta * self.columns + (1 - beta) * (g**2 + 1e-30).sum(-2, keepdim=True)
            moment = self.rows * self.columns / self.rows.sum(-2, keepdim=True)  # R C / 1'R
        update = g / moment**0.5
        self.weight = self.weight - alpha * update / max(1.0, _rms(update) / 1.0)
        return _rms(update)


def _rms(tensor: Tensor) -> float:
    return float((tensor**2).mean()) ** 0.5


def test_it_is_the_algorithm_of_the_paper() -> None:
    ours, clipped = parameters(torch.float64), 0
    optimizer = Adafactor(ours, 0.03, OPTIONS, 1e-3)
    theirs = [Written(weight) for weight in ours]
    for step in range(8):
        push(ours, step)
        optimizer.step()
        for mine, written in zip(ours, theirs, strict=True):
            assert mine.grad is not None
            clipped += written.step(mine.grad, 0.03) > 1
    for mine, written in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.detach(), written.weight, rtol=1e-6, atol=1e-9)  # steps are counted in float32
    assert 0 < clipped < 8 * len(SHAPES), "some updates are clipped, and some are not"


def test_it_is_the_other_librarys() -> None:
    other = pytest.importorskip("transformers.optimization")
    ours, theirs = parameters(), parameters()
    first = Adafactor(ours, 0.03, OPTIONS, 1e-3)
    second = other.Adafactor(theirs, lr=0.03, relative_step=False, scale_parameter=True, warmup_init=False)
    for step in range(6):
        for optimizer, weights in ((first, ours), (second, theirs)):
            push(weights, step)
            optimizer.step()
    for mine, theirs_ in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, theirs_, rtol=1e-4, atol=1e-6)


def test_second_moments_of_matrices_are_factored_and_the_state_is_small() -> None:
    model = build("first", layers=1, width=32, heads=2, vocab=50, context=16)
    optimizers = AdafactorConfig().build(model)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizers.step(torch.tensor(False))
    held = sum(t.numel() for name, t in optimizers.tensors().items() if not name.endswith("/step"))
    matrices = sum(sum(p.shape[-2:]) * p[..., 0, 0].numel() for p in model.parameters() if p.dim() > 1)
    assert held == matrices + sum(p.numel() for p in model.parameters() if p.dim() < 2)
    assert held < 0.2 * sum(p.numel() for p in model.parameters())


class Waits(TorchDispatchMode):
    """Refuses what makes a host wait for its device, and so cannot be captured in a CUDA graph."""

    NAMES = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_to_copy")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.NAMES or (name == "_to_copy" and "device" not in (kwargs or {})), name
        return func(*args, **(kwargs or {}))


def test_no_step_waits_for_the_device() -> None:
    weights = parameters()
    optimizer = Adafactor(weights, 0.03, OPTIONS, 1e-3)
    optimizer.found_inf, optimizer.grad_scale = torch.zeros(()), torch.tensor(2.0)
    for step in range(3):
        push(weights, step)
        with Waits():
            optimizer.step()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Waits():
        weights[0].sum().item()


@pytest.mark.parametrize("gradient", [math.nan, math.inf, 1e30])
def test_a_step_that_is_bad_on_the_device_changes_no_bit(gradient: float) -> None:
    weights = parameters()
    optimizer = Adafactor(weights, 0.03, OPTIONS, 1e-3)
    optimizer.found_inf = torch.ones(())  # the very first too, when the count is still zero
    for weight in weights:
        weight.grad = torch.full_like(weight, gradient)
    optimizer.step()
    assert all(torch.equal(mine, was) for mine, was in zip(weights, parameters(), strict=True))
    for seed, bad in enumerate((0.0, 1.0, 0.0)):
        optimizer.found_inf = torch.tensor(bad)
        push(weights, seed)
        before = [t.clone() for w in weights for t in (w.detach(), *optimizer.state[w].values())]
        if bad:
            for weight in weights:
                weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        after = [t for w in weights for t in (w.detach(), *optimizer.state[w].values())]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)) == bool(bad)
    plain = parameters()
    same = Adafactor(plain, 0.03, OPTIONS, 1e-3)
    for seed in (0, 2):
        push(plain, seed)
        same.step()
    assert all(torch.equal(mine, other) for mine, other in zip(weights, plain, strict=True)), "as if they had not been"


def test_gradients_are_divided_on_the_way() -> None:
    ours, theirs = parameters(), parameters()
    first, second = (Adafactor(weights, 0.03, OPTIONS, 1e-3) for weights in (ours, theirs))
    for seed, divisor in enumerate((4.0, 1.0, 8.0)):  # not one and the same, which changes nothing
        first.grad_scale = torch.tensor(divisor)
        push(ours, seed)
        push(theirs, seed)
        for weight in theirs:
            assert weight.grad is not None
            weight.grad /= divisor
        first.step()
        second.step()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_a_compiled_step_is_the_same_and_one_graph_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, graphs = torch.compile, CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compiled(f, backend=graphs, fullgraph=True, **kw))
    ours, theirs = parameters(), parameters()
    first, second = (Adafactor(weights, 0.03, OPTIONS, 1e-3) for weights in (ours, theirs))
    first.compile()
    for seed in range(4):
        for optimizer, weights in ((first, ours), (second, theirs)):
            push(weights, seed)
            optimizer.param_groups[0]["lr"] = 0.03 / (seed + 1)  # a new rate compiles nothing
            optimizer.step()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    assert graphs.frame_count == len(set(SHAPES))


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", -1.0), ("clip_threshold", 0.0), ("decay_exponent", 1.5), ("eps", (0.0, 1e-3))],
)
def test_nonsense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        AdafactorConfig(**{field: value})
    assert decode(OptimizerConfig, encode(AdafactorConfig())) == AdafactorConfig()


def test_a_t5_learns_with_it_and_resumes_in_the_same_bits(tmp_path: Path) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), every__save=4, every__validate=6, rows__boundaries="stream")
    model = PresetConfig(name="t5-small", layers=1, width=32, heads=2, hidden=48, dropout=0.1)
    made = {"optimizer": AdafactorConfig(learning_rate=0.05), "schedule": RsqrtConfig(constant=3), "average": None}
    config = replace(config, model=model, objective=SpanCorruptionConfig(z_loss=1e-4))
    ended = []
    for name, stops in (("whole", (12,)), ("cut", (4, 12))):
        for steps in stops:
            here = replace(config, training=replace(config.training, steps=steps, **made))
            trainer = trainer_for(here, tmp_path / name / "run")
            trainer.fit()
        ended.append(trainer)
    state = [one.take_step.optimizers.tensors() for one in ended]
    assert state[0].keys() == state[1].keys() and all(torch.equal(state[0][name], t) for name, t in state[1].items())
    weights = [one.model.weights() for one in ended]
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())
    held_out = [line["validation_loss"] for line in metrics(tmp_path / "whole" / "run") if "validation_loss" in line]
    assert held_out[-1] < held_out[0]
