"""Memory: the C library keeps freed blocks for the next step, instead of new pages from the kernel each time."""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's mallopt, malloc.h
KEPT = (1 << 31) - 1  # bytes free at the end of the heap before it shrinks
LARGEST = (1 << 30, 1 << 25)  # a block up to this size comes from the heap; older versions refuse more than 32 MiB
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Keep freed memory in this process; return False where the user has set it or the C library is another.

    A training step on a CPU allocates and frees the same large tensors again and again. By default each comes as fresh
    pages that the kernel must clear first.
    """
    if any(os.environ.get(name) for name in CHOSEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return any(mallopt(MMAP_THRESHOLD, size) for size in LARGEST) and bool(mallopt(TRIM_THRESHOLD, KEPT))
