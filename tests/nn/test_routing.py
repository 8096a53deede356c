"""Routers choose as their papers say; capacity gives places in order; losses equal their formulas."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, decode, override, replace
from heddle.nn.base import Context, Place, Sight
from heddle.nn.channels import (
    CapacityConfig,
    ExpertChoiceConfig,
    FactorConfig,
    LoadBalancingLossConfig,
    NarangChoiceConfig,
    NarangFactorConfig,
    PerDocumentCapacityConfig,
    Router,
    RouterConfig,
    SigmoidChoiceConfig,
    TokenChoiceConfig,
)
from heddle.nn.channels.load_balancing import RouterStatistics

WIDTH, EXPERTS = 8, 5


def build(config: RouterConfig, sight: Sight = "past") -> Router:
    made = config.build(WIDTH, EXPERTS, Place(sight=sight))
    torch.nn.init.normal_(made.scores.weight, generator=torch.Generator().manual_seed(0))
    return made.double()


def x(length: int = 40) -> Tensor:
    return torch.randn(2, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_normalised_gates_are_the_softmax_of_the_chosen() -> None:
    made = build(TokenChoiceConfig(top_k=3))
    routing = made(x(), Context(), None)
    torch.testing.assert_close(routing.gates, routing.logits.gather(-1, routing.experts).softmax(-1))
    assert torch.equal(routing.experts, routing.logits.topk(3).indices)


def test_gates_that_are_not_normalised_are_probabilities_among_all() -> None:
    routing = build(TokenChoiceConfig(top_k=1, normalized=False))(x(), Context(), None)
    torch.testing.assert_close(routing.gates[..., 0], routing.logits.softmax(-1).max(-1).values)


def test_selection_bias_changes_the_choice_and_not_the_gates() -> None:
    made, selection_bias = build(TokenChoiceConfig(top_k=2, normalized=False)), torch.zeros(EXPERTS)
    selection_bias[3] = 10.0
    routing = made(x(), Context(), selection_bias)
    assert (routing.experts[..., 0] == 3).all()
    torch.testing.assert_close(routing.gates, routing.logits.softmax(-1).gather(-1, routing.experts))


def test_jitter_moves_scores_a_little_in_training_only() -> None:
    made = build(TokenChoiceConfig(top_k=1, jitter=0.01))
    still = made.eval()(x(), Context(), None).logits
    moved = made.train()(x(), Context(), None).logits
    assert 0 < (moved - still).abs().max() < 0.01 * (x().abs() @ made.scores.weight.abs().T).max()


def test_sigmoid_gates_are_normalised_and_scaled_as_in_deepseek() -> None:
    routing = build(SigmoidChoiceConfig(top_k=2, scale=2.5))(x(), Context(), torch.arange(EXPERTS) / 10)
    scores = routing.logits.sigmoid()
    chosen = (scores + torch.arange(EXPERTS) / 10).topk(2).indices
    assert torch.equal(routing.experts, chosen)
    kept = scores.gather(-1, chosen)
    torch.testing.assert_close(routing.gates, 2.5 * kept / kept.sum(-1, keepdim=True))


def test_a_token_looks_into_its_best_groups_only() -> None:
    config, selection_bias = (
        SigmoidChoiceConfig(top_k=3, groups=4, top_groups=2, normalized=False),
        torch.linspace(-0.2, 0.2, 12),
    )
    made = config.build(WIDTH, 12, Place()).double()
    torch.nn.init.normal_(made.scores.weight, generator=torch.Generator().manual_seed(0))
    routing = made(x(), Context(), selection_bias)
    scores = routing.logits.sigmoid()
    for biased, chosen in zip(
        (scores + selection_bias).flatten(0, 1), routing.experts.flatten(0, 1).tolist(), strict=True
    ):
        groups = [sorted(biased[3 * g : 3 * g + 3].tolist())[1:] for g in range(4)]
        best = sorted(range(4), key=lambda g: sum(groups[g]))[2:]
        inside = [e for e in range(12) if e // 3 in best]
        assert chosen == sorted(inside, key=lambda e: -biased[e])[:3]
    torch.testing.assert_close(routing.gates, scores.gather(-1, routing.experts))


@pytest.mark.parametrize(
    ("groups", "kept", "top", "wish"),
    [(2, 1, 1, "a divisor of the 5 experts"), (5, 1, 2, "at most 1"), (2, 3, 1, "at most groups = 2")],
)
def test_groups_that_cannot_be_are_refused(groups: int, kept: int, top: int, wish: str) -> None:
    with pytest.raises(ConfigError, match=wish):
        build(SigmoidChoiceConfig(top_k=top, groups=groups, top_groups=kept))


def test_a_second_expert_is_kept_as_often_as_its_gate_says() -> None:
    made = build(NarangChoiceConfig(second_threshold=0.4))
    torch.manual_seed(0)
    routing = made(x(4000), Context(), None)
    kept = (routing.experts[..., 1] < EXPERTS).double()
    surely = routing.gates[..., 1] >= 0.4
    assert kept[surely].mean() == 1
    assert (routing.experts[..., 0] < EXPERTS).all()
    wanted = (routing.gates[..., 1] / 0.4).clamp(max=1)
    assert (kept - wanted).mean().abs() < 4 * (wanted * (1 - wanted)).mean().sqrt() / kept.numel() ** 0.5
    assert (made.eval()(x(), Context(), None).experts < EXPERTS).all()


def test_experts_that_choose_take_the_same_number_of_each_rows_real_tokens() -> None:
    made = build(ExpertChoiceConfig(factor=2.0), "all")
    routing = made(x(), Context(lengths=torch.tensor([40, 10])), None)
    taken = (routing.experts < EXPERTS).sum(1)
    assert (taken[0] == 16).all()
    assert (taken[1] == 4).all()
    best = routing.probabilities[0].topk(16, dim=0).indices.sort(dim=0).values
    assert torch.equal((routing.experts[0] < EXPERTS).T.nonzero()[:, 1].view(EXPERTS, 16).T, best)


# --- capacity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "tokens", "groups"),
    [
        (NarangFactorConfig(), 128 * 512, 64),
        (NarangFactorConfig(), 128 * 114, 16),
        (NarangFactorConfig(), 15, 1),
        (FactorConfig(), 128 * 114, 15),
        (FactorConfig(), 7, 1),
    ],
)
def test_groups_are_as_large_as_they_may(config: CapacityConfig, tokens: int, groups: int) -> None:
    assert config.groups(tokens) == groups


def test_places_of_narang() -> None:
    assert [
        NarangFactorConfig(factor=f).expert_capacity(s, 32) for f, s in ((2.0, 1024), (1.25, 912), (1.2, 1024))
    ] == [
        64,
        35,
        38,
    ]
    assert FactorConfig().expert_capacity(8, 32) == 4


def admitted(experts: list[list[int]], count: int, expert_capacity: int, group: int) -> list[list[int]]:
    """Give out places by hand: group by group, first choices first."""
    out = [[count] * len(row) for row in experts]
    for start in range(0, len(experts), group):
        left = [expert_capacity] * count
        for choice in range(len(experts[0])):
            for token in range(start, min(start + group, len(experts))):
                wish = experts[token][choice]
                if wish < count and left[wish]:
                    left[wish] -= 1
                    out[token][choice] = wish
    return out


@pytest.mark.parametrize(("tokens", "group"), [(12, 12), (12, 6), (11, 6), (1, 4)])
def test_places_go_to_first_choices_then_to_earlier_tokens(tokens: int, group: int) -> None:
    choices = torch.randint(4, (tokens, 2), generator=torch.Generator().manual_seed(2))  # the last number is nowhere
    config = FactorConfig(factor=1e-9, group=group, min_capacity=2)
    assert config.drop_overflow(choices, 3).tolist() == admitted(choices.tolist(), 3, 2, group)


@pytest.mark.parametrize("documents", [None, [[0, 0, 0, 1, 1, 1, 1, 1, 2], [0] * 9]])
def test_places_of_a_row_are_each_document_s_own(documents: list[list[int]] | None) -> None:
    choices = torch.randint(4, (2, 9, 2), generator=torch.Generator().manual_seed(2))
    packed = None if documents is None else torch.tensor(documents)
    got = PerDocumentCapacityConfig(max_capacity=2).drop_overflow(choices, 3, packed)
    for row in range(2):
        numbers = [0] * 9 if documents is None else documents[row]
        for document in set(numbers):
            here = [at for at in range(9) if numbers[at] == document]
            assert got[row, here].tolist() == admitted(choices[row, here].tolist(), 3, 2, 9)
    assert not torch.equal(got, choices)


# --- the load loss ----------------------------------------------------------------------------------------------------


def test_load_loss_equals_the_one_of_transformers() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    routing = build(TokenChoiceConfig(top_k=2))(x(), Context(), None)
    real = torch.rand(80, generator=torch.Generator().manual_seed(3)) < 0.7
    probabilities, experts = routing.probabilities.flatten(0, 1), routing.experts.flatten(0, 1)
    ours = LoadBalancingLossConfig(weight=1.0).build(EXPERTS)(RouterStatistics(probabilities, experts, real, groups=1))
    theirs = load_balancing_loss_func((routing.logits.flatten(0, 1).float(),), EXPERTS, 2, real.view(2, 40).float())
    torch.testing.assert_close(ours.float(), theirs)


def test_load_loss_of_groups_is_their_mean() -> None:
    routing = build(TokenChoiceConfig(top_k=2))(x(), Context(), None)
    probabilities, experts = routing.probabilities.flatten(0, 1), routing.experts.flatten(0, 1)
    made = LoadBalancingLossConfig(weight=0.01, counted="first").build(EXPERTS)
    every = torch.ones(80, dtype=torch.bool)
    paid = []
    for start in range(0, 80, 20):
        share = F.one_hot(experts[start : start + 20, 0], EXPERTS).double().mean(0)
        paid.append(0.01 * EXPERTS**2 * (share * probabilities[start : start + 20].mean(0)).mean())
    torch.testing.assert_close(
        made(RouterStatistics(probabilities, experts, every, groups=4)), torch.stack(paid).mean()
    )


def test_an_even_load_costs_its_weight() -> None:
    probabilities = torch.full((10, EXPERTS), 1 / EXPERTS, dtype=torch.float64)
    experts = torch.arange(10)[:, None] % EXPERTS
    made = LoadBalancingLossConfig(weight=0.01).build(EXPERTS)
    assert made(RouterStatistics(probabilities, experts, torch.ones(10, dtype=torch.bool), 1)).item() == pytest.approx(
        0.01
    )


def test_former_names_of_kinds_and_fields_are_accepted_with_a_hint() -> None:
    with RouterConfig.old_names() as hints:
        found = decode(RouterConfig, {"kind": "sigmoid_choice", "top": 3, "groups": 4, "kept": 2}, "router")
        assert override(found, "normalised", False) == replace(found, normalized=False)
        assert decode(CapacityConfig, "row_places", "capacity") == PerDocumentCapacityConfig()
    assert found == SigmoidChoiceConfig(top_k=3, groups=4, top_groups=2)
    assert hints == [
        "router.top is now called router.top_k",
        "router.kept is now called router.top_groups",
        "normalised is now called normalized",
        "capacity.kind=row_places is now called capacity.kind=per_document",
    ]
