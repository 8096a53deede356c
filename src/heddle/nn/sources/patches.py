"""Patches of an image (ViT, Dosovitskiy et al. 2021) and tubelets of a video (ViViT, Arnab et al. 2021) as tokens."""

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Positive, UsageError, part
from heddle.core.shapes import Ids, Stream
from heddle.nn.base import Context, Linear, Place, Role
from heddle.nn.ends import Embedding, EmbeddingConfig
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig
from heddle.nn.sources.grid import GridPositionConfig, NoGridPositionConfig
from heddle.nn.sources.stem import NoStemConfig, StemConfig

Frames = Float[Tensor, "batch frames channels rows columns"]
GridSize = tuple[int, int, int]  # frames, rows and columns of patches


@part("patches")
class PatchEmbeddingConfig(EmbeddingConfig):
    """Patch embedding: project each patch of an image, and prepend a learned class token.

    size: side of a patch, in pixels, or in what the stem makes of them.
    channels: numbers of each pixel.
    stem: what reads the pixels before they are cut into patches.
    grid: positions by row and column, beside those of the tower.
    dropout: dropout of the embedded patches.
    """

    reads = "images"

    size: Positive = 16
    channels: Positive = 3
    stem: StemConfig = NoStemConfig()
    grid: GridPositionConfig = NoGridPositionConfig()
    dropout: DropoutConfig = ElementDropoutConfig()

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return PatchEmbedding(width, self)


@part("tubelets")
class TubeletEmbeddingConfig(EmbeddingConfig):
    """Tubelet embedding: project each patch of some frames of a video, and prepend a learned class token.

    A last tubelet that the frames do not fill is filled with zeros.

    frames: how many frames, one after the other, make a tubelet.
    size: side of its patches, in pixels, or in what the stem makes of them.
    channels: numbers of each pixel.
    stem: what reads the pixels before they are cut into tubelets.
    grid: positions by frame, row and column, beside those of the tower.
    dropout: dropout of the embedded tubelets.
    """

    reads = "video"

    frames: Positive = 2
    size: Positive = 16
    channels: Positive = 3
    stem: StemConfig = NoStemConfig()
    grid: GridPositionConfig = NoGridPositionConfig()
    dropout: DropoutConfig = ElementDropoutConfig()

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return TubeletEmbedding(width, self)


class GridEmbedding(Embedding):
    """dropout([first, map · patch + bias + place, ...]), frame by frame, row by row."""

    roles = {"first": Role.EMBEDDING}

    def __init__(self, width: int, config: PatchEmbeddingConfig | TubeletEmbeddingConfig, frames: int | None) -> None:
        super().__init__()
        self.size, self.channels, self.frames = config.size, config.channels, frames or 1
        self.first = nn.Parameter(torch.empty(1, width))
        self.stem = config.stem.build(config.channels)
        self.map = Linear(self.frames * self.stem.channels * config.size**2, width, bias=True)
        self.grid = config.grid.build(width, frames is not None)
        self.dropout = config.dropout.build()

    @abstractmethod
    def as_frames(self, inputs: Tensor) -> Frames:
        """Return images or video as frames, or refuse them."""

    def forward(self, inputs: Tensor, ctx: Context) -> Stream:
        frames = self.as_frames(inputs)
        real = self.real_frames(frames, ctx.lengths)
        if real is not None:
            frames = frames * real[:, :, None, None, None]
        x = self.grid(self.map(self._cut(self.stem(frames, real)))).flatten(1, 3)
        return self.dropout(torch.cat((self.first.to(x.dtype).expand(len(x), 1, -1), x), dim=1))  # type: ignore[no-any-return]

    def _cut(self, frames: Frames) -> Float[Tensor, "batch tubelets down across numbers"]:
        """Return the numbers of each patch, those of all frames of a tubelet together."""
        size, missing = self.size, -frames.shape[1] % self.frames
        frames = F.pad(frames, (0, 0, 0, 0, 0, 0, 0, missing))
        cut = frames.unflatten(4, (-1, size)).unflatten(3, (-1, size)).unflatten(1, (-1, self.frames))
        return cut.permute(0, 1, 4, 6, 2, 3, 5, 7).flatten(4)  # type: ignore[no-any-return]

    def real_frames(self, frames: Frames, lengths: Int[Tensor, " batch"] | None) -> Bool[Tensor, "batch frames"] | None:
        """Return which frames are not padding; None: all."""
        return None if lengths is None else torch.arange(frames.shape[1], device=frames.device) < lengths[:, None]

    def grid_size(self, inputs: Tensor) -> GridSize:
        """Return the numbers of tubelets one after the other, and of patches down and across."""
        frames, side = self.as_frames(inputs), self.size * self.stem.shrinks
        return -(-frames.shape[1] // self.frames), frames.shape[3] // side, frames.shape[4] // side

    def length(self, inputs: Ids | Tensor) -> int:
        frames, rows, columns = self.grid_size(inputs)
        return 1 + frames * rows * columns

    def place_names(self, inputs: Tensor) -> tuple[str, ...]:
        frames, rows, columns = self.grid_size(inputs)
        places = [f"row {row} column {column}" for row in range(rows) for column in range(columns)]
        if frames == 1:
            return ("class", *places)
        return ("class", *(f"frame {self.frames * frame} {place}" for frame in range(frames) for place in places))

    def check_input(self, source: Tensor) -> None:
        self.as_frames(source[None])

    def check(self, inputs: Tensor, axes: int, form: str) -> None:
        """Refuse images or video that patches do not fill."""
        side = self.size * self.stem.shrinks
        good = inputs.dim() == axes and inputs.shape[-3] == self.channels and inputs.is_floating_point()
        if not good or any(not s or s % side for s in inputs.shape[-2:]):
            want = f"[batch, {form}{self.channels}, height, width] with sides that are multiples of {side}"
            raise UsageError(f"images: want {want}, got {list(inputs.shape)}")


class PatchEmbedding(GridEmbedding):
    """dropout([first, map · patch + bias, ...]), row by row."""

    def __init__(self, width: int, config: PatchEmbeddingConfig) -> None:
        super().__init__(width, config, None)

    def as_frames(self, inputs: Tensor) -> Frames:
        self.check(inputs, 4, "")
        return inputs[:, None]

    def real_frames(self, frames: Frames, lengths: Int[Tensor, " batch"] | None) -> Bool[Tensor, "batch frames"] | None:
        return None  # an image is never padding

    def real_lengths(self, inputs: Tensor, lengths: Tensor | None) -> Tensor | None:
        return None


class TubeletEmbedding(GridEmbedding):
    """dropout([first, map · tubelet + bias, ...]), frame by frame, row by row."""

    def __init__(self, width: int, config: TubeletEmbeddingConfig) -> None:
        super().__init__(width, config, config.frames)

    def as_frames(self, inputs: Tensor) -> Frames:
        self.check(inputs, 5, "frames, ")
        return inputs

    def real_lengths(self, inputs: Tensor, lengths: Tensor | None) -> Tensor | None:
        if lengths is None:
            return None
        _, rows, columns = self.grid_size(inputs)
        return 1 + -(-lengths // self.frames) * rows * columns
