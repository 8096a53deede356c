"""Routers of a mixture of experts: top-k, sigmoid and expert choice (Shazeer 2017; Zhou 2022; DeepSeek-AI 2024)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.core import Config, ConfigError, Positive, Share, UsageError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Linear, Module, Place, upcast

ExpertScores = Float[Tensor, "batch length experts"]


@dataclass(frozen=True)
class Routing:
    """The experts of each token and their gates; a number past the last expert means none."""

    logits: ExpertScores
    probabilities: ExpertScores  # of each expert, which sum to one
    experts: Int[Tensor, "batch length choices"]
    gates: Float[Tensor, "batch length choices"]


class RouterConfig(Config, ABC):
    """Router: how experts are chosen for tokens."""

    @abstractmethod
    def build(self, width: int, experts: int, place: Place) -> "Router":
        """Build the router for a number of experts."""


class Router(Module, ABC):
    """A module `(x, ctx, selection_bias) -> Routing`; scores are computed in float32 at least."""

    def __init__(self, width: int, experts: int, choices: int | float) -> None:
        super().__init__()
        self.experts, self.choices = experts, float(choices)  # per token, on average
        self.scores = Linear(width, experts)

    @abstractmethod
    def forward(self, x: Stream, ctx: Context, selection_bias: Float[Tensor, " experts"] | None) -> Routing:
        """Route tokens; `selection_bias` is added to the scores for the selection only, not for the gates."""


def select_experts(
    scores: ExpertScores, selection_bias: Tensor | None, top: int, groups: int = 1, kept: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the experts with the best scores within the best groups, and those scores."""
    biased = scores if selection_bias is None else scores + selection_bias.to(scores.dtype)
    chosen = (keep_best_groups(biased, groups, kept) if kept < groups else biased).topk(top, dim=-1).indices
    return chosen, scores.gather(-1, chosen)


def keep_best_groups(scores: ExpertScores, groups: int, kept: int) -> ExpertScores:
    """Mask all groups of experts but those whose two best experts have the largest sum of scores."""
    grouped = scores.unflatten(-1, (groups, -1))
    group_scores = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
    best = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, group_scores.topk(kept, dim=-1).indices, True)
    return grouped.masked_fill(~best[..., None], -torch.inf).flatten(-2)  # type: ignore[no-any-return]


def _check_top(top: int, experts: int) -> None:
    if top > experts:
        raise ConfigError("router.top_k", want=f"at most {experts}, the experts to choose from", got=top)


@part("token_choice")
class TokenChoiceConfig(RouterConfig):
    """Top-k routing: each token takes the experts with the highest probability (Shazeer et al. 2017).

    Normalized, the gates are the softmax over the chosen experts (Mixtral), else over all experts (Switch).

    top_k: experts that each token takes.
    normalized: whether the gates of the chosen experts sum to one.
    jitter: in training, inputs are multiplied by uniform noise in 1 ± jitter (Switch).
    """

    old_fields = {"top": "top_k", "normalised": "normalized"}

    top_k: Positive = 2
    normalized: bool = True
    jitter: Share = 0.0

    def build(self, width: int, experts: int, place: Place) -> Router:
        _check_top(self.top_k, experts)
        return TokenChoice(width, experts, self)


class TokenChoice(Router):
    """top(softmax(scores(x)))."""

    def __init__(self, width: int, experts: int, config: TokenChoiceConfig) -> None:
        super().__init__(width, experts, config.top_k)
        self.top_k, self.normalized, self.jitter = config.top_k, config.normalized, config.jitter

    def forward(self, x: Stream, ctx: Context, selection_bias: Float[Tensor, " experts"] | None) -> Routing:
        x = upcast(x)
        if self.training and self.jitter:
            x = x * (1 + self.jitter * (2 * torch.rand_like(x) - 1))
        logits = self.scores(x)
        probabilities = logits.softmax(-1)
        experts, gates = select_experts(probabilities, selection_bias, self.top_k)
        return Routing(logits, probabilities, experts, _normalized(gates) if self.normalized else gates)


def _normalized(gates: Tensor) -> Tensor:
    return gates / gates.sum(-1, keepdim=True)


@part("narang_choice")
class NarangChoiceConfig(RouterConfig):
    """Top-2 routing of GShard: in training the second expert is kept with a probability that grows with its gate.

    As in Lepikhin et al. (2020) and in Narang et al. (2021).

    second_threshold: the gate from which on the second expert is always kept.
    """

    old_fields = {"surely": "second_threshold"}

    second_threshold: float = 0.2

    def __post_init__(self) -> None:
        if self.second_threshold <= 0:
            raise ConfigError("second_threshold", want="above 0", got=self.second_threshold)

    def build(self, width: int, experts: int, place: Place) -> Router:
        _check_top(2, experts)
        return NarangChoice(width, experts, self.second_threshold)


class NarangChoice(Router):
    """top two of softmax(scores(x)), the second with probability gate / second_threshold."""

    def __init__(self, width: int, experts: int, second_threshold: float) -> None:
        super().__init__(width, experts, choices=2)
        self.second_threshold = second_threshold

    def forward(self, x: Stream, ctx: Context, selection_bias: Float[Tensor, " experts"] | None) -> Routing:
        logits = self.scores(upcast(x))
        probabilities = logits.softmax(-1)
        experts, gates = select_experts(probabilities, selection_bias, top=2)
        gates = _normalized(gates)
        if self.training:
            kept = torch.rand_like(gates[..., 1]) * self.second_threshold < gates[..., 1]
            experts = torch.stack((experts[..., 0], experts[..., 1].where(kept, self.experts)), dim=-1)
        return Routing(logits, probabilities, experts, gates)


@part("sigmoid_choice")
class SigmoidChoiceConfig(RouterConfig):
    """Sigmoid routing of DeepSeek-V3: an independent score for each expert; normalized, gates sum to `scale`.

    top_k: experts that each token takes.
    scale: factor of the gates.
    normalized: whether the gates of the chosen experts sum to `scale`.
    groups: groups of experts, such as machines (node-limited routing).
    top_groups: groups that a token may use, by the sum of their two best scores.
    """

    old_fields = {"top": "top_k", "kept": "top_groups", "normalised": "normalized"}

    top_k: int = 2
    scale: float = 1.0
    normalized: bool = True
    groups: int = 1
    top_groups: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, top_k=self.top_k, groups=self.groups, top_groups=self.top_groups)
        if self.top_groups > self.groups:
            raise ConfigError("top_groups", want=f"at most groups = {self.groups}", got=self.top_groups)

    def build(self, width: int, experts: int, place: Place) -> Router:
        if experts % self.groups:
            raise ConfigError("router.groups", want=f"a divisor of the {experts} experts", got=self.groups)
        _check_top(self.top_k, experts // self.groups * self.top_groups)
        return SigmoidChoice(width, experts, self)


class SigmoidChoice(Router):
    """top(sigmoid(scores(x)))."""

    def __init__(self, width: int, experts: int, config: SigmoidChoiceConfig) -> None:
        super().__init__(width, experts, config.top_k)
        self.config = config

    def forward(self, x: Stream, ctx: Context, selection_bias: Float[Tensor, " experts"] | None) -> Routing:
        logits = self.scores(upcast(x))
        scores = logits.sigmoid()
        config = self.config
        experts, gates = select_experts(scores, selection_bias, config.top_k, config.groups, config.top_groups)
        gates = _normalized(gates) if config.normalized else gates
        return Routing(logits, _normalized(scores), experts, config.scale * gates)


@part("expert_choice")
class ExpertChoiceConfig(RouterConfig):
    """Expert choice: each expert takes the best tokens of a row, so that all have equal loads (Zhou et al. 2022).

    The choice depends on future tokens and other documents: causal models and packed rows are refused.

    factor: experts per token on average.
    """

    factor: float = 2.0

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ConfigError("factor", want="above 0", got=self.factor)

    def build(self, width: int, experts: int, place: Place) -> Router:
        if place.sight == "past":
            raise ConfigError("router", f"{self.kind} is not causal; use token_choice in a decoder")
        return ExpertChoice(width, experts, min(self.factor, experts))


class ExpertChoice(Router):
    """The best tokens of each row for each expert, by softmax(scores(x))."""

    def forward(self, x: Stream, ctx: Context, selection_bias: Float[Tensor, " experts"] | None) -> Routing:
        if ctx.documents is not None:
            raise UsageError("expert choice compares all tokens of a row: want one document a row, got several")
        logits = self.scores(upcast(x))
        probabilities = logits.softmax(-1)
        real = ctx.used_tokens(x)
        if real is None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        best = (
            probabilities if selection_bias is None else probabilities + selection_bias.to(probabilities.dtype)
        ).masked_fill(~real[..., None], -torch.inf)
        rank = best.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        places = (real.sum(dim=1) * (self.choices / self.experts)).ceil()
        taken = (rank < places[:, None, None]) & real[..., None]
        experts = torch.arange(self.experts, device=x.device).where(taken, self.experts)
        return Routing(logits, probabilities, experts, probabilities)
