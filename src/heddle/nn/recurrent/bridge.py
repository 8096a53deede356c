"""Bridge: how a recurrent decoder sees the source: as initial state (Sutskever 2014) or at every step (Cho 2014)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from heddle.core import Config, ConfigError, part
from heddle.core.shapes import Stream, Vector
from heddle.nn.base import Context, Linear, Module, Role
from heddle.nn.outputs import LastTokenConfig, PoolingConfig
from heddle.nn.state import HiddenState, Memory, Slot

StateSizes = Mapping[str, tuple[int, ...]]  # sizes of the states in each recurrent slot of the decoder


class BridgeConfig(Config, ABC):
    """What a decoder gets from the source besides cross-attention."""

    @abstractmethod
    def build(self, width: int, state_sizes: StateSizes) -> "Bridge":
        """Build the module for a decoder with these recurrent slots."""


class Bridge(Module, ABC):
    """Summarizes the source, initializes the decoder's states, and adds to its input."""

    starts_state: bool = False  # whether it initializes the decoder's states

    @abstractmethod
    def summary(self, x: Stream, ctx: Context) -> Vector | None:
        """Return one vector for each source, or None."""

    def initial_slots(self, memory: Memory) -> dict[str, Slot]:
        """Return the decoder's initial slots."""
        return {}

    def feed(self, x: Stream, memory: Memory) -> Stream:
        """Return the decoder's input with the summary added."""
        return x


@part("none")
class NoBridgeConfig(BridgeConfig):
    """No bridge: cross-attention alone."""

    def build(self, width: int, state_sizes: StateSizes) -> Bridge:
        return NoBridge()


class NoBridge(Bridge):
    """Nothing."""

    def summary(self, x: Stream, ctx: Context) -> Vector | None:
        return None


def _check(state_sizes: StateSizes, kind: str | None) -> None:
    if not state_sizes:
        raise ConfigError("bridge", want="none, or a recurrent decoder, whose state it initializes", got=kind)


@part("first_state")
class FirstStateConfig(BridgeConfig):
    """Initialize every state of the decoder from the summary (Sutskever et al. 2014).

    pooling: how the encoded source becomes one vector.
    """

    pooling: PoolingConfig = LastTokenConfig()

    def build(self, width: int, state_sizes: StateSizes) -> Bridge:
        _check(state_sizes, self.kind)
        return FirstState(width, self.pooling, state_sizes)


class FirstState(Bridge):
    """state = tanh(dense(summary)), for each vector of each layer."""

    starts_state = True

    def __init__(self, width: int, pooling: PoolingConfig, state_sizes: StateSizes) -> None:
        super().__init__()
        self.pooling, self.state_sizes = pooling.build(width), state_sizes
        self.dense = Linear(width, sum(sum(sizes) for sizes in state_sizes.values()), bias=True)

    def summary(self, x: Stream, ctx: Context) -> Vector | None:
        return self.pooling(x, ctx)  # type: ignore[no-any-return]

    def initial_slots(self, memory: Memory) -> dict[str, Slot]:
        vectors = self.dense(memory.summary).tanh()
        slots: dict[str, Slot] = {}
        for key, sizes in self.state_sizes.items():
            own, vectors = vectors[:, : sum(sizes)], vectors[:, sum(sizes) :]
            slots[key] = HiddenState(tuple(own.split(sizes, dim=1)))
        return slots


@part("every_step")
class EveryStepConfig(BridgeConfig):
    """Add the summary, through a dense layer, at every step, and initialize the states from it (Cho et al. 2014).

    pooling: how the encoded source becomes one vector.
    """

    pooling: PoolingConfig = LastTokenConfig()

    def build(self, width: int, state_sizes: StateSizes) -> Bridge:
        _check(state_sizes, self.kind)
        return EveryStep(width, self.pooling, state_sizes)


class EveryStep(Bridge):
    """x + dense(summary); state = tanh(dense(summary))."""

    starts_state = True

    def __init__(self, width: int, pooling: PoolingConfig, state_sizes: StateSizes) -> None:
        super().__init__()
        self.first = FirstState(width, pooling, state_sizes)
        self.dense = Linear(width, width, bias=True, role=Role.INTO_STREAM)

    def summary(self, x: Stream, ctx: Context) -> Vector | None:
        return self.first.summary(x, ctx)

    def initial_slots(self, memory: Memory) -> dict[str, Slot]:
        return self.first.initial_slots(memory)

    def feed(self, x: Stream, memory: Memory) -> Stream:
        return x + self.dense(memory.summary)[:, None].to(x.dtype)  # type: ignore[no-any-return]
