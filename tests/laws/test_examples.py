"""Laws of objectives over labelled texts: what ignorance costs, padding that never counts, pieces that add up."""

import dataclasses
from typing import Any

import pytest
import torch
from laws.example_cases import CASES, LENGTH, LENGTHS, ROWS, ExampleCase, encoder

from heddle.core import kinds
from heddle.data.rows import ExampleBatch
from heddle.objectives import Loss, ObjectiveConfig


def prepared(case: ExampleCase) -> ExampleBatch:
    made = case.objective.prepare(case.batch(), 0)
    assert isinstance(made, ExampleBatch)
    return made


def knowing_nothing_costs_what_is_stated(case: ExampleCase) -> None:
    """A model whose output is the same whatever it reads costs log(classes), log(2), log(places), log(batch), or 1."""
    model, batch = encoder(case.objective).eval(), prepared(case)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.zero_()
    total = case.objective(model, batch).total.item()
    assert batch.tokens >= 3 and total == pytest.approx(batch.tokens * case.uniform, rel=1e-6)


def padding_and_spare_rows_never_count(case: ExampleCase) -> None:
    """Other tokens after a row's end, or in a row that only fills the batch, change nothing."""
    model, batch = encoder(case.objective).eval(), prepared(case)
    want = case.objective(model, batch).total
    noise = torch.arange(LENGTH) >= LENGTHS[:, None]
    noise[-1] = True
    other = dataclasses.replace(batch, inputs=batch.inputs.where(~noise, (batch.inputs + 5) % 23))
    torch.testing.assert_close(case.objective(model, other).total, want, rtol=1e-12, atol=1e-12)


def pieces_cost_what_the_whole_costs(case: ExampleCase) -> None:
    """Micro-batches add up to the batch, and so do their gradients; a batch that is a unit says so."""
    if case.objective.batch_is_unit:
        return
    model, batch = encoder(case.objective).eval(), prepared(case)

    def cost(*pieces: ExampleBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        total = torch.stack([case.objective(model, piece).total for piece in pieces]).sum()
        total.backward()
        return total.detach(), [weight.grad for weight in model.parameters() if weight.grad is not None]

    whole, gradients = cost(batch)
    for size in (2, 1):
        total, others = cost(*(batch.slice(at, at + size) for at in range(0, ROWS, size)))
        torch.testing.assert_close(total, whole, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(gradients, others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def predictions_have_the_width_they_say(case: ExampleCase) -> None:
    """Validation gets a row of numbers for each row, and training none."""
    model, batch = encoder(case.objective), prepared(case)
    assert case.objective(model.train(), batch).predictions is None
    found, width = case.objective(model.eval(), batch).predictions, case.objective.prediction_width(LENGTH)
    assert (found is None and not width) or (found is not None and found.shape == (ROWS, width))


LAWS = (
    knowing_nothing_costs_what_is_stated,
    padding_and_spare_rows_never_count,
    pieces_cost_what_the_whole_costs,
    predictions_have_the_width_they_say,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", CASES)
def test_law_of_examples_holds(name: str, law: Any) -> None:
    law(CASES[name])


def test_every_objective_over_examples_has_a_case() -> None:
    own = [
        cls for cls in kinds(ObjectiveConfig).values() if cls.__module__.startswith("heddle.") and cls.reads_examples
    ]
    assert {type(case.objective) for case in CASES.values()} == set(own)


class Planted:
    """An objective with a bug."""

    batch_is_unit = False

    def __init__(self, inner: ObjectiveConfig, change: Any) -> None:
        self.inner, self.change = inner, change

    def prepare(self, batch: Any, seed: int) -> Any:
        return self.inner.prepare(batch, seed)

    def model_for(self, config: Any) -> Any:
        return self.inner.model_for(config)

    def prediction_width(self, length: int) -> int:
        return self.inner.prediction_width(length)

    def __call__(self, model: Any, batch: Any) -> Loss:
        return self.change(self.inner, model, batch)  # type: ignore[no-any-return]


def all_real(inner: Any, model: Any, batch: ExampleBatch) -> Loss:
    return inner(model, dataclasses.replace(batch, lengths=torch.full((len(batch),), LENGTH)))  # type: ignore[no-any-return]


BUGS: dict[str, tuple[Any, Any]] = {
    "a mean": (lambda o, m, b: Loss(o(m, b).total / b.tokens), knowing_nothing_costs_what_is_stated),
    "padding is read": (all_real, padding_and_spare_rows_never_count),
    "a mean over rows": (lambda o, m, b: Loss(o(m, b).total / len(b)), pieces_cost_what_the_whole_costs),
    "one number too few": (
        lambda o, m, b: dataclasses.replace(o(m, b), predictions=torch.zeros(ROWS, 2)),
        predictions_have_the_width_they_say,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    change, law = BUGS[bug]
    case = dataclasses.replace(CASES["tag"], objective=Planted(CASES["tag"].objective, change))  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        law(case)
