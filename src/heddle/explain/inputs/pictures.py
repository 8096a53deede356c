"""Pictures that a model reads: the grid of patches that it attends to, and the pixels behind it, to draw them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.nn.sources import GridEmbedding


@dataclass(frozen=True)
class SourcePicture:
    """An image, or the frames of a video, and which vector of the source belongs to which patch of it.

    grid: how many tubelets, rows and columns of patches there are; their vectors follow the first ones.
    first: how many vectors come before those of the patches.
    pixels: of eight bits, [frames, rows, columns, channels].
    """

    grid: tuple[int, int, int]
    first: int
    pixels: Tensor

    def plain(self) -> dict[str, Any]:
        """Return all but the pixels as plain data."""
        return {"grid": list(self.grid), "first": self.first, "size": list(self.pixels.shape)}


def source_picture(embedding: object, source: Tensor) -> SourcePicture | None:
    """Return the picture that an embedding cuts into patches; None: the source is none."""
    if not isinstance(embedding, GridEmbedding):
        return None
    frames = embedding.as_frames(source[None])[0].float()
    low, high = frames.min(), frames.max()
    scaled = (frames - low) / (high - low).clamp(min=1e-6) * 255
    pixels = scaled.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()
    return SourcePicture(embedding.grid_size(source[None]), 1, pixels)
