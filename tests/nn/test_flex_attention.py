"""FlexAttention masks: the mask function and the block mask allow what the matrix allows."""

import itertools
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from heddle.nn.attention import AttentionInputs, DotScoreConfig
from heddle.nn.attention.flex_attention import BLOCK, FlexMask, flex_attend
from heddle.nn.base import Context, Sight
from heddle.nn.layers import SlidingWindowConfig, base_mask, causal_mask, document_positions, key_distances

LENGTHS = (3 * BLOCK, 2 * BLOCK + 37)
DOCUMENTS = (None, "packed", "any")
CASES = list(itertools.product(LENGTHS, ("past", "all"), DOCUMENTS, (None, 1, 40, 200), (False, True)))


def documents_of(kind: str | None, length: int) -> Tensor | None:
    """Draw documents: numbered in order, as packed rows have them, or in any order at all."""
    draw = torch.Generator().manual_seed(length)
    if kind is None:
        return None
    if kind == "any":
        return torch.randint(3, (2, length), generator=draw).sort(dim=1).values[:, torch.randperm(length)]
    return (torch.rand(2, length, generator=draw) < 0.01).long().cumsum(1)


def dense(flex_mask: FlexMask, length: int) -> Tensor:
    """Return the mask as a matrix, built by the masks of attention."""
    ctx = Context(documents=flex_mask.documents, lengths=flex_mask.lengths)
    allowed = base_mask(ctx, length, flex_mask.sight, torch.device("cpu"))
    if allowed is None:
        allowed = (
            causal_mask(length, torch.device("cpu")) if flex_mask.sight == "past" else torch.ones(1, 1, length, length)
        )
    if flex_mask.documents is not None and flex_mask.lengths is not None:
        allowed = allowed & (torch.arange(length) < flex_mask.lengths[:, None])[:, None, None]
    if flex_mask.window is not None:
        distance = key_distances(ctx, length, length, torch.device("cpu"))
        narrowed = SlidingWindowConfig(size=flex_mask.window).restrict(
            allowed.bool(), distance, document_positions(ctx, length, distance.device)
        )
        assert narrowed is not None
        allowed = narrowed
    if flex_mask.lengths is not None and flex_mask.sight == "past" and flex_mask.documents is None:
        allowed = allowed & (torch.arange(length) < flex_mask.lengths[:, None])[:, None, None]
    return allowed.bool().expand(2, 1, length, length)


def mask_of(length: int, sight: Sight, kind: str | None, window: int | None, padded: bool) -> FlexMask:
    real = torch.tensor([length, BLOCK + 3]) if padded else None
    return FlexMask(sight, documents_of(kind, length), window, real)


def by_blocks(grid: Tensor, length: int) -> Tensor:
    """Return a grid of blocks as a matrix of places."""
    return grid.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)[:, None, :length, :length]


@pytest.mark.parametrize(("length", "sight", "kind", "window", "padded"), CASES)
def test_rule_and_blocks_are_those_of_the_matrix(
    length: int, sight: Sight, kind: str | None, window: int | None, padded: bool
) -> None:
    flex_mask = mask_of(length, sight, kind, window, padded)
    want = dense(flex_mask, length)
    row, query, key = torch.arange(2)[:, None, None], torch.arange(length)[:, None], torch.arange(length)
    seen = flex_mask.mask_mod()(row, row, query, key).expand(2, length, length)[:, None]
    assert torch.equal(seen, want)
    some, every = flex_mask.block_grids(length, torch.device("cpu"))
    assert not (want & ~by_blocks(some, length)).any(), "a block is skipped that holds a key"
    assert not (by_blocks(every, length) & ~want).any(), "a block is taken whole that is not"


def test_blocks_are_skipped_and_taken_whole() -> None:
    documents = torch.arange(4).repeat_interleave(2 * BLOCK)[None]
    some, every = FlexMask("past", documents).block_grids(8 * BLOCK, torch.device("cpu"))
    assert (int(some.sum()), int(every.sum())) == (12, 4)  # of 64: each document has its two blocks and one whole


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", [None, "packed"])
@pytest.mark.parametrize("sight", ["past", "all"])
def test_mixed_values_are_those_of_the_matrix(
    sight: Sight, kind: str | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # written out, not compiled
    length, draw = 2 * BLOCK + 5, torch.Generator().manual_seed(0)
    flex_mask = mask_of(length, sight, kind, 90, padded=False)
    query, key, value = (torch.randn(2, heads, length, 16, generator=draw, dtype=torch.float64) for heads in (4, 2, 2))
    plain = (
        DotScoreConfig(softcap=softcap)
        .build(4, 16)
        .attend(AttentionInputs(query, key, value, dense(flex_mask, length)))
    )
    found = flex_attend(query, key, value, flex_mask, 0.25, softcap)
    torch.testing.assert_close(found, plain)


STRIDES = """
import torch
from heddle.nn.attention.flex_attention import FlexMask
library = torch.library.Library("peek", "FRAGMENT")
library.define("strides(Tensor[] x) -> Tensor", tags=(torch.Tag.flexible_layout,))  # is given whatever layout there is
library.impl("strides", lambda x: torch.tensor([s for t in x for s in t.stride()]), "CompositeExplicitAutograd")
torch.library.register_fake(
    "peek::strides", lambda x: x[0].new_empty(sum(t.dim() for t in x), dtype=torch.long), lib=library
)

def look(documents):
    mask = FlexMask("past", documents).block_mask(1024, documents.device)
    return torch.ops.peek.strides([mask.kv_num_blocks, mask.kv_indices, mask.full_q_num_blocks, mask.full_q_indices])

found = torch.compile(look, fullgraph=True, dynamic=False)(torch.arange(2048).view(2, 1024) // 300)
assert found.tolist() == 2 * [8, 8, 1, 64, 64, 8, 1], found
"""


def test_a_compiler_leaves_the_lists_as_the_kernel_reads_them() -> None:
    done = subprocess.run([sys.executable, "-c", STRIDES], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
