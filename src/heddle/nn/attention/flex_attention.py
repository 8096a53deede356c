"""FlexAttention (Dong et al. 2024): block-sparse attention by a mask function over positions.

A dense boolean mask is applied after the scores were computed, so it saves nothing. With a mask function, blocks that
documents, a window or causality mask completely are never read, and unmasked blocks skip the function.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from heddle.nn.base import Sight
from heddle.nn.layers import apply_softcap

BLOCK = 128  # positions in a block: what the kernels are made for
BlockGrid = Bool[Tensor, "#batch blocks blocks"]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class FlexMask:
    """Which keys a query may see, as a mask function over positions and as a `BlockMask`."""

    sight: Sight
    documents: Int[Tensor, "batch length"] | None = None  # None: a row is one document
    # keys less than this many positions away are seen; None: all; a tensor may change between calls
    window: int | Int[Tensor, ""] | None = None
    lengths: Int[Tensor, " batch"] | None = None  # how many keys of a row are not padding; None: all

    @property
    def restricts(self) -> bool:
        """Tell whether it masks more than causality does."""
        return not (self.documents is None and self.window is None and self.lengths is None)

    def mask_mod(self) -> MaskMod:
        """Return the mask function for one query and one key."""

        def sees(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            seen = query >= key if self.sight == "past" else query >= 0
            if self.documents is not None:
                seen = seen & (self.documents[row, query] == self.documents[row, key])
            if self.window is not None:
                seen = seen & (query - key < self.window) & (key - query < self.window)
            return seen if self.lengths is None else seen & (key < self.lengths[row])

        return sees

    def block_grids(self, length: int, device: torch.device) -> tuple[BlockGrid, BlockGrid]:
        """Return which blocks may hold a visible key, and which hold only visible keys, without building the matrix."""
        at = torch.arange(-(-length // BLOCK), device=device)
        block_distance = (at[:, None] - at[None, :])[None]
        complete = (at + 1) * BLOCK <= length  # the last block may extend past the row
        any_visible = torch.ones_like(block_distance, dtype=torch.bool)
        all_visible = (complete[:, None] & complete)[None]
        if self.sight == "past":
            any_visible, all_visible = any_visible & (block_distance >= 0), all_visible & (block_distance > 0)
        if self.window is not None:
            nearest, farthest = (block_distance.abs() - 1) * BLOCK + 1, (block_distance.abs() + 1) * BLOCK - 1
            any_visible, all_visible = any_visible & (nearest < self.window), all_visible & (farthest < self.window)
        if self.documents is not None:
            overlap, single = _document_grids(self.documents)
            any_visible, all_visible = any_visible & overlap, all_visible & single
        if self.lengths is not None:
            limit = self.lengths[:, None, None]
            any_visible, all_visible = any_visible & (at * BLOCK < limit), all_visible & ((at + 1) * BLOCK <= limit)
        return any_visible, all_visible

    def block_mask(self, length: int, device: torch.device) -> BlockMask:
        """Return the mask of rows of this length in FlexAttention's own form."""
        any_visible, all_visible = self.block_grids(length, device)
        part = any_visible & ~all_visible
        counts, orders = torch.ops.heddle.block_lists(torch.stack((part, all_visible, part.mT, all_visible.mT)))
        return BlockMask(
            seq_lengths=(length, length),
            kv_num_blocks=counts[0],
            kv_indices=orders[0],
            full_kv_num_blocks=counts[1],
            full_kv_indices=orders[1],
            q_num_blocks=counts[2],
            q_indices=orders[2],
            full_q_num_blocks=counts[3],
            full_q_indices=orders[3],
            BLOCK_SIZE=(BLOCK, BLOCK),
            mask_mod=self.mask_mod(),
        )


def _document_grids(documents: Int[Tensor, "batch length"]) -> tuple[BlockGrid, BlockGrid]:
    """Return which blocks may share a document, by the lowest and highest number in each, and which hold only one."""
    padding = -documents.shape[1] % BLOCK
    numbers = F.pad(documents[:, None].float(), (0, padding), mode="replicate")[:, 0].unflatten(1, (-1, BLOCK))
    low, high = numbers.amin(-1), numbers.amax(-1)
    overlap = (low[:, :, None] <= high[:, None]) & (low[:, None] <= high[:, :, None])
    return overlap, (low[:, :, None] == high[:, None]) & (low[:, None] == high[:, :, None])


# The kernel finds a row's block list by the stride of the heads axis, whose size is 1. A compiler may choose any stride
# for it, and then all rows read the list of the first. It does not change the strides of what an operator returns.
OPERATORS = torch.library.Library("heddle", "FRAGMENT")
OPERATORS.define("block_lists(Tensor grids) -> (Tensor, Tensor)")


def _block_lists(grids: Bool[Tensor, "grids batch blocks blocks"]) -> tuple[Tensor, Tensor]:
    """Return how many blocks of each row of blocks are set, and the numbers of all, those set first."""
    count = grids.shape[-1]
    numbers = torch.arange(count, device=grids.device, dtype=torch.int32)
    order = torch.where(grids, numbers, numbers + count).sort(dim=-1).values.remainder(count)
    return grids.sum(-1, dtype=torch.int32)[:, :, None].contiguous(), order.to(torch.int32)[:, :, None].contiguous()


def _block_lists_shapes(grids: Tensor) -> tuple[Tensor, Tensor]:
    count, batch, blocks, _ = grids.shape
    shape = (count, batch, 1, blocks)
    return grids.new_empty(shape, dtype=torch.int32), grids.new_empty((*shape, blocks), dtype=torch.int32)


OPERATORS.impl("block_lists", _block_lists, "CompositeExplicitAutograd")
torch.library.register_fake("heddle::block_lists", _block_lists_shapes, lib=OPERATORS)


def flex_attend(
    query: Tensor, key: Tensor, value: Tensor, flex_mask: FlexMask, scale: float, softcap: float | None = None
) -> Float[Tensor, "batch heads length width"]:
    """Return softmax(query · key * scale) · value over the visible keys; query heads may share key heads."""

    def cap(score: Tensor, *_position: Tensor) -> Tensor:
        return apply_softcap(score, softcap)

    output: Tensor = flex_attention(
        query,
        key,
        value,
        score_mod=None if softcap is None else cap,
        block_mask=flex_mask.block_mask(query.shape[2], query.device),
        scale=scale,
        enable_gqa=key.shape[1] < query.shape[1],
    )
    return output
