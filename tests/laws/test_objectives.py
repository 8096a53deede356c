"""The laws of objectives: noise keyed by row, shapes that no draw changes, the cost of knowing nothing, text that comes
back, pieces that cost what the whole costs. Each is run over every registered kind, and over a bug that it finds."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.objective_cases import CASES, LENGTH, ROWS, ObjectiveCase, tensors

from heddle.core import kinds
from heddle.data.rows import Batch
from heddle.objectives import ObjectiveConfig

SEED = 5


def uniform_model(case: ObjectiveCase) -> Any:
    """Return a model whose outputs are the same whatever it reads."""
    model = case.model().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.zero_()
    return model


# --- the laws ---------------------------------------------------------------------------------------------------------


def noise_is_keyed_by_row(case: ObjectiveCase) -> None:
    """A row is shown alike alone, in any batch and in any order; another seed or number shows it otherwise."""
    batch = case.batch()
    whole = tensors(case.prepare(batch, SEED))
    for row in range(ROWS):
        alone = tensors(case.prepare(batch.slice(row, row + 1), SEED))
        for name, tensor in alone.items():
            assert torch.equal(tensor[0], whole[name][row]), f"{name} of row {row} alone"
    back = case.prepare(batch.select(torch.arange(ROWS).flip(0)), SEED)
    for name, tensor in tensors(back).items():
        assert torch.equal(tensor.flip(0), whole[name]), f"{name} in another order"
    if case.rebuild is not None:
        later = dataclasses.replace(batch, rows=batch.rows + 103)
        for other in (case.prepare(batch, SEED + 1), case.prepare(later, SEED)):
            changed = [n for n, tensor in tensors(other).items() if not torch.equal(tensor, whole[n])]
            assert set(changed) - {"rows"}, "the same noise again"


def shapes_ignore_the_draw(case: ObjectiveCase) -> None:
    """Shapes follow from the length of the rows alone."""
    batch = case.batch()
    shapes = [
        {name: tensor.shape for name, tensor in tensors(case.prepare(here, seed)).items()}
        for seed in range(20)
        for here in (batch, dataclasses.replace(batch, rows=batch.rows + 7 * seed))
    ]
    assert all(shape == shapes[0] for shape in shapes)


def knowing_nothing_costs_what_is_stated(case: ObjectiveCase) -> None:
    """A model that knows nothing costs log(vocab) for each target that counts, or what the case states."""
    made = case.prepare(case.batch(), SEED)
    total = case.loss(uniform_model(case), made).item()
    assert made.tokens > 0 and total == pytest.approx(case.uniform(made), rel=1e-9)


def input_and_targets_rebuild_the_text(case: ObjectiveCase) -> None:
    """What the model reads and what it must say are together the text, to the token."""
    if case.rebuild is None:
        return
    for first in range(0, 40, ROWS):
        batch = case.batch()
        batch = dataclasses.replace(batch, rows=batch.rows + first)
        made = case.prepare(batch, SEED)
        assert case.rebuild(made) == case.texts(batch)


def pieces_cost_what_the_whole_costs(case: ObjectiveCase) -> None:
    """Micro-batches add up to the batch: losses are sums, and so are their gradients."""
    model, made = case.model().eval(), case.prepare(case.batch(), SEED)

    def cost(*pieces: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        total = torch.stack([case.loss(model, piece) for piece in pieces]).sum()
        total.backward()
        return total.detach(), [weight.grad for weight in model.parameters() if weight.grad is not None]

    whole, gradients = cost(made)
    for size in (2, 1):
        total, others = cost(*(made.slice(at, at + size) for at in range(0, ROWS, size)))
        torch.testing.assert_close(total, whole, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(gradients, others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


Law = Callable[[ObjectiveCase], None]
LAWS: tuple[Law, ...] = (
    noise_is_keyed_by_row,
    shapes_ignore_the_draw,
    knowing_nothing_costs_what_is_stated,
    input_and_targets_rebuild_the_text,
    pieces_cost_what_the_whole_costs,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("kind", CASES)
def test_law_of_objectives_holds(kind: str, law: Law) -> None:
    law(CASES[kind])


def test_every_objective_has_a_case() -> None:
    known = kinds(ObjectiveConfig).items()  # those over labelled texts have cases in test_examples.py
    own = [kind for kind, cls in known if cls.__module__.startswith("heddle.") and not cls.reads_examples]
    found = {case.objective.kind for case in CASES.values()}
    assert set(own) <= found, "an objective without a case in tests/laws/objective_cases.py"


# --- planted bugs -----------------------------------------------------------------------------------------------------


def keyed_by_place(case: ObjectiveCase, batch: Batch, seed: int) -> Batch:
    return case.prepare(dataclasses.replace(batch, rows=torch.arange(len(batch))), seed)


def as_long_as_needed(case: ObjectiveCase, batch: Batch, seed: int) -> Batch:
    made, less = case.prepare(batch, seed), int(batch.rows[0]) % 2
    return dataclasses.replace(made, inputs=made.inputs[:, : made.inputs.shape[1] - less])


def lost_token(case: ObjectiveCase, batch: Batch, seed: int) -> Batch:
    made = case.prepare(batch, seed)
    targets = made.targets.clone()
    targets[made.weights > 0] = targets[made.weights > 0].roll(1)
    return dataclasses.replace(made, targets=targets)


BUGS: dict[str, tuple[dict[str, Any], Law]] = {
    "keyed by its place in the batch": ({"show": keyed_by_place}, noise_is_keyed_by_row),
    "one seed for all": ({"show": lambda case, b, s: case.prepare(b, 0)}, noise_is_keyed_by_row),
    "as long as the draw": ({"show": as_long_as_needed}, shapes_ignore_the_draw),
    "divided too early": (
        {"cost": lambda case, m, b: case.loss(m, b) / b.tokens},
        knowing_nothing_costs_what_is_stated,
    ),
    "a target in another's place": ({"show": lost_token}, input_and_targets_rebuild_the_text),
    "a mean over the micro-batch": (
        {"cost": lambda case, m, b: case.loss(m, b) / len(b)},
        pieces_cost_what_the_whole_costs,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if case.rebuild is not None])
def test_a_planted_bug_is_found(kind: str, bug: str) -> None:
    change, law = BUGS[bug]
    with pytest.raises(AssertionError):
        law(dataclasses.replace(CASES[kind], **change))


def test_every_law_has_a_planted_bug() -> None:
    assert {law for _, law in BUGS.values()} == set(LAWS) and LENGTH > 20
