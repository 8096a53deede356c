"""KV cache: all tokens or a ring buffer of the latest, in full precision or int8."""

import pytest
import torch

from heddle.core import encode
from heddle.nn.state import FullKVCacheConfig, Int8KVCacheConfig, KVCache, KVCacheConfig, RingBuffer

KINDS = [FullKVCacheConfig(), Int8KVCacheConfig()]


def numbered(batch: int, length: int) -> torch.Tensor:
    """Return vectors of one number, the step of each token."""
    return torch.arange(float(length)).view(1, 1, length, 1).expand(batch, 1, length, 4).contiguous()


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.kind)
def test_each_row_is_written_at_its_own_steps(kind: KVCacheConfig) -> None:
    new = torch.arange(1.0, 13.0).view(2, 1, 2, 3)
    cache = KVCache.allocate((new, new), 5, None, kind)
    cache.write((new, -new), torch.tensor([[0, 1], [3, 4]]), torch.tensor([[True, True], [True, False]]))
    keys, values = cache.read()
    assert keys[0, 0].sum(-1).round().tolist() == [6, 15, 0, 0, 0]
    assert keys[1, 0].sum(-1).round().tolist() == [0, 0, 0, 24, 0]  # the last went to the bin
    assert torch.equal(values, -keys)


@pytest.mark.parametrize(("window", "sinks"), [(5, 0), (4, 3), (1, 1)])
def test_a_ring_says_where_each_token_stands(window: int, sinks: int) -> None:
    ring = RingBuffer.for_window(window, sinks)
    length = 3 * ring.size
    cache = KVCache.allocate((numbered(2, 1),), length, ring, FullKVCacheConfig())
    assert cache.size == ring.size + sinks
    for step in range(length):
        new = torch.full((2, 1, 1, 4), float(step))
        cache.write((new,), torch.tensor([[step]]), None)
        stands = ring.steps(torch.tensor([step + 1, step + 1]), cache.size)
        found, seen = cache.read()[0][0, 0, :, 0], stands[0]
        written = (seen >= 0) & (seen <= step)
        assert torch.equal(found[written], seen[written].float())
        kept = set(seen[written].tolist())
        assert set(range(max(0, step + 1 - ring.size), step + 1)) | set(range(min(sinks, step + 1))) <= kept


def test_rewinding_up_to_the_slack_keeps_every_window_whole() -> None:
    ring = RingBuffer.for_window(4, 2)
    cache = KVCache.allocate((numbered(1, 1),), 100, ring, FullKVCacheConfig())
    for step in range(60):
        cache.write((torch.full((1, 1, 1, 4), float(step)),), torch.tensor([[step]]), None)
    for back in range(ring.slack + 1):
        length = 60 - back
        stands, found = ring.steps(torch.tensor([length]), cache.size)[0], cache.read()[0][0, 0, :, 0]
        query = length  # the next token's step
        seen = (stands >= 0) & (((query - stands).abs() < 4) | (stands < 2)) & (stands <= query)
        assert torch.equal(found[seen], stands[seen].float())
        assert {length - 3, length - 2, length - 1} <= set(stands[seen].tolist())
    assert cache.can_rewind(ring.slack)
    assert not cache.can_rewind(ring.slack + 1)


@pytest.mark.parametrize("size", [7.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_quantised_numbers_come_back_within_the_stated_tolerance(dtype: torch.dtype, size: float) -> None:
    new = (torch.randn(3, 4, 50, 16, generator=torch.Generator().manual_seed(0)) * size).to(dtype)
    cache = KVCache.allocate((new,), 50, None, Int8KVCacheConfig())
    cache.write((new,), torch.arange(50)[None], None)
    (back,) = cache.read()
    assert back.dtype == dtype
    bound = 1 / 254 + torch.finfo(dtype).eps
    assert ((back - new).double().abs() <= new.double().abs().amax(-1, keepdim=True) * bound * 1.0001).all()
    assert not torch.equal(back, new)


def test_a_quantised_cache_is_a_third_of_a_full_one() -> None:
    new = torch.randn(1, 2, 8, 64)
    sizes = {}
    for kind in KINDS:
        tensors: list[torch.Tensor] = []
        KVCache.allocate((new, new), 99, None, kind).map(lambda t, found=tensors: found.append(t) or t)  # type: ignore[misc]
        sizes[kind.kind] = sum(t.nbytes for t in tensors)
    assert sizes == {"full": 2 * 2 * 100 * 64 * 4, "int8": 2 * 2 * 100 * (64 + 4)}


def test_a_vector_of_zeros_stays_one_in_eight_bits() -> None:
    cache = KVCache.allocate((torch.zeros(1, 1, 1, 4),), 2, None, Int8KVCacheConfig())
    cache.write((torch.zeros(1, 1, 2, 4),), torch.arange(2)[None], None)
    assert cache.read()[0].abs().max() == 0


def test_kinds_have_names() -> None:
    assert [encode(kind)["kind"] for kind in KINDS] == ["full", "int8"]
