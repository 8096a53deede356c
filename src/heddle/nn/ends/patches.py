"""Patch embedding of the Vision Transformer (ViT): an image as a row of patches (Dosovitskiy et al. 2021)."""

import torch
from torch import Tensor, nn

from heddle.core import ConfigError, Positive, UsageError, part
from heddle.core.shapes import Ids, Stream
from heddle.nn.base import Context, Linear, Place, Role
from heddle.nn.ends.embedding import Embedding, EmbeddingConfig, Images
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig


@part("patches")
class PatchEmbeddingConfig(EmbeddingConfig):
    """Patch embedding: project each patch of an image, and prepend a learned class token.

    size: side of a patch, in pixels.
    channels: numbers of each pixel.
    dropout: dropout of the embedded patches.
    """

    reads = "images"

    size: Positive = 16
    channels: Positive = 3
    dropout: DropoutConfig = ElementDropoutConfig()

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        if vocab is not None:
            raise ConfigError("vocab", want="none, because the inputs are images", got=vocab)
        return PatchEmbedding(width, self)


class PatchEmbedding(Embedding):
    """dropout([first, map · patch + bias, ...]), row by row."""

    roles = {"first": Role.EMBEDDING}

    def __init__(self, width: int, config: PatchEmbeddingConfig) -> None:
        super().__init__()
        self.size, self.channels = config.size, config.channels
        self.first = nn.Parameter(torch.empty(1, width))
        self.map = Linear(config.channels * config.size**2, width, bias=True)
        self.dropout = config.dropout.build()

    def forward(self, inputs: Images, ctx: Context) -> Stream:
        rows, columns = self._patch_grid(inputs)
        cut = inputs.unflatten(3, (columns, self.size)).unflatten(2, (rows, self.size))
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [batch, squares, channels * size * size]
        x = self.map(patches)
        return self.dropout(torch.cat((self.first.to(x.dtype).expand(len(x), 1, -1), x), dim=1))  # type: ignore[no-any-return]

    def length(self, inputs: Ids | Images) -> int:
        rows, columns = self._patch_grid(inputs)
        return 1 + rows * columns

    def check_input(self, source: Tensor) -> None:
        self._patch_grid(source[None])

    def _patch_grid(self, images: Ids | Images) -> tuple[int, int]:
        """Return the number of patches down and across; refuse an image that they do not fill."""
        if images.dim() != 4 or images.shape[1] != self.channels or any(s % self.size for s in images.shape[2:]):
            want = f"[batch, {self.channels}, height, width] with sides that are multiples of {self.size}"
            raise UsageError(f"images: want {want}, got {list(images.shape)}")
        return images.shape[2] // self.size, images.shape[3] // self.size
