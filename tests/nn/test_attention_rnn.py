"""Attention inside the decoder's loop: against the formula, whole and in pieces, with unequal sources and targets."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heddle.core import ConfigError, UsageError, decode, encode
from heddle.nn.base import Context, PartConfig, Place
from heddle.nn.recurrent import (
    AdditiveAlignmentConfig,
    AlignmentConfig,
    AttentionRNN,
    AttentionRNNConfig,
    BothUseConfig,
    CellConfig,
    CellUseConfig,
    ContextUseConfig,
    DotAlignmentConfig,
    GeneralAlignmentConfig,
    GRUConfig,
    InputFeedingConfig,
    LSTMConfig,
    OutputUseConfig,
)
from heddle.nn.state import HiddenState, Memory

WIDTH, MEMORY, BATCH, LENGTH, SOURCE = 6, 6, 3, 5, 7
ALIGNMENTS: list[AlignmentConfig] = [AdditiveAlignmentConfig(hidden=4), DotAlignmentConfig(), GeneralAlignmentConfig()]
USES: list[ContextUseConfig] = [CellUseConfig(), BothUseConfig(), OutputUseConfig(), InputFeedingConfig()]
CELLS: list[CellConfig] = [LSTMConfig(), GRUConfig()]

every = pytest.mark.parametrize(
    "config",
    [AttentionRNNConfig(cell=c, alignment=a, use=u) for c in CELLS for a in ALIGNMENTS for u in USES]
    + [AttentionRNNConfig(cell=c(hidden=4), use=u) for c in (LSTMConfig, GRUConfig) for u in USES],
    ids=lambda c: f"{c.cell.kind}{c.cell.hidden or ''}-{c.alignment.kind}-{c.use.kind}",
)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def made(config: AttentionRNNConfig, memory: int = MEMORY) -> AttentionRNN:
    module = config.build(WIDTH, Place(memory=memory)).double().eval()
    for i, weight in enumerate(module.parameters()):
        weight.copy_(0.6 * draw(*weight.shape, seed=i))
    return module


def source(lengths: tuple[int, ...] | None = (7, 4, 1)) -> Memory:
    places = draw(BATCH, SOURCE, MEMORY, seed=9)
    if lengths is None:
        return Memory((places,))
    return Memory((places,), (torch.arange(SOURCE) < torch.tensor(lengths)[:, None])[:, None, None])


# --- the formula, one row and one step at a time ----------------------------------------------------------------------


def score(module: AttentionRNN, query: Tensor, place: Tensor) -> Tensor:
    w = dict(module.alignment.named_parameters())
    if "query.weight" in w:
        return w["weight"] @ torch.tanh(w["query.weight"] @ query + w["key.weight"] @ place)
    return query @ (w["key.weight"] @ place if "key.weight" in w else place)


def torch_cell(module: AttentionRNN, entering: int) -> nn.RNNCellBase:
    """Return torch's own cell, fed with the input and what attention adds to it side by side."""
    own = module.cell
    cell = (nn.LSTMCell if own.gates == 4 else nn.GRUCell)(WIDTH + entering, module.hidden).double()
    with torch.no_grad():
        extra = [module.enter.weight] if entering else []
        cell.weight_ih.copy_(torch.cat([own.input_weight, *extra], 1))
        cell.weight_hh.copy_(own.recurrent_weight)
        cell.bias_ih.copy_(own.input_bias)
        cell.bias_hh.copy_(own.recurrent_bias)
    return cell


def plainly(module: AttentionRNN, x: Tensor, places: Tensor, start: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return outputs and weights of one row by the papers' formulas."""
    use = module.use
    entering = 0 if not use.into_cell else places.shape[1] if use.attends_first else WIDTH
    cell, carried = torch_cell(module, entering), list(start)
    lstm = module.cell.gates == 4

    def ask(query: Tensor) -> tuple[Tensor, Tensor]:
        shares = torch.stack([score(module, query, p) for p in places]).softmax(0)
        return shares @ places, shares

    outputs, weights = [], []
    for token in x:
        if use.attends_first:
            context, shares = ask(carried[0])
        extra = [] if not use.into_cell else [context] if use.attends_first else [carried[-1]]
        entered = torch.cat([token, *extra])[None]
        moved = cell(entered, (carried[0][None], carried[1][None]) if lstm else carried[0][None])
        carried[: 2 if lstm else 1] = [v[0] for v in moved] if lstm else [moved[0]]
        output = module.cell.output(carried[0])
        if not use.attends_first:
            context, shares = ask(output)
        if use.into_output:
            output = torch.tanh(module.combine.weight @ torch.cat([output, context]))
        if use.into_cell and not use.attends_first:
            carried[-1] = output
        outputs.append(output)
        weights.append(shares)
    return torch.stack(outputs), torch.stack(weights)


@every
def test_every_form_is_the_papers_formula(config: AttentionRNNConfig) -> None:
    module, x, memory, lengths = made(config), draw(BATCH, LENGTH, WIDTH), source(), (7, 4, 1)
    start = tuple(draw(BATCH, size, seed=20 + i) for i, size in enumerate(module.state_sizes()))
    outputs, slot = module.step(x, Context(memory=memory), HiddenState(start))
    weights = module.attention_weights(x, Context(memory=memory), HiddenState(start))
    for row, length in enumerate(lengths):
        want, shares = plainly(module, x[row], memory.layers[0][row, :length], [v[row] for v in start])
        torch.testing.assert_close(outputs[row], want, rtol=0, atol=1e-12)
        torch.testing.assert_close(weights[row, 0, :, :length], shares, rtol=0, atol=1e-12)
        assert not weights[row, 0, :, length:].any()
    assert [v.shape[1] for v in slot.vectors] == list(module.state_sizes())


# --- steps, rows, documents -------------------------------------------------------------------------------------------


@every
def test_steps_and_chunks_give_what_the_whole_gives(config: AttentionRNNConfig) -> None:
    module, x, ctx = made(config), draw(BATCH, LENGTH, WIDTH), Context(memory=source())
    whole, last = module.step(x, ctx, None)
    assert torch.equal(whole, module(x, ctx))
    for sizes in ((1,) * LENGTH, (2, 3), (4, 1)):
        slot, outputs = None, []
        for chunk in x.split(sizes, dim=1):
            output, slot = module.step(chunk, ctx, slot)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-12)
        assert slot is not None
        for ours, theirs in zip(slot.vectors, last.vectors, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@every
def test_padding_of_source_and_target_changes_nothing(config: AttentionRNNConfig) -> None:
    module, x, new = made(config), draw(BATCH, LENGTH, WIDTH), (5, 0, 2)
    start = tuple(draw(BATCH, size, seed=20 + i) for i, size in enumerate(module.state_sizes()))
    outputs, slot = module.step(x, Context(memory=source(), lengths=torch.tensor(new)), HiddenState(start))
    for row, (real, length) in enumerate(zip(new, (7, 4, 1), strict=True)):
        begun = HiddenState(tuple(v[row : row + 1] for v in start))
        alone = Context(memory=Memory((source().layers[0][row : row + 1, :length],)))
        if real == 0:
            assert all(torch.equal(v[row], b[0]) for v, b in zip(slot.vectors, begun.vectors, strict=True))
            continue
        want, kept = module.step(x[row : row + 1, :real], alone, begun)
        torch.testing.assert_close(outputs[row : row + 1, :real], want, rtol=0, atol=1e-12)
        for ours, theirs in zip(slot.vectors, kept.vectors, strict=True):
            torch.testing.assert_close(ours[row : row + 1], theirs, rtol=0, atol=1e-12)


@every
def test_packed_documents_never_meet(config: AttentionRNNConfig) -> None:
    module, x, memory = made(config), draw(BATCH, LENGTH, WIDTH), source()
    packed = module(x, Context(memory=memory, documents=torch.tensor([[0, 0, 1, 1, 1]] * BATCH)))
    for part in (x[:, :2], x[:, 2:]):
        start = 0 if part.shape[1] == 2 else 2
        alone = module(part, Context(memory=memory))
        torch.testing.assert_close(packed[:, start : start + part.shape[1]], alone, rtol=0, atol=1e-12)


@every
def test_every_weight_input_and_first_state_gets_a_right_gradient(config: AttentionRNNConfig) -> None:
    module, x, places = made(config), draw(1, 3, WIDTH).requires_grad_(), draw(1, 4, MEMORY, seed=9).requires_grad_()
    start = tuple(draw(1, s, seed=20 + i).requires_grad_() for i, s in enumerate(module.state_sizes()))

    def run(x: Tensor, places: Tensor, *rest: Tensor) -> Tensor:
        return module.step(x, Context(memory=Memory((places,))), HiddenState(rest[: len(start)]))[0]

    leaves = (x, places, *start, *module.parameters())
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    gradients = torch.autograd.grad(run(*leaves).square().sum(), leaves)
    assert all(g.abs().max() > 1e-8 for g in gradients)


def test_keys_are_projected_once_for_each_source() -> None:
    module, x, ctx = made(AttentionRNNConfig()), draw(BATCH, LENGTH, WIDTH), Context(memory=source())
    calls = []
    assert isinstance(module.alignment, nn.Module)
    module.alignment.get_submodule("key").register_forward_hook(lambda *_: calls.append(1))
    slot: object = None
    for token in x.split(1, dim=1):
        _, slot = module.step(token, ctx, slot)
    module(x, ctx)
    assert len(calls) == 2  # once for the steps, once for the whole


def test_half_precision_stays_near_and_keeps_its_dtype() -> None:
    for use in USES:
        module = made(AttentionRNNConfig(use=use)).float()
        memory = source()
        x, ctx = draw(BATCH, LENGTH, WIDTH).float(), Context(memory=memory.map(_in(torch.float32)))
        low = module(x.bfloat16(), Context(memory=memory.map(_in(torch.bfloat16))))
        assert low.dtype is torch.bfloat16
        torch.testing.assert_close(low.float(), module(x, ctx), rtol=0, atol=0.1)


def _in(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor if tensor.dtype is torch.bool else tensor.to(dtype)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_without_an_encoder_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="no encoder"):
        AttentionRNNConfig().build(WIDTH, Place())


def test_a_dot_of_unequal_sizes_is_refused() -> None:
    with pytest.raises(ConfigError, match="general"):
        AttentionRNNConfig(alignment=DotAlignmentConfig()).build(WIDTH, Place(memory=WIDTH + 1))


def test_a_run_without_a_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="memory"):
        made(AttentionRNNConfig())(draw(BATCH, LENGTH, WIDTH), Context())


def test_the_config_survives_plain_data() -> None:
    config = AttentionRNNConfig(cell=GRUConfig(hidden=3), alignment=GeneralAlignmentConfig(), use=InputFeedingConfig())
    assert decode(PartConfig, encode(config)) == config
    assert dataclasses.replace(config, use=BothUseConfig()) != config
