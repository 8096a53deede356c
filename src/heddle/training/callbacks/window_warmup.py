"""Widen: let attention look further back as training goes on, and as far as it can in the end."""

import torch

from heddle.nn.attention import set_warmup_window
from heddle.training.loop import Callback, Report, Trainer, WindowWarmupConfig


class WindowWarmup(Callback):
    """Before each step set the horizon that it should have; it follows from the step, so a resumed run has it too."""

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
        """Set a horizon, or none; always by the same tensor, which a compiled step knows."""
        if size is not None:
            self.size.fill_(size)
        set_warmup_window(trainer.model, None if size is None else self.size)
        self.now = size
