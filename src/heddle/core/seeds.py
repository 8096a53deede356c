"""Seeds: each draw is keyed by (seed, purpose, place), so skipped, resumed or re-sharded work changes nothing else."""

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that compute nothing need neither
    import numpy as np
    import torch


class Purpose(StrEnum):
    """What randomness is for; two purposes never share a stream."""

    INIT = "init"
    DATA = "data"
    DROPOUT = "dropout"
    SAMPLING = "sampling"


def key(seed: int, purpose: Purpose, *where: int | str) -> int:
    """Return a 63-bit key for one place in a run."""
    words = "/".join(str(w) for w in (seed, purpose, *where))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little") >> 1


def generator(
    seed: int, purpose: Purpose, *where: int | str, device: "torch.device | str" = "cpu"
) -> "torch.Generator":
    """Return a torch generator for one place in a run."""
    import torch

    return torch.Generator(device=device).manual_seed(key(seed, purpose, *where))


def numpy_generator(seed: int, purpose: Purpose, *where: int | str) -> "np.random.Generator":
    """Return a NumPy generator for one place in a run."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key(seed, purpose, *where)))
