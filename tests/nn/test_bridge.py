"""Bridges: the decoder's first state is a function of the source's summary, and so is what it is fed."""

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.nn.base import Context
from heddle.nn.outputs import FirstTokenConfig, LastTokenConfig, MeanConfig, PoolingConfig
from heddle.nn.recurrent import BridgeConfig, EveryStepConfig, FirstStateConfig, NoBridgeConfig
from heddle.nn.recurrent.bridge import Bridge
from heddle.nn.state import HiddenState, Memory

WIDTH, BATCH, SOURCE = 6, 3, 5
CARRIED = {"decoder.stack.0.mixer": (4, 4), "decoder.stack.1.mixer": (3,)}
LENGTHS = (5, 2, 1)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def made(config: BridgeConfig) -> Bridge:
    bridge = config.build(WIDTH, CARRIED).double()
    for i, weight in enumerate(bridge.parameters()):
        weight.copy_(draw(*weight.shape, seed=i + 1))
    return bridge


def memory_of(bridge: Bridge, x: Tensor, lengths: tuple[int, ...] | None = LENGTHS) -> Memory:
    return Memory((x,), summary=bridge.summary(x, Context(lengths=None if lengths is None else torch.tensor(lengths))))


@pytest.mark.parametrize("config", [FirstStateConfig(), EveryStepConfig()], ids=lambda c: c.kind)
def test_every_carried_vector_begins_as_tanh_of_the_dense_summary(config: BridgeConfig) -> None:
    bridge, x = made(config), draw(BATCH, SOURCE, WIDTH)
    slots = bridge.initial_slots(memory_of(bridge, x))
    dense = bridge.get_submodule("dense" if config.kind == "first_state" else "first.dense")
    last = torch.stack([x[row, length - 1] for row, length in enumerate(LENGTHS)])
    want = torch.tanh(last @ dense.get_parameter("weight").T + dense.get_parameter("bias"))
    got = []
    for key, sizes in CARRIED.items():
        slot = slots[key]
        assert isinstance(slot, HiddenState)
        assert tuple(v.shape[1] for v in slot.vectors) == sizes
        got += slot.vectors
    torch.testing.assert_close(torch.cat(got, 1), want)
    assert bridge.starts_state


@pytest.mark.parametrize(
    ("pooling", "want"),
    [
        (FirstTokenConfig(), lambda row, n: row[0]),
        (LastTokenConfig(), lambda row, n: row[n - 1]),
        (MeanConfig(), lambda row, n: row[:n].mean(0)),
    ],
    ids=lambda p: p.kind if isinstance(p, PoolingConfig) else "",
)
def test_the_summary_knows_nothing_of_padding(pooling: PoolingConfig, want: object) -> None:
    assert callable(want)
    bridge, x = made(FirstStateConfig(pooling=pooling)), draw(BATCH, SOURCE, WIDTH)
    summary = memory_of(bridge, x).summary
    torch.testing.assert_close(summary, torch.stack([want(x[i], n) for i, n in enumerate(LENGTHS)]))
    whole = memory_of(bridge, x, None).summary
    torch.testing.assert_close(whole, torch.stack([want(row, SOURCE) for row in x]))


def test_every_step_is_fed_the_same_addition_from_the_summary() -> None:
    bridge, x, target = made(EveryStepConfig()), draw(BATCH, SOURCE, WIDTH), draw(BATCH, 4, WIDTH, seed=7)
    memory = memory_of(bridge, x)
    dense = bridge.get_submodule("dense")
    assert memory.summary is not None
    added = memory.summary @ dense.get_parameter("weight").T + dense.get_parameter("bias")
    torch.testing.assert_close(bridge.feed(target, memory) - target, added[:, None].expand(-1, 4, -1))
    first = made(FirstStateConfig())
    assert torch.equal(first.feed(target, memory_of(first, x)), target)


def test_a_bridge_without_a_recurrent_decoder_is_refused() -> None:
    for config in (FirstStateConfig(), EveryStepConfig()):
        with pytest.raises(ConfigError, match="bridge: want none, or a recurrent decoder"):
            config.build(WIDTH, {})


def test_no_bridge_begins_and_feeds_nothing() -> None:
    bridge, x = NoBridgeConfig().build(WIDTH, CARRIED), draw(BATCH, SOURCE, WIDTH)
    memory = memory_of(bridge, x)
    assert memory.summary is None
    assert bridge.initial_slots(memory) == {}
    assert bridge.feed(x, memory) is x
    assert not bridge.starts_state
