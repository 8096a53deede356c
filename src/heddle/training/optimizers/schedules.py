"""Learning-rate schedules: warm-up, cosine decay, warm-up-stable-decay (WSD), inverse square root, constant."""

import math
from abc import ABC, abstractmethod
from typing import Annotated

from heddle.core import Config, Positive, part, within


class ScheduleConfig(Config, ABC):
    """A factor between 0 and 1 for every step."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor for a step (0 is the first) of a run of `steps`."""


def _ramp(step: int, warmup: int) -> float:
    """Learning-rate warm-up: rise linearly to 1; never 0, so that the first step changes something."""
    return min(1.0, (step + 1) / (warmup + 1))


Warmup = Annotated[int, within("0 or more steps", lambda warmup: warmup >= 0)]
Floor = Annotated[float, within("0 to 1, of the peak rate", lambda floor: 0 <= floor <= 1)]


@part("cosine")
class CosineConfig(ScheduleConfig):
    """Warm-up, then cosine decay to a floor (Loshchilov & Hutter 2017).

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    floor: the learning rate at the end, as a share of the peak.
    """

    warmup: Warmup = 100
    floor: Floor = 0.1

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return _ramp(step, self.warmup)
        done = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@part("stable_decay")
class StableDecayConfig(ScheduleConfig):
    """Warm-up, constant, then linear decay over the last part (WSD, Hu et al. 2024).

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    decay: share of all steps, at the end, in which the learning rate falls.
    floor: the learning rate at the end, as a share of the peak.
    """

    warmup: Warmup = 100
    decay: Annotated[float, within("0 to 1, of all steps", lambda decay: 0 <= decay <= 1)] = 0.3
    floor: Floor = 0.0

    def factor(self, step: int, steps: int) -> float:
        falling = max(1.0, self.decay * steps)
        down = min(1.0, (steps - step) / falling)
        return _ramp(step, self.warmup) * (self.floor + (1 - self.floor) * max(0.0, down))


@part("inverse_square_root")
class InverseSquareRootConfig(ScheduleConfig):
    """Warm-up, then decay with the inverse square root of the step (Vaswani et al. 2017).

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    """

    warmup: Warmup = 4000

    def factor(self, step: int, steps: int) -> float:
        return min((step + 1) / (self.warmup + 1), math.sqrt((self.warmup + 1) / (step + 1)))


@part("constant")
class ConstantConfig(ScheduleConfig):
    """Warm-up, then constant.

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    """

    warmup: Warmup = 0

    def factor(self, step: int, steps: int) -> float:
        return _ramp(step, self.warmup)


@part("rsqrt")
class RsqrtConfig(ScheduleConfig):
    """Constant, then decay with the inverse square root of the step, without warm-up (T5, Raffel et al. 2020).

    With a peak of 0.01 and 10,000 constant steps the rate is 1 / sqrt(max(step, 10,000)), as T5 has it.

    constant: steps at the peak rate, before the decay.
    """

    constant: Positive = 10_000

    def factor(self, step: int, steps: int) -> float:
        return math.sqrt(self.constant / max(step + 1, self.constant))
