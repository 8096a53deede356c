"""Horizons: how far back attention looks at each step of training, so that early steps cost less on long rows."""

from abc import ABC, abstractmethod
from itertools import pairwise

from heddle.core import Config, ConfigError, part


class WindowWarmupConfig(Config, ABC):
    """A number of places for every step, for attention that otherwise sees all."""

    @abstractmethod
    def at(self, step: int, steps: int) -> int | None:
        """Return it for a step (0 is the first) of a run of `steps`; None: no horizon."""


@part("whole")
class NoWindowWarmupConfig(WindowWarmupConfig):
    """Let attention look as far as its mask lets it, always."""

    def at(self, step: int, steps: int) -> int | None:
        return None


@part("growing")
class GrowingWindowConfig(WindowWarmupConfig):
    """Let attention look further and further, and from some step on as far as its mask lets it.

    On a GPU it goes by blocks until then, so it pays only where rows are so long that skipping blocks gains more than
    the quicker kernel for whole rows.
    """

    sizes: tuple[int, ...] = (256, 512)  # places, itself included; each for as many steps
    share: float = 0.5  # of all steps, that they take together

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            raise ConfigError("sizes", want="at least 1, each larger than the one before", got=list(self.sizes))
        if not 0 < self.share <= 1:
            raise ConfigError("share", want="above 0 and at most 1, of all steps", got=self.share)

    def at(self, step: int, steps: int) -> int | None:
        stage = int(step * len(self.sizes) / (self.share * steps))
        return self.sizes[stage] if stage < len(self.sizes) else None
