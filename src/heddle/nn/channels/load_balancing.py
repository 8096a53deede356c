"""Load balancing of experts: an auxiliary loss (Fedus et al. 2021) or a bias on the router (Wang et al. 2024)."""

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
    """Router statistics: the probabilities and choices of some tokens."""

    probabilities: Float[Tensor, "tokens experts"]
    experts: Int[Tensor, "tokens choices"]
    real: Bool[Tensor, " tokens"]
    groups: int

    def loads(self, choices: int | None = None) -> Float[Tensor, "tokens experts"]:
        """Return which experts each token chose, by its first choices or all; padding chooses none."""
        one_hot = F.one_hot(self.experts[:, :choices], self.probabilities.shape[1] + 1)[..., :-1].sum(1)
        return one_hot.to(self.probabilities.dtype) * self.real[:, None]

    def by_group(self, tokens: Float[Tensor, "tokens n"]) -> Float[Tensor, "groups size n"]:
        """Return values of tokens by group, the last group padded with zeros."""
        size = -(-len(tokens) // self.groups)
        padded = F.pad(tokens, (0, 0, 0, self.groups * size - len(tokens)))
        return padded.view(self.groups, size, -1)


class LoadBalancingConfig(Config, ABC):
    """Load balancing: what keeps the router from sending all tokens to few experts."""

    depends_on_batch: ClassVar[bool] = False  # whether the loss of a batch differs from the mean over its micro-batches

    @abstractmethod
    def build(self, experts: int) -> "LoadBalancing":
        """Build the module for a number of experts."""


class LoadBalancing(Module, ABC):
    """A bias on the selection of experts, or an auxiliary loss; both learn from the router's statistics."""

    def selection_bias(self) -> Float[Tensor, " experts"] | None:
        """Return what is added to each expert's score for the selection."""
        return None

    @abstractmethod
    def forward(self, statistics: RouterStatistics) -> Float[Tensor, ""] | None:
        """Return the auxiliary loss in nats per token."""


@part("none")
class NoLoadBalancingConfig(LoadBalancingConfig):
    """No load balancing."""

    def build(self, experts: int) -> LoadBalancing:
        return NoLoadBalancing()


class NoLoadBalancing(LoadBalancing):
    """No loss."""

    def forward(self, statistics: RouterStatistics) -> Float[Tensor, ""] | None:
        return None


@part("load_loss")
class LoadBalancingLossConfig(LoadBalancingConfig):
    """Load-balancing loss of the Switch Transformer, over groups of the micro-batch (Fedus et al. 2021).

    It is a product of two means, so the loss of a batch differs a little from the mean over its micro-batches.

    weight: factor of this loss beside the model's own.
    counted: choices that count as load; Narang et al. (2021): the first.
    """

    depends_on_batch = True

    weight: float = 0.01
    counted: Literal["all", "first"] = "all"

    def build(self, experts: int) -> LoadBalancing:
        return LoadBalancingLoss(experts, self)


class LoadBalancingLoss(LoadBalancing):
    """weight * experts * sum over experts of load * mean probability."""

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


ROUTER_BIAS_RATE = 1000.0  # of SGD, so that the gradients of biases are small in gradient clipping


@part("bias")
class BiasLoadBalancingConfig(LoadBalancingConfig):
    """Auxiliary-loss-free load balancing by a bias on the scores for the selection (Wang et al. 2024; DeepSeek-V3).

    The bias is a parameter whose gradient is its expert's load minus the mean, so that saving, micro-batches, several
    processes and skipped steps need no code of their own; the value of the loss does not change. SGD moves it in
    proportion to the excess load: far when all tokens go to a few experts, hardly when loads are even. (The papers move
    it by a fixed amount, which is too slow in the first case and oscillates in the second.)

    gain: step of the bias for an excess of one mean load.
    """

    gain: float = 0.01

    def build(self, experts: int) -> LoadBalancing:
        return BiasLoadBalancing(experts, self)


class BiasLoadBalancing(LoadBalancing):
    """0, with a gradient by which SGD at `ROUTER_BIAS_RATE` lowers each bias by gain * (load / mean load - 1)."""

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
