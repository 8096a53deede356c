"""Grid positions of pictures and video: a vector for each row, column and frame (Dosovitskiy 2021; Arnab 2021)."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.core import Config, Positive, UsageError, part
from heddle.nn.base import Module, Role
from heddle.nn.positions import angles, frequencies

Grid = Float[Tensor, "batch frames rows columns width"]


class GridPositionConfig(Config, ABC):
    """How the places of patches reach the model: added to the embedded patches, axis by axis."""

    @abstractmethod
    def build(self, width: int, moving: bool) -> "GridPosition":
        """Build the module; `moving` tells whether there are frames, as in video."""


class GridPosition(Module, ABC):
    """A module from a grid of vectors to one that tells their places."""

    @abstractmethod
    def forward(self, x: Grid) -> Grid:
        """Return the grid with its places added."""


@part("none")
class NoGridPositionConfig(GridPositionConfig):
    """No positions by row and column: those of the tower number the patches, row by row, as in ViT."""

    def build(self, width: int, moving: bool) -> GridPosition:
        return NoGridPosition()


class NoGridPosition(GridPosition):
    """x."""

    def forward(self, x: Grid) -> Grid:
        return x


@part("learned")
class LearnedGridConfig(GridPositionConfig):
    """Learned positions: a vector for each row, each column and, in video, each frame, added up.

    side: most patches down or across.
    frames: most frames, or tubelets one after the other.
    """

    side: Positive = 32
    frames: Positive = 128

    def build(self, width: int, moving: bool) -> GridPosition:
        return LearnedGrid(width, self, moving)


class LearnedGrid(GridPosition):
    """x + rows[row] + columns[column] + frames[frame]."""

    def __init__(self, width: int, config: LearnedGridConfig, moving: bool) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(config.side, width))
        self.columns = nn.Parameter(torch.empty(config.side, width))
        self.frames = nn.Parameter(torch.empty(config.frames, width)) if moving else None
        self.roles = dict.fromkeys(("rows", "columns", *(("frames",) if moving else ())), Role.EMBEDDING)

    def forward(self, x: Grid) -> Grid:
        frames, rows, columns = x.shape[1:4]
        check_grid("rows", rows, self.rows)
        check_grid("columns", columns, self.columns)
        found = x + self.rows[:rows, None].to(x.dtype) + self.columns[:columns].to(x.dtype)
        if self.frames is None:
            return found
        check_grid("frames", frames, self.frames)
        return found + self.frames[:frames, None, None].to(x.dtype)


def check_grid(axis: str, count: int, table: Tensor) -> None:
    """Refuse a grid that is larger than its learned positions."""
    if count > len(table):
        raise UsageError(f"source: want at most {len(table)} {axis} of patches, the learned positions, got {count}")


@part("sinusoidal")
class SinusoidalGridConfig(GridPositionConfig):
    """Sinusoidal positions: each axis has its share of the width (Vaswani et al. 2017, on two or three axes).

    base: the wavelengths grow up to 2π times it.
    """

    base: float = 10_000.0

    def build(self, width: int, moving: bool) -> GridPosition:
        return SinusoidalGrid(width, self.base, moving)


class SinusoidalGrid(GridPosition):
    """x + [waves of the frame, of the row, of the column]."""

    def __init__(self, width: int, base: float, moving: bool) -> None:
        super().__init__()
        self.width, self.base, self.moving = width, base, moving

    def forward(self, x: Grid) -> Grid:
        axes = (1, 2, 3) if self.moving else (2, 3)
        share = self.width // (2 * len(axes)) * 2
        for number, axis in enumerate(axes):
            phases = angles(x.shape[axis], frequencies(share, self.base, x.device))
            waves = torch.cat((phases.sin(), phases.cos()), 1).to(x.dtype)
            shape = [1] * 5
            shape[axis], shape[4] = waves.shape
            pads = (number * share, self.width - (number + 1) * share)
            x = x + nn.functional.pad(waves, pads).view(*shape[:4], self.width)
        return x
