"""R29, gradients: every own op and loss, and every weight of every preset, against finite differences in fp64."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from laws.cases import SMALL, idle, loud
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck

from heddle.models import PRESETS, LanguageModel, LanguageModelConfig
from heddle.nn import (
    ACTIVATIONS,
    AttentionConfig,
    Context,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    GRUConfig,
    Hidden,
    LayerNormConfig,
    LSTMConfig,
    PartConfig,
    Place,
    ProjectionsConfig,
    RecurrenceConfig,
    RMSNormConfig,
    RotaryPositionConfig,
    SoftmaxHeadConfig,
    WindowConfig,
    base_mask,
    head,
)
from heddle.nn.rotary import rotate

TOLERANCE = 1e-6
WIDTH, LENGTH, VOCAB = 8, 5, 7
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
Op = Callable[..., Tensor]


def shaken(module: nn.Module) -> nn.Module:
    """Fill every weight with normal numbers, in double precision."""
    draw = torch.Generator().manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def x(*shape: int) -> Tensor:
    made = torch.randn(*(shape or (2, LENGTH, WIDTH)), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return made.requires_grad_()


@dataclass(frozen=True)
class Checker:
    """Holds gradients against finite differences: entry by entry, or (fast) along one random direction each."""

    fast: bool

    def __call__(self, op: Op, module: nn.Module, *inputs: Tensor) -> bool:
        """Check an op by its inputs and by all weights of its module."""
        weights = tuple(module.parameters())

        def run(*leaves: Tensor) -> Tensor:
            return op(*leaves[: len(inputs)])

        return gradcheck(run, (*inputs, *weights), rtol=TOLERANCE, atol=1e-8, fast_mode=self.fast)


# --- ops --------------------------------------------------------------------------------------------------------------


def parts() -> Iterator[tuple[str, PartConfig, Context]]:
    """Yield every own part in every context that changes what it computes."""
    packed = Context(
        documents=DOCUMENTS, allowed=base_mask(Context(documents=DOCUMENTS), LENGTH, "past", DOCUMENTS.device)
    )
    normed = ProjectionsConfig(bias=True, output_bias=True, norm=RMSNormConfig())
    for kv_heads in (4, 2, 1):
        for name, ctx in (("plain", Context()), ("packed", packed)):
            yield f"attention, {kv_heads} kv, {name}", AttentionConfig(heads=4, kv_heads=kv_heads), ctx
    yield "attention, window", AttentionConfig(heads=2, mask=WindowConfig(size=2)), Context()
    yield "attention, normed", AttentionConfig(heads=2, projections=normed), Context()
    for name in ACTIVATIONS:
        yield f"feed-forward, {name}", FeedForwardConfig(hidden=6, activation=name, bias=True), Context()
        yield f"gated feed-forward, {name}", GatedFeedForwardConfig(hidden=6, activation=name, bias=True), Context()
    for cell in (LSTMConfig(), LSTMConfig(hidden=3), GRUConfig(), GRUConfig(hidden=3)):
        for where, ctx in (
            ("plain", Context()),
            ("packed", Context(documents=DOCUMENTS)),
            ("unequal", Context(new=torch.tensor([5, 2]))),
        ):
            yield f"{cell.kind}, {cell.hidden or WIDTH} hidden, {where}", cell, ctx


def check_parts(check: Checker) -> int:
    count = 0
    for name, config, ctx in parts():
        module = shaken(config.build(WIDTH, Place()))
        assert check(lambda stream, m=module, c=ctx: m(stream, c), module, x()), name
        count += 1
    return count


def check_carried(check: Checker) -> int:
    """Check recurrence from a carried state, by that state too."""
    cells: tuple[tuple[RecurrenceConfig, int], ...] = ((LSTMConfig(), 2), (GRUConfig(), 1))
    for config, carried in cells:
        module = shaken(config.build(WIDTH, Place()))

        def run(stream: Tensor, *start: Tensor, m: nn.Module = module) -> Tensor:
            y, slot = m.step(stream, Context(documents=DOCUMENTS), Hidden(start))
            return torch.cat((y.flatten(), *(v.flatten() for v in slot.vectors)))

        assert check(run, module, x(), *(x(2, WIDTH) for _ in range(carried)))
    return len(cells)


def check_norms_and_rotation(check: Checker) -> int:
    for config in (LayerNormConfig(), RMSNormConfig()):
        module = shaken(config.build(WIDTH))
        assert check(module, module, x())
    position = RotaryPositionConfig().build(WIDTH, Place(context=LENGTH, head_width=WIDTH)).double()
    _, ctx = position(x(), Context())
    assert ctx.rotation is not None
    assert check(lambda q: rotate(q, ctx.rotation), position, x(2, 3, LENGTH, WIDTH))
    return 3


def check_losses(check: Checker, monkeypatch: pytest.MonkeyPatch) -> int:
    targets = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    count = 0
    for chunk in (1 << 27, 3 * VOCAB):
        monkeypatch.setattr(head, "CHUNK", chunk)
        for smoothing in (0.0, 0.1):
            for bias in (False, True):
                module = shaken(SoftmaxHeadConfig(bias=bias).build(VOCAB, WIDTH))
                assert check(lambda h, m=module, s=smoothing: m.nll(h, targets, s), module, x())
                count += 1
    return count


# --- whole models -----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was compared, and the worst of it."""

    compared: int = 0
    without: int = 0
    worst: float = 0.0


def tiny(name: str) -> LanguageModelConfig:
    """Return a preset small enough to move each weight by itself."""
    make = {named.make.__name__: named.make for named in PRESETS.values()}[name]
    dials = {"heads": 2, "kv_heads": 1, "hidden": 6, "width": 4, "layers": 2}
    return make(vocab=VOCAB, context=LENGTH, **{dial: dials[dial] for dial in SMALL[name]})


def slope(loss: Callable[[], Tensor], weight: Tensor, index: int, step: float = 1e-4) -> float:
    """Measure a derivative by five points, good to the fourth power of the step."""
    flat, values = weight.view(-1), {}
    kept = flat[index].item()
    for k in (-2, -1, 1, 2):
        flat[index] = kept + k * step
        values[k] = loss().item()
    flat[index] = kept
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)


def compare(model: LanguageModel, ctx: Context, entries: int | None, tally: Tally) -> None:
    """Compare some entries of each weight's gradient (None: all) with the measured slopes."""
    draw = torch.Generator().manual_seed(3)
    inputs, targets = (torch.randint(VOCAB, (2, LENGTH), generator=draw) for _ in range(2))

    def loss() -> Tensor:
        return model.head.nll(model(inputs, ctx), targets).mean()

    names, weights = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss(), weights)
    with torch.no_grad():
        for name, weight, gradient in zip(names, weights, gradients, strict=True):
            order = torch.randperm(weight.numel(), generator=draw)[:entries].tolist()
            measured = torch.tensor([slope(loss, weight, i) for i in order], dtype=torch.float64)
            apart = (measured - gradient.flatten()[order]).abs().max().item()
            size = gradient.abs().max().item()
            tally.compared += len(order)
            if idle(model.config, name):
                assert max(size, apart) < 1e-10, name
                continue
            tally.without += size == 0.0
            tally.worst = max(tally.worst, apart / size)


def run(entries: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Checker(fast=entries is not None)
    ops = check_parts(check) + check_carried(check) + check_norms_and_rotation(check) + check_losses(check, monkeypatch)
    monkeypatch.undo()
    tally = Tally()
    for name in SMALL:
        model = loud(tiny(name)).train()
        compare(model, Context(), entries, tally)
        if entries is None:
            compare(model, Context(documents=DOCUMENTS), entries, tally)
    print(
        f"R29: worst relative error {tally.worst:.1e} over {tally.compared:,} slopes of {len(SMALL)} presets; "
        f"{tally.without} weights without a gradient; {ops} ops and losses pass gradcheck"
    )
    assert tally.worst <= TOLERANCE
    assert tally.without == 0


def test_gradients_of_ops_and_some_weights_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    run(2, monkeypatch)


@pytest.mark.full
def test_gradients_of_ops_and_all_weights_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    run(None, monkeypatch)


def test_a_wrong_gradient_is_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient * 1.00001

    for fast in (True, False):
        with pytest.raises(GradcheckError):
            Checker(fast)(Wrong.apply, nn.Identity(), x())

    model, tally = loud(tiny("gpt2")), Tally()
    model.get_submodule("stack.0.channel.part.up").weight.register_hook(lambda g: g * 1.001)
    compare(model, Context(), 4, tally)
    assert tally.worst > TOLERANCE
