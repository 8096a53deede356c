"""Balance: what keeps a router from sending all tokens to few experts (Fedus et al. 2021; Wang et al. 2024)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, part
from heddle.nn.base import Module, Role


@dataclass(frozen=True)
class RouterStatistics:
    """What there is to balance: where the real ones among some tokens wanted to go."""

    probabilities: Float[Tensor, "tokens experts"]
    experts: Int[Tensor, "tokens choices"]
    real: Bool[Tensor, " tokens"]
    groups: int

    def loads(self, choices: int | None = None) -> Float[Tensor, "tokens experts"]:
        """Tell of each token which experts it wanted, by its first so many choices or all; padding wants none."""
        wanted = F.one_hot(self.experts[:, :choices], self.probabilities.shape[1] + 1)[..., :-1].sum(1)
        return wanted.to(self.probabilities.dtype) * self.real[:, None]

    def by_group(self, tokens: Float[Tensor, "tokens n"]) -> Float[Tensor, "groups size n"]:
        """Return something told of each token by group, the last filled with zeros."""
        size = -(-len(tokens) // self.groups)
        padded = F.pad(tokens, (0, 0, 0, self.groups * size - len(tokens)))
        return padded.view(self.groups, size, -1)


class LoadBalancingConfig(Config, ABC):
    """What keeps the router from sending all tokens to few experts."""

    depends_on_batch: ClassVar[bool] = False  # whether the pieces of a batch pull otherwise than the whole

    @abstractmethod
    def build(self, experts: int) -> "LoadBalancing":
        """Build the module for so many experts."""


class LoadBalancing(Module, ABC):
    """Favours some experts, or makes the router pay; both learn from what was seen."""

    def selection_bias(self) -> Float[Tensor, " experts"] | None:
        """Return what is added to each expert's score for the choice."""
        return None

    @abstractmethod
    def forward(self, statistics: RouterStatistics) -> Float[Tensor, ""] | None:
        """Return what is added to the loss, in nats per token."""


@part("none")
class NoLoadBalancingConfig(LoadBalancingConfig):
    """Leave it to chance."""

    def build(self, experts: int) -> LoadBalancing:
        return NoLoadBalancing()


class NoLoadBalancing(LoadBalancing):
    """Nothing."""

    def forward(self, statistics: RouterStatistics) -> Float[Tensor, ""] | None:
        return None


@part("load_loss")
class LoadBalancingLossConfig(LoadBalancingConfig):
    """Make the router pay for odds given to crowded experts, group by group of the micro-batch (Switch).

    The product of two means is no mean: the pieces of a batch pull a little otherwise than the whole.
    """

    depends_on_batch = True

    weight: float = 0.01
    counted: Literal["all", "first"] = "all"  # choices that make up the load; Narang et al. (2021): the first

    def build(self, experts: int) -> LoadBalancing:
        return LoadBalancingLoss(experts, self)


class LoadBalancingLoss(LoadBalancing):
    """weight * experts * sum over experts of load * mean odds."""

    def __init__(self, experts: int, config: LoadBalancingLossConfig) -> None:
        super().__init__()
        self.factor = config.weight * experts
        self.choices = 1 if config.counted == "first" else None

    def forward(self, statistics: RouterStatistics) -> Float[Tensor, ""] | None:
        real = statistics.by_group(statistics.real.to(statistics.probabilities.dtype)[:, None])
        tokens = real.sum(1)  # of each group
        shares = tokens.clamp(min=1)
        load = statistics.by_group(statistics.loads(self.choices)).sum(1) / shares
        probabilities = (statistics.by_group(statistics.probabilities) * real).sum(1) / shares
        paid = (load * probabilities).sum(-1, keepdim=True) * tokens / tokens.sum().clamp(min=1)
        return self.factor * paid.sum()


ROUTER_BIAS_RATE = 1000.0  # of descent, so that the gradients of favours are small beside those that clipping looks at


@part("bias")
class BiasLoadBalancingConfig(LoadBalancingConfig):
    """Favour experts with little work by a number added to their scores for the choice (Wang et al. 2024; DeepSeek-V3).

    The number is a parameter whose gradient is its expert's load beyond the mean, so that saving, micro-batches,
    several processes and skipped steps need nothing of their own; the loss itself does not change. It moves by plain
    descent, in proportion to what its expert has too much: far when all tokens crowd to a few, hardly when loads are
    even. (The papers move it by a fixed amount, which is too slow for the one or swings about the other.)
    """

    gain: float = 0.01  # how far it moves in a step for each mean load beyond the mean

    def build(self, experts: int) -> LoadBalancing:
        return BiasLoadBalancing(experts, self)


class BiasLoadBalancing(LoadBalancing):
    """0, with a gradient that makes descent at `FAVOUR_RATE` move each favour by gain * (load / mean load - 1)."""

    roles = {"bias": Role.ROUTER_BIAS}

    def __init__(self, experts: int, config: BiasLoadBalancingConfig) -> None:
        super().__init__()
        self.gain = config.gain
        self.bias = nn.Parameter(torch.empty(experts))

    def selection_bias(self) -> Float[Tensor, " experts"] | None:
        return self.bias.detach()

    def forward(self, statistics: RouterStatistics) -> Float[Tensor, ""] | None:
        loads = statistics.loads().sum(0)
        excess = loads / loads.mean().clamp(min=1e-9) - 1
        bias = self.bias.to(loads.dtype)
        return self.gain / ROUTER_BIAS_RATE * (excess.detach() * (bias - bias.detach())).sum()
