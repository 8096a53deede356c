"""Mixture of experts (MoE): each token uses few of many feed-forwards (Shazeer 2017; Fedus 2021; Gale 2022)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import Adapter, ChannelConfig, Context, HasAuxiliaryLoss, Module, Place, Role
from heddle.nn.channels.capacity import CapacityConfig, DroplessConfig
from heddle.nn.channels.feedforward import FeedForwardConfig, FeedForwardFamily, GatedFeedForwardConfig, hidden_width
from heddle.nn.channels.grouped_gemm import Groups, TokenRows, grouped_gemm, permute, sort_by_group
from heddle.nn.channels.load_balancing import (
    BiasLoadBalancingConfig,
    LoadBalancingConfig,
    NoLoadBalancingConfig,
    RouterStatistics,
)
from heddle.nn.channels.routing import ExpertChoiceConfig, RouterConfig, Routing, TokenChoiceConfig
from heddle.nn.layers import activation


@part("experts")
class ExpertsConfig(ChannelConfig):
    """Mixture of experts: a router sends each token to a few of many experts, whose outputs are summed by its gates.

    Tokens are dropped where the capacity is limited: in training, and by `per_document` when evaluating an encoder.

    experts: how many experts.
    expert: what each expert is: feed_forward or gated_feed_forward.
    router: how tokens are sent to experts.
    capacity: how many tokens an expert may take.
    balance: how the load of the experts is kept even.
    shared: a shared expert that every token uses (Dai et al. 2024); None: there is none.
    z_loss: weight of the router z-loss (Zoph et al. 2022).
    """

    experts: int = 8
    expert: FeedForwardFamily = GatedFeedForwardConfig()
    router: RouterConfig = TokenChoiceConfig()
    capacity: CapacityConfig = DroplessConfig()
    balance: LoadBalancingConfig = BiasLoadBalancingConfig()
    shared: FeedForwardFamily | None = None
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(1, experts=self.experts)
        check_at_least(0, z_loss=self.z_loss)
        if isinstance(self.router, ExpertChoiceConfig) and not isinstance(self.balance, NoLoadBalancingConfig):
            raise ConfigError("balance", want="none, because expert choice has equal loads", got=self.balance.kind)

    def build(self, width: int, place: Place) -> "Experts":
        return Experts(width, self, place)


class Experts(HasAuxiliaryLoss):
    """sum over a token's experts of gate * expert(x), plus shared(x)."""

    def __init__(self, width: int, config: ExpertsConfig, place: Place) -> None:
        super().__init__()
        self.experts, self.capacity, self.z_loss, self.width = config.experts, config.capacity, config.z_loss, width
        self.router = config.router.build(width, config.experts, place.child("router"))
        self.balance = config.balance.build(config.experts)
        self.limited_in_eval = config.capacity.in_eval and place.sight == "all"
        self.bank = build_bank(config.expert, width, config.experts, self.router.choices / config.experts)
        self.shared = None if config.shared is None else config.shared.build(width, place.child("shared"))

    def forward(self, x: Stream, ctx: Context) -> Stream:
        routing = self.router(x, ctx, self.balance.selection_bias())
        real = ctx.used_tokens(x)
        experts = routing.experts if real is None else routing.experts.where(real[..., None], self.experts)
        chosen = dispatched = experts.flatten(0, 1)
        if self.training or self.limited_in_eval:
            dispatched = self.capacity.drop_overflow(experts, self.experts, ctx.documents).flatten(0, 1)
        if self.training:
            self.record_statistics(routing, chosen, dispatched, real)
        y = self.run_experts(x.flatten(0, 1), dispatched, routing.gates.flatten(0, 1)).view_as(x)
        return y if self.shared is None else y + self.shared(x, ctx)

    def run_experts(
        self, x: TokenRows, dispatched: Int[Tensor, "rows choices"], gates: Float[Tensor, "rows choices"]
    ) -> Float[Tensor, "rows width"]:
        """Permute tokens into the order of their experts, run each expert on its own, and permute them back."""
        choices = dispatched.shape[1]
        groups, order, inverse = sort_by_group(dispatched.flatten(), self.experts)
        rows = groups.zero_ungrouped(permute(x, order // choices, inverse, choices))
        y = permute(groups.zero_ungrouped(self.bank(rows, groups)), inverse, order, 1)
        return (y.unflatten(0, (-1, choices)) * gates[..., None].to(y.dtype)).sum(1)  # type: ignore[no-any-return]

    def record_statistics(self, routing: Routing, chosen: Tensor, dispatched: Tensor, real: Tensor | None) -> None:
        """Record the losses of load balancing and z-loss, and metrics of the loads."""
        probabilities, logits = routing.probabilities.flatten(0, 1), routing.logits.flatten(0, 1)
        real = torch.ones_like(chosen[:, 0], dtype=torch.bool) if real is None else real.flatten()
        statistics = RouterStatistics(probabilities, chosen, real, self.capacity.groups(len(chosen)))
        tokens, weights = real.sum().clamp(min=1), real.to(probabilities.dtype)
        penalty = self.balance(statistics)
        if self.z_loss:
            z = self.z_loss * (logits.logsumexp(-1).square() * weights).sum() / tokens
            penalty = z if penalty is None else penalty + z
        with torch.no_grad():
            load, kept = statistics.loads().sum(0), dispatched < self.experts
            entropy = torch.special.entr(probabilities).sum(-1)
            self.record(
                penalty,
                expert_load_imbalance=load.max() / load.mean().clamp(min=1 / self.experts),
                expert_dropped=1 - kept.sum() / (chosen < self.experts).sum().clamp(min=1),
                tokens_without_expert=1 - kept.any(-1).sum() / tokens,
                expert_entropy=(entropy * weights).sum() / tokens,
            )

    def narang_lookup_ops(self, tokens: int) -> int:
        """Count dispatch, experts and combination as dense products over the whole capacity.

        The grouped products that run here are not plain matrix products, which the counter would see.
        """
        groups = self.capacity.groups(tokens)
        size = -(-tokens // groups)
        expert_capacity = self.capacity.expert_capacity(size, self.experts)
        if expert_capacity >= size:  # dropless: no dense dispatch
            return round(tokens * self.router.choices * self.bank.weights_per_expert)
        moving = 2 * groups * size * self.experts * expert_capacity * self.width
        return moving + self.experts * groups * expert_capacity * self.bank.weights_per_expert


# --- the experts of a layer as one module -----------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedLinearOptions:
    """What the matrices of a bank of experts have in common."""

    bias: bool
    active_share: float  # share of the experts that one token uses
    role: Role = Role.INSIDE


class GroupedLinear(Module):
    """Grouped linear layer: a matrix for each expert, applied to that expert's rows (grouped GEMM)."""

    def __init__(self, experts: int, inputs: int, outputs: int, options: GroupedLinearOptions) -> None:
        super().__init__()
        self.active_share = options.active_share
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if options.bias else None
        self.roles = {"weight": options.role, "bias": Role.BIAS}
        self.adapter: Adapter | None = None

    def forward(self, rows: Float[Tensor, "rows inputs"], groups: Groups) -> Float[Tensor, "rows outputs"]:
        y = grouped_gemm(rows, self.weight.to(rows.dtype), groups.offsets)
        y = y if self.adapter is None else y + self.adapter(rows, groups)
        if self.bias is None:
            return y
        own = F.one_hot(groups.group_ids, len(self.bias) + 1)[:, :-1].to(y.dtype)
        return y + groups.zero_ungrouped(own @ self.bias.to(y.dtype))  # a product, so that its gradient is one

    def active_fraction(self) -> float:
        return self.active_share

    def extra_repr(self) -> str:
        experts, outputs, inputs = self.weight.shape
        return f"{experts} x {inputs} -> {outputs}"


class ExpertBank(Module, ABC):
    """All experts of a layer as one module `(rows, groups) -> rows`."""

    weights_per_expert: int  # in one expert's matrices

    @abstractmethod
    def forward(self, rows: TokenRows, groups: Groups) -> TokenRows:
        """Run each expert on its rows."""


def build_bank(expert: FeedForwardFamily, width: int, experts: int, active_share: float) -> ExpertBank:
    """Build the experts, of which a token uses a share."""
    if isinstance(expert, GatedFeedForwardConfig):
        return GatedFeedForwardBank(width, expert, experts, active_share)
    if isinstance(expert, FeedForwardConfig):
        return FeedForwardBank(width, expert, experts, active_share)
    raise ConfigError("expert", want="feed_forward or gated_feed_forward", got=expert.kind)


class FeedForwardBank(ExpertBank):
    """down(activation(up(x))), expert by expert."""

    def __init__(self, width: int, config: FeedForwardConfig, experts: int, active_share: float) -> None:
        super().__init__()
        hidden, options = hidden_width(config, width), GroupedLinearOptions(config.bias, active_share)
        self.weights_per_expert = 2 * width * hidden
        self.activation = activation(config.activation)
        self.up = GroupedLinear(experts, width, hidden, options)
        self.down = GroupedLinear(experts, hidden, width, replace(options, role=Role.INTO_STREAM))

    def forward(self, rows: TokenRows, groups: Groups) -> TokenRows:
        return self.down(self.activation(self.up(rows, groups)), groups)  # type: ignore[no-any-return]


class GatedFeedForwardBank(ExpertBank):
    """down(activation(gate(x)) * up(x)), expert by expert."""

    def __init__(self, width: int, config: GatedFeedForwardConfig, experts: int, active_share: float) -> None:
        super().__init__()
        hidden, options = hidden_width(config, width), GroupedLinearOptions(config.bias, active_share)
        self.weights_per_expert = 3 * width * hidden
        self.activation = activation(config.activation)
        self.gate = GroupedLinear(experts, width, hidden, options)
        self.up = GroupedLinear(experts, width, hidden, options)
        self.down = GroupedLinear(experts, hidden, width, replace(options, role=Role.INTO_STREAM))

    def forward(self, rows: TokenRows, groups: Groups) -> TokenRows:
        return self.down(self.activation(self.gate(rows, groups)) * self.up(rows, groups), groups)  # type: ignore[no-any-return]
