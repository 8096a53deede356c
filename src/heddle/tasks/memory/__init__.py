"""Memory beyond the weights: kNN language models over texts: build a datastore, use it, choose how it is mixed in."""

from heddle.tasks.memory.grid_search import MemoryGrid, TunedMemory, tune_memory
from heddle.tasks.memory.knn_lm import (
    BuildMemoryConfig,
    BuildMemoryOptions,
    MemoryConfig,
    MemoryOptions,
    build_memory,
    memory_config,
    open_memory,
    with_memory,
)
