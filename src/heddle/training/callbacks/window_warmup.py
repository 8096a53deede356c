"""Window warm-up: attention looks further back as training goes on, so that early steps cost less on long rows."""

from abc import ABC, abstractmethod
from itertools import pairwise

import torch

from heddle.core import Config, ConfigError, part
from heddle.nn.attention import set_warmup_window
from heddle.training.loop import Callback, Report, Trainer


class WindowWarmupConfig(Config, ABC):
    """A window of positions for every step, for full attention."""

    @abstractmethod
    def at(self, step: int, steps: int) -> int | None:
        """Return the window of a step (0 is the first) of a run of `steps`; None: no window."""


@part("none")
class NoWindowWarmupConfig(WindowWarmupConfig):
    """Full attention from the first step."""

    def at(self, step: int, steps: int) -> int | None:
        return None


@part("growing")
class GrowingWindowConfig(WindowWarmupConfig):
    """A window that grows in stages to full attention.

    On a GPU windowed attention goes by blocks, so it pays only where rows are so long that skipping blocks gains more
    than the faster kernel for full attention.

    sizes: windows in positions, itself included; each for as many steps.
    share: share of all steps that the windows take together.
    """

    sizes: tuple[int, ...] = (256, 512)
    share: float = 0.5

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            raise ConfigError("sizes", want="at least 1, each larger than the one before", got=list(self.sizes))
        if not 0 < self.share <= 1:
            raise ConfigError("share", want="above 0 and at most 1, of all steps", got=self.share)

    def at(self, step: int, steps: int) -> int | None:
        stage = int(step * len(self.sizes) / (self.share * steps))
        return self.sizes[stage] if stage < len(self.sizes) else None


class WindowWarmup(Callback):
    """Sets the window before each step; it follows from the step, so a resumed run has it too."""

    def __init__(self, config: WindowWarmupConfig, device: torch.device) -> None:
        self.config, self.size = config, torch.zeros((), dtype=torch.long, device=device)
        self.now: int | None = None

    def before_fit(self, trainer: Trainer) -> None:
        self.set(trainer, self.config.at(trainer.step, trainer.steps))

    def after_step(self, trainer: Trainer, report: Report) -> None:
        wanted = self.config.at(trainer.step, trainer.steps)
        if wanted != self.now:
            self.set(trainer, wanted)

    def after_fit(self, trainer: Trainer) -> None:
        self.set(trainer, None)

    def set(self, trainer: Trainer, size: int | None) -> None:
        """Set a window, or none; always by the same tensor, so that a compiled step stays valid."""
        if size is not None:
            self.size.fill_(size)
        set_warmup_window(trainer.model, None if size is None else self.size)
        self.now = size
