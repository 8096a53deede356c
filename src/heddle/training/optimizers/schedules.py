"""Schedules: how the learning rate moves; each gives a factor of the optimizer's own rate for a step of so many."""

import math
from abc import ABC, abstractmethod

from heddle.core import Config, ConfigError, part


class ScheduleConfig(Config, ABC):
    """A factor between 0 and 1 for every step."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor for a step (0 is the first) of a run of `steps`."""


def _ramp(step: int, warmup: int) -> float:
    """Rise linearly to 1; never 0, so that the first step moves."""
    return min(1.0, (step + 1) / (warmup + 1))


def _check(warmup: int, floor: float = 0.0) -> None:
    if warmup < 0:
        raise ConfigError("warmup", want="0 or more steps", got=warmup)
    if not 0 <= floor <= 1:
        raise ConfigError("floor", want="0 to 1, of the peak rate", got=floor)


@part("cosine")
class CosineConfig(ScheduleConfig):
    """Rise, then fall along half a cosine to a floor (Loshchilov & Hutter 2017)."""

    warmup: int = 100
    floor: float = 0.1

    def __post_init__(self) -> None:
        _check(self.warmup, self.floor)

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return _ramp(step, self.warmup)
        done = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@part("stable_decay")
class StableDecayConfig(ScheduleConfig):
    """Rise, stay, then fall linearly over the last part (Hu et al. 2024)."""

    warmup: int = 100
    decay: float = 0.3  # of all steps
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.warmup, self.floor)
        if not 0 <= self.decay <= 1:
            raise ConfigError("decay", want="0 to 1, of all steps", got=self.decay)

    def factor(self, step: int, steps: int) -> float:
        falling = max(1.0, self.decay * steps)
        down = min(1.0, (steps - step) / falling)
        return _ramp(step, self.warmup) * (self.floor + (1 - self.floor) * max(0.0, down))


@part("inverse_square_root")
class InverseSquareRootConfig(ScheduleConfig):
    """Rise, then fall with the root of the step (Vaswani et al. 2017)."""

    warmup: int = 4000

    def __post_init__(self) -> None:
        _check(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        return min((step + 1) / (self.warmup + 1), math.sqrt((self.warmup + 1) / (step + 1)))


@part("constant")
class ConstantConfig(ScheduleConfig):
    """Rise and stay."""

    warmup: int = 0

    def __post_init__(self) -> None:
        _check(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        return _ramp(step, self.warmup)
