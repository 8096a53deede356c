"""Threads: fewer while other processes use the cores, since all threads of a step wait for the slowest."""

import time
from collections.abc import Callable

import torch

from heddle.core.system import CoreWatch, threads_are_chosen, threads_for
from heddle.training.loop import Callback, Report, Reporter, Trainer

FIRST, LATER = 1.0, 5.0  # seconds between two looks, until the first change and afterwards


class AdaptThreads(Callback):
    """Follows the free cores: fewer threads at once, more again when two looks in a row find cores free.

    The watch begins with the set-up of a run, so that its first step has the right number already.
    """

    def __init__(self, watch: CoreWatch, reporter: Reporter, on_change: Callable[[int], None]) -> None:
        self.watch, self.reporter, self.on_change = watch, reporter, on_change
        self.most = torch.get_num_threads()
        self.calm = 0  # looks in a row that found room for more threads
        self.told = False

    @staticmethod
    def wanted(device: torch.device, threads: int | None, reduction: str) -> bool:
        """Tell whether the number is ours to choose: on a CPU, unless the user has chosen it or wants the same bits."""
        free = threads is None and not threads_are_chosen() and reduction != "deterministic"
        return free and device.type == "cpu" and torch.get_num_threads() > 1

    def before_fit(self, trainer: Trainer) -> None:
        self.next = time.monotonic() + FIRST
        self._look(trainer)

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + (LATER if self.told else FIRST)
            self._look(trainer)

    def after_fit(self, trainer: Trainer) -> None:
        torch.set_num_threads(self.most)

    def _look(self, trainer: Trainer) -> None:
        free, now = self.watch.free(), torch.get_num_threads()
        if free is None:
            return
        wanted = threads_for(free, self.most)
        self.calm = self.calm + 1 if wanted > now else 0
        if wanted < now or self.calm >= 2:
            torch.set_num_threads(wanted)
            self.on_change(wanted)
            self.calm = 0
            self._report(trainer, free, wanted)

    def _report(self, trainer: Trainer, free: float, threads: int) -> None:
        if self.told:
            return
        self.told = True
        plural = "" if threads == 1 else "s"
        self.reporter.message(
            f"other processes use {self.watch.cores - free:.1f} of {self.watch.cores} cores: {threads} thread{plural} "
            f"from step {trainer.step} on, more when cores are free; hardware.threads=N keeps a number",
            "warning",
        )
