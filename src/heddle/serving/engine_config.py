"""Engine config: slots, limits and memory of serving."""

from dataclasses import dataclass, field
from typing import Literal

from heddle.core import ConfigError, check_at_least
from heddle.nn.state import FullKVCacheConfig, KVCacheConfig

CHUNK_ON_CPU, CHUNK_ON_GPU = 32, 512


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How many requests run at once, how many may wait, and what memory they may use.

    slots: requests that are decoded side by side.
    capacity: tokens of a slot, prompt and answer together; None: the model's context, at most 4,096.
    chunk: tokens of a prompt read between two steps, a multiple of 16; None: 32 on a CPU, 512 on a GPU.
    invariant: the same bits for a request whatever its neighbours; auto: on a CPU.
    waiting: requests in the queue, at most.
    waiting_per_client: those of one client; None: half of the queue, so that no client fills it.
    max_wait: seconds that a request waits at most, unless it says so itself; None: no limit.
    memory: bytes of all slots; fewer slots are made if they need more. None: no limit.
    prefix_bytes: bytes of the prefix cache; 0: none.
    max_searches: beam searches and other generations that cannot share steps, which run in turn with them, at most.
    cuda_graphs: replay the steps of a GPU as CUDA graphs, captured at start.
    cache: the kind of KV cache.
    prepack: on a CPU, keep a copy of float32 matrices in the layout that products of few rows are fastest with.
    """

    slots: int = 16
    capacity: int | None = None
    chunk: int | None = None
    invariant: Literal["auto", "on", "off"] = "auto"
    waiting: int = 256
    waiting_per_client: int | None = None
    max_wait: float | None = None
    memory: int | None = None
    prefix_bytes: int = 1 << 28
    max_searches: int = 4
    cuda_graphs: bool = True
    cache: KVCacheConfig = field(default_factory=FullKVCacheConfig)
    prepack: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, slots=self.slots, max_searches=self.max_searches)
        check_at_least(0, waiting=self.waiting, prefix_bytes=self.prefix_bytes)
        for name in ("capacity", "waiting_per_client", "memory"):
            value = self.__dict__[name]
            if value is not None and value < 1:
                raise ConfigError(name, want="at least 1", got=value)
        if self.max_wait is not None and not self.max_wait > 0:
            raise ConfigError("max_wait", want="above 0 seconds", got=self.max_wait)
        if self.chunk is not None and (self.chunk < 16 or self.chunk % 16):
            raise ConfigError("chunk", want="a multiple of 16", got=self.chunk)

    @property
    def client_limit(self) -> int:
        """Return how many requests of one client may wait."""
        return max(1, self.waiting // 2) if self.waiting_per_client is None else self.waiting_per_client

    def chunk_on(self, device: str) -> int:
        """Return the chunk on a kind of device."""
        return self.chunk or (CHUNK_ON_CPU if device == "cpu" else CHUNK_ON_GPU)

    def is_invariant(self, device: str) -> bool:
        """Tell whether the engine computes batch-invariantly on a kind of device."""
        return self.invariant == "on" or (self.invariant == "auto" and device == "cpu")

    def captures_on(self, device: str) -> bool:
        """Tell whether steps are captured as CUDA graphs on a kind of device."""
        return self.cuda_graphs and device == "cuda"
