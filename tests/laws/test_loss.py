"""The laws of the loss (DESIGN §3): padding never counts, and a model that knows nothing costs log(vocab)."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, Case, cases, ids, loud
from torch import Tensor

from heddle.data.rows import Batch
from heddle.models.networks import LanguageModel, LanguageModelConfig, Model
from heddle.nn.base import Context
from heddle.nn.ends import AdaptiveHeadConfig
from heddle.objectives import Loss, NextTokenConfig

Objective = Callable[[Model, Batch], Loss]
LENGTHS = (CONTEXT, 7, 1, 4)  # real targets in each row


def padded(apart: bool, filler: int = 0) -> Batch:
    """Return rows of unequal length, padded with one token; apart: padding is a document of its own."""
    rows = ids(len(LENGTHS), CONTEXT + 1, seed=3)
    steps = torch.arange(CONTEXT)
    real = steps < torch.tensor(LENGTHS)[:, None]
    return Batch(
        inputs=rows[:, :-1].where(real, filler),
        targets=rows[:, 1:].where(real, filler),
        weights=real.float(),
        rows=torch.arange(len(LENGTHS)),
        documents=(~real).long() if apart else None,
    )


def gradients(model: LanguageModel, objective: Objective, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """Return the loss and the gradient of every weight."""
    model.zero_grad()
    total = objective(model, batch).total
    total.backward()
    return total.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def near(left: Tensor, right: Tensor) -> bool:
    """Tell whether two results differ in their last bits only."""
    return torch.allclose(left, right, rtol=1e-12, atol=1e-14)


def ignorance(config: LanguageModelConfig) -> Tensor:
    """Return what each token costs by a head of zeros: log(vocab), or that of its cluster and then that within it."""
    if not isinstance(config.head, AdaptiveHeadConfig):
        return torch.full((VOCAB,), math.log(VOCAB), dtype=torch.float64)
    sizes = [cluster.size or 0 for cluster in config.head.clusters]
    sizes = [size or VOCAB - sum(sizes) for size in sizes]
    first = math.log(sizes[0] + len(sizes) - 1)
    costs = [first, *(first + math.log(size) for size in sizes[1:])]
    return torch.tensor(costs, dtype=torch.float64).repeat_interleave(torch.tensor(sizes))


# --- the laws ---------------------------------------------------------------------------------------------------------


def padding_never_counts(objective: Objective, config: LanguageModelConfig) -> None:
    """Whatever stands in the padding, loss and gradients keep every bit; where rows are one piece, targets do."""
    model = loud(config).train()
    for apart in (True, False):
        batch = padded(apart)
        loss, grads = gradients(model, objective, batch)
        for filler in (1, VOCAB - 1):
            other = padded(apart, filler)
            if not apart and config.sight != "past":
                other = dataclasses.replace(other, inputs=batch.inputs)  # they are seen, and only targets are padding
            changed, same = gradients(model, objective, other)
            equal = torch.equal if model.head.single_softmax else near
            assert equal(loss, changed), "the loss moves with the padding"
            assert all(equal(a, b) for a, b in zip(grads, same, strict=True)), "a gradient moves with it"
    assert int(batch.weights.sum()) == batch.tokens == sum(LENGTHS)


def knowing_nothing_costs_log_vocab(objective: Objective, config: LanguageModelConfig) -> None:
    """A head of zeros gives every token the same probability: a target costs log(vocab), or what the head declares."""
    model, costs = loud(config), ignorance(config)
    with torch.no_grad():
        for weight in model.head.parameters():
            weight.zero_()
    for apart in (True, False):
        batch = padded(apart)
        total = objective(model, batch).total.item()
        smoothing = objective.smoothing if isinstance(objective, NextTokenConfig) and model.training else 0.0
        wanted = ((1 - smoothing) * costs[batch.targets] + smoothing * costs.mean()) * batch.weights
        assert total == pytest.approx(wanted.sum().item(), rel=1e-12), "not log(vocab) a token"


LAWS = (padding_never_counts, knowing_nothing_costs_log_vocab)
OBJECTIVES: dict[str, Objective] = {
    "next_token": NextTokenConfig(),
    "next_token, smoothed": NextTokenConfig(smoothing=0.1),
}


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_law_of_losses_holds(name: str, law: Callable[[Objective, LanguageModelConfig], None], case: Case) -> None:
    law(OBJECTIVES[name], case.config)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def nll(model: Model, batch: Batch) -> Tensor:
    assert isinstance(model, LanguageModel)
    return model.head.nll(model(batch.inputs, Context(documents=batch.documents)), batch.targets)


PLANTED: dict[str, tuple[Objective, Callable[[Objective, LanguageModelConfig], None]]] = {
    "padding counted": (lambda m, b: Loss(nll(m, b).sum()), padding_never_counts),
    "padding counted a little": (
        lambda m, b: Loss((nll(m, b) * b.weights.clamp(min=1e-9)).sum()),
        padding_never_counts,
    ),
    "padding counted, in the mean": (lambda m, b: Loss(nll(m, b).sum()), knowing_nothing_costs_log_vocab),
    "divided too early": (lambda m, b: Loss((nll(m, b) * b.weights).mean()), knowing_nothing_costs_log_vocab),
    "in bits": (lambda m, b: Loss((nll(m, b) * b.weights).sum() / math.log(2)), knowing_nothing_costs_log_vocab),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    objective, law = PLANTED[bug]
    config = next(case.config for case in cases() if case.name == "preset=gpt2")
    with pytest.raises(AssertionError):
        law(objective, config)
