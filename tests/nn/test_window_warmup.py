"""Window warm-up: in training attention sees a window of that size, and everything otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from laws.cases import ATTENTION, CHANNEL, around

from heddle.core import replace, swap
from heddle.models.networks import LanguageModelConfig
from heddle.nn.attention import AttentionConfig, set_warmup_window
from heddle.nn.attention.flex_attention import FlexMask
from heddle.nn.base import Context
from heddle.nn.layers import SlidingWindowConfig
from heddle.nn.positions import AlibiPositionConfig, RotaryPositionConfig

IDS = torch.arange(24).view(2, 12) % 23
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 12])
PLAIN = around(ATTENTION, CHANNEL)
MODELS = {
    "learned positions": PLAIN,
    "rotary positions and grouped heads": replace(
        around(replace(ATTENTION, kv_heads=2), CHANNEL), position=RotaryPositionConfig()
    ),
    "a bias of the scores": replace(PLAIN, position=AlibiPositionConfig()),
    "the sight of all": replace(PLAIN, sight="all"),
}


def windowed(config: LanguageModelConfig, size: int) -> LanguageModelConfig:
    """Return the model with a mask instead of the warm-up window."""
    return swap(AttentionConfig, lambda a: replace(a, mask=SlidingWindowConfig(size=size)))(config)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ctx", [Context(), Context(documents=DOCUMENTS)], ids=["one", "packed"])
def test_with_window_warmup_a_model_trains_as_with_a_window(name: str, ctx: Context) -> None:
    model, window = MODELS[name].build(0), torch.tensor(0)
    assert set_warmup_window(model, window) == 2
    for size in (1, 3, 8, 12):
        window.fill_(size)
        other = windowed(MODELS[name], size).build(0)
        assert torch.allclose(model(IDS, ctx), other(IDS, ctx), atol=1e-5), size


def test_without_one_in_use_and_step_by_step_it_sees_all() -> None:
    model, other = (PLAIN.build(0) for _ in range(2))
    set_warmup_window(model, torch.tensor(2))
    assert not torch.allclose(model(IDS), other(IDS), atol=1e-3)
    model.eval()
    assert torch.equal(model(IDS), other(IDS))
    model.train()
    begun = [one.step(IDS, one.new_state(2, 12))[0] for one in (model, other)]
    assert torch.equal(*begun)
    set_warmup_window(model, None)
    assert torch.equal(model(IDS), other(IDS))


def test_it_is_no_weight_and_other_masks_stay_as_they_are() -> None:
    model = windowed(PLAIN, 3).build(0)
    names = set(model.state_dict())
    assert set_warmup_window(model, torch.tensor(2)) == 0
    plain = PLAIN.build(0)
    set_warmup_window(plain, torch.tensor(2))
    assert set(plain.state_dict()) == names == set(plain.weights())


@pytest.mark.parametrize("sight", ["past", "all"])
@pytest.mark.parametrize("size", [1, 128, 129, 300, 5000])
def test_what_is_visible_takes_its_window_as_a_tensor(sight: str, size: int) -> None:
    by_number, by_tensor = (FlexMask(sight, None, window) for window in (size, torch.tensor(size)))  # type: ignore[arg-type]
    device = torch.device("cpu")
    for one, other in zip(by_number.block_grids(640, device), by_tensor.block_grids(640, device), strict=True):
        assert torch.equal(one, other)
    at = torch.arange(640)
    seen = [p.mask_mod()(at[:1], at[:1], at[:, None], at[None]) for p in (by_number, by_tensor)]
    assert torch.equal(*seen)


GRAPHS = """
import torch
from laws.cases import ATTENTION, CHANNEL, around
from heddle.nn.attention import set_warmup_window

model, plain = (around(ATTENTION, CHANNEL).build(0) for _ in range(2))
compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
window, ids = torch.tensor(0), torch.arange(24).view(2, 12) % 23
graphs = []
for size in (2, 5, None, 7, None):
    if size is not None:
        window.fill_(size)
    for one in (model, plain):
        set_warmup_window(one, None if size is None else window)
        one.zero_grad()
    for one, call in ((model, compiled), (plain, plain)):
        call(ids).square().sum().backward()
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, other.grad)
    graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
assert graphs == [1, 1, 2, 2, 2], graphs
"""

# What a GPU does: by blocks, recorded as graphs, the size changed between two replays.
BLOCKS = """
import torch
from heddle.nn.attention import AttentionConfig, set_warmup_window
from heddle.nn.base import Context, Place

torch.manual_seed(0)
attention = AttentionConfig(heads=4).build(256, Place()).cuda()
for weight in attention.parameters():
    torch.nn.init.normal_(weight, std=0.06)
x, window = torch.randn(2, 1024, 256, device="cuda"), torch.tensor(0, device="cuda")
set_warmup_window(attention, window)
compiled = torch.compile(attention, fullgraph=True, dynamic=False, mode="reduce-overhead")
for size in (100, 300, 100, 1024, 300):
    window.fill_(size)
    found = []
    for call in (compiled, attention):
        attention.zero_grad()
        call(x, Context()).square().sum().backward()
        found.append([weight.grad.clone() for weight in attention.parameters()])
    for one, other in zip(*found):
        assert (one - other).norm() < 5e-3 * other.norm(), (size, (one - other).norm() / other.norm())
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""


def passes(code: str) -> None:
    """Run code in a process without the shape checks of tests, which cannot be traced."""
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    command, env = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def test_one_graph_serves_all_sizes_and_another_none() -> None:
    passes(GRAPHS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_skips_other_blocks_when_the_size_changes_and_replays_the_same_graph() -> None:
    passes(BLOCKS)
