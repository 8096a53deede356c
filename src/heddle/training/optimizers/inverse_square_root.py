"""Schedules of the inverse square root: learning rates of Vaswani et al. (2017) and of T5 (Raffel et al. 2020)."""

import math

from heddle.core import Positive, part
from heddle.training.optimizers.optimizers import ScheduleConfig, Warmup


@part("inverse_square_root")
class InverseSquareRootConfig(ScheduleConfig):
    """Warm-up, then decay with the inverse square root of the step (Vaswani et al. 2017).

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    """

    warmup: Warmup = 4000

    def factor(self, step: int, steps: int) -> float:
        return min((step + 1) / (self.warmup + 1), math.sqrt((self.warmup + 1) / (step + 1)))


@part("rsqrt")
class RsqrtConfig(ScheduleConfig):
    """Constant, then decay with the inverse square root of the step, without warm-up (T5, Raffel et al. 2020).

    With a peak of 0.01 and 10,000 constant steps the rate is 1 / sqrt(max(step, 10,000)), as T5 has it.

    constant: steps at the peak rate, before the decay.
    """

    constant: Positive = 10_000

    def factor(self, step: int, steps: int) -> float:
        return math.sqrt(self.constant / max(step + 1, self.constant))
