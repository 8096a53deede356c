"""The laws of decoding, over every model that can go on from a state, and planted faults that they catch."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, Case, cases, ids, loud

from heddle.core import UsageError, replace
from heddle.decoding import How, Windows, generate, nll_of, sampling, stream
from heddle.models import LanguageModel
from heddle.nn import State

CASES = [case for case in cases() if case.stepwise]
PROMPTS = [[1, 2, 3], [4], [5, 6, 0, 8, 2, 2]]
LENGTH = 6
BOLD = How(max_tokens=LENGTH, temperature=1.3, top_k=VOCAB - 1, top_p=0.98, seed=7)
GREEDY = How(max_tokens=LENGTH)


@cache
def built(case: Case) -> LanguageModel:
    """Build a case's model once for all laws."""
    return loud(case.config)


@torch.no_grad()
def reread(model: LanguageModel, prompt: Sequence[int], how: How) -> list[int]:
    """Decode in the plainest way: read everything anew for each token, with no state."""
    row = list(prompt)
    for _ in range(how.max_tokens):
        scores = model.logits(torch.tensor([row]))[:, -1]
        row.append(int(sampling.choose(scores, how, [(0, len(row))])))
    return row[len(prompt) :]


def stepwise_is_full(model: LanguageModel) -> None:
    """What grows step by step is what reading everything anew gives."""
    for how in (GREEDY, BOLD):
        assert generate(model, PROMPTS, how) == [reread(model, prompt, how) for prompt in PROMPTS]


def greedy_is_argmax(model: LanguageModel) -> None:
    """Greedy takes the best token of the full scores, at every step."""
    found = generate(model, PROMPTS, GREEDY)
    for prompt, new in zip(PROMPTS, found, strict=True):
        best = model.logits(torch.tensor([prompt + new])).argmax(-1)[0]
        assert best[len(prompt) - 1 : -1].tolist() == new


def batched_is_alone(model: LanguageModel) -> None:
    """A row's ids do not depend on the other rows, nor on when they end."""
    early = generate(model, PROMPTS[:1], BOLD)[0][1]
    for how in (GREEDY, BOLD, replace(BOLD, stop=(early,))):
        alone = [generate(model, [prompt], how)[0] for prompt in PROMPTS]
        assert generate(model, PROMPTS, how) == alone
        assert generate(model, PROMPTS[::-1], how) == alone[::-1]


def seeded_sampling_repeats(model: LanguageModel) -> None:
    """The same seed gives the same ids, another seed others, and the stream is the list."""
    wild = replace(BOLD, temperature=30.0)  # at which even a very sure model has a choice
    first = generate(model, PROMPTS, wild)
    assert generate(model, PROMPTS, wild) == first
    assert generate(model, PROMPTS, replace(wild, seed=8)) != first
    assert list(stream(model, PROMPTS[0], wild)) == first[0]


def going_on_is_going_through(model: LanguageModel) -> None:
    """A prompt that ends with tokens generated earlier goes on as the earlier run did."""
    whole = generate(model, [PROMPTS[0]], BOLD)[0]
    for cut in (1, LENGTH // 2):
        rest = replace(BOLD, max_tokens=LENGTH - cut)
        assert generate(model, [PROMPTS[0] + whole[:cut]], rest)[0] == whole[cut:]


LAWS = [stepwise_is_full, greedy_is_argmax, batched_is_alone, seeded_sampling_repeats, going_on_is_going_through]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law_of_decoding_holds(law: Callable[[LanguageModel], None], case: Case) -> None:
    law(built(case))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_scores_are_those_of_the_model(case: Case) -> None:
    model = built(case)
    row = ids(1, CONTEXT)[0].tolist()
    inputs, targets = torch.tensor([[0, *row[:-1]]]), torch.tensor(row)
    wanted = -model.logits(inputs).log_softmax(-1)[0, torch.arange(CONTEXT), targets]
    found = list(nll_of(model, [row, row[:3]], Windows(length=CONTEXT, stride=CONTEXT), 0))
    assert torch.allclose(found[0].double(), wanted, atol=1e-5)
    assert torch.allclose(found[1].double(), wanted[:3], atol=1e-5)


def test_a_model_that_sees_all_is_refused() -> None:
    for case in (c for c in cases() if not c.stepwise):
        model = loud(case.config)
        with pytest.raises(UsageError):
            generate(model, PROMPTS, GREEDY)
        with pytest.raises(UsageError):
            list(nll_of(model, PROMPTS, Windows(length=4, stride=4), 0))


# --- planted faults ---------------------------------------------------------------------------------------------------


def forget_to_select(patch: pytest.MonkeyPatch) -> None:
    """Keep the first rows of the state, whichever were chosen."""

    def first(self: State, rows: torch.Tensor) -> State:
        return real(self, torch.arange(len(rows)))

    real = State.select
    patch.setattr(State, "select", first)


def draw_by_row(patch: pytest.MonkeyPatch) -> None:
    """Let a row's draw depend on its place in the batch."""

    def choose(scores: torch.Tensor, how: How, places: Sequence[tuple[int, int]]) -> Any:
        return real(scores, how, [(row, position) for row, (_, position) in enumerate(places)])

    real = sampling.choose
    patch.setattr("heddle.decoding.generation.choose", choose)


def draw_by_step(patch: pytest.MonkeyPatch) -> None:
    """Count positions from the first new token."""

    def choose(scores: torch.Tensor, how: How, places: Sequence[tuple[int, int]]) -> Any:
        counts[0] += 1
        return real(scores, how, [(sample, counts[0]) for sample, _ in places])

    counts, real = [0], sampling.choose
    patch.setattr("heddle.decoding.generation.choose", choose)


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (forget_to_select, batched_is_alone),
        (draw_by_row, batched_is_alone),
        (draw_by_step, going_on_is_going_through),
        (draw_by_step, stepwise_is_full),
    ],
    ids=lambda f: f.__name__,
)
def test_a_planted_fault_breaks_the_law(
    fault: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[LanguageModel], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = loud(next(case for case in CASES if case.name == "preset=first").config)
    law(model)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        law(model)
