"""Keys differ by seed, purpose and place, and repeat."""

import torch

from heddle.core import Purpose, generator, key


def test_keys_differ_and_repeat() -> None:
    keys = {key(s, p, w) for s in range(5) for p in Purpose for w in range(5)}
    assert len(keys) == 5 * len(Purpose) * 5
    assert key(1, Purpose.DATA, 2, 3) == key(1, Purpose.DATA, 2, 3)


def test_generators_repeat() -> None:
    draws = [torch.rand(4, generator=generator(1, Purpose.INIT, "weight")) for _ in range(2)]
    assert torch.equal(*draws)
