"""The laws of decoding, over every model that can go on from a state, and planted faults that they catch."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, Case, Given, cases, ids, loud, pairs

from heddle.core import UsageError, replace
from heddle.decoding import How, Windows, generate, nll_given, nll_of, sampling, search, stream
from heddle.models import EncoderDecoder, Predictor
from heddle.nn import Context, State

Row = tuple[list[int], list[int]]  # a prompt, and the source that an encoder-decoder answers with it

CASES = [case for case in cases() + pairs() if case.stepwise]
ROWS: list[Row] = [([1, 2, 3], [7, 3, 9, 1]), ([4], [5]), ([5, 6, 0, 8, 2, 2], [2, 2, 8, 4, 1, 6, 3])]
LENGTH = 6
BOLD = How(max_tokens=LENGTH, temperature=1.3, top_k=VOCAB - 1, top_p=0.98, seed=7)
GREEDY = How(max_tokens=LENGTH)
WIDE = How(max_tokens=3, stop=(3,), beams=3, samples=2, length_penalty=0.6)


def opened(case: Case, seed: int = 0) -> Predictor:
    """Build a case's model, an encoder-decoder without a source of its own."""
    model = loud(case.config, seed)
    return model.model if isinstance(model, Given) else model  # type: ignore[no-any-return]


@cache
def built(case: Case) -> Predictor:
    """Build a case's model once for all laws."""
    return opened(case)


def sources(model: Predictor, rows: Sequence[Row]) -> list[list[int]] | None:
    """Return the sources of rows where the model reads any."""
    return [source for _, source in rows] if isinstance(model, EncoderDecoder) else None


def write(model: Predictor, rows: Sequence[Row], how: How) -> list[list[int]]:
    """Return the new ids of rows."""
    return generate(model, [prompt for prompt, _ in rows], how, sources(model, rows))


@torch.no_grad()
def read(model: Predictor, row: Row) -> torch.Tensor:
    """Return the scores after each token of a row, read at once and alone, with no state."""
    memory = model.encode(torch.tensor([row[1]])) if isinstance(model, EncoderDecoder) else None
    return model.logits(torch.tensor([row[0]]), Context(memory=memory))[0]


def reread(model: Predictor, row: Row, how: How) -> list[int]:
    """Decode in the plainest way: read everything anew for each token."""
    prompt, source = list(row[0]), row[1]
    for _ in range(how.max_tokens):
        scores = read(model, (prompt, source))[-1:]
        prompt.append(int(sampling.choose(scores, how, [(0, len(prompt))])))
    return prompt[len(row[0]) :]


def stepwise_is_full(model: Predictor) -> None:
    """What grows step by step is what reading everything anew gives."""
    for how in (GREEDY, BOLD):
        assert write(model, ROWS, how) == [reread(model, row, how) for row in ROWS]


def greedy_is_argmax(model: Predictor) -> None:
    """Greedy takes the best token of the full scores, at every step."""
    found = write(model, ROWS, GREEDY)
    for (prompt, source), new in zip(ROWS, found, strict=True):
        best = read(model, (prompt + new, source)).argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == new


def batched_is_alone(model: Predictor) -> None:
    """A row's ids do not depend on the other rows, nor on when they end."""
    early = write(model, ROWS[:1], BOLD)[0][1]
    for how in (GREEDY, BOLD, replace(BOLD, stop=(early,))):
        alone = [write(model, [row], how)[0] for row in ROWS]
        assert write(model, ROWS, how) == alone
        assert write(model, ROWS[::-1], how) == alone[::-1]


def beams_batched_are_beams_alone(model: Predictor) -> None:
    """Beams of one row do not depend on those of other rows."""
    alone = [ids for row in ROWS for ids in write(model, [row], WIDE)]
    assert write(model, ROWS, WIDE) == alone


def seeded_sampling_repeats(model: Predictor) -> None:
    """The same seed gives the same ids, another seed others, and the stream is the list."""
    wild = replace(BOLD, temperature=30.0)  # at which even a very sure model has a choice
    first = write(model, ROWS, wild)
    assert write(model, ROWS, wild) == first
    assert write(model, ROWS, replace(wild, seed=8)) != first
    prompt, source = ROWS[0]
    assert list(stream(model, prompt, wild, source if isinstance(model, EncoderDecoder) else None)) == first[0]


def going_on_is_going_through(model: Predictor) -> None:
    """A prompt that ends with tokens generated earlier goes on as the earlier run did."""
    prompt, source = ROWS[0]
    whole = write(model, ROWS[:1], BOLD)[0]
    for cut in (1, LENGTH // 2):
        rest = replace(BOLD, max_tokens=LENGTH - cut)
        assert write(model, [(prompt + whole[:cut], source)], rest)[0] == whole[cut:]


def one_beam_is_greedy(model: Predictor) -> None:
    """Beam search of width 1 takes the best token each time, and ends where greedy does."""
    stop = (write(model, ROWS[:1], GREEDY)[0][2],)
    how = replace(GREEDY, stop=stop)
    found = search(model, [prompt for prompt, _ in ROWS], how, sources(model, ROWS))
    assert [best.ids for (best,) in found] == write(model, ROWS, how)


def full_width_is_exhaustive(model: Predictor) -> None:
    """With as many beams as there are sequences, beam search lists them all, in the order of their scores."""
    how = replace(WIDE, max_tokens=2, beams=VOCAB * VOCAB, samples=VOCAB * VOCAB)
    (found,) = search(model, [ROWS[0][0]], how, sources(model, ROWS[:1]))
    wanted = every_pair(model, ROWS[0], how)
    assert len(found) == len(wanted)
    assert all(abs(h.score - wanted[tuple(h.ids)]) < 1e-6 for h in found)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@torch.no_grad()
def every_pair(model: Predictor, row: Row, how: How) -> dict[tuple[int, ...], float]:
    """Return the score of every sequence of at most two new tokens."""
    (stop,), prompt = how.stop, torch.tensor([row[0]])
    first = read(model, row)[-1].log_softmax(-1)
    grown = torch.cat((prompt.expand(VOCAB, -1), torch.arange(VOCAB)[:, None]), 1)
    memory = model.encode(torch.tensor([row[1]] * VOCAB)) if isinstance(model, EncoderDecoder) else None
    second = model.logits(grown, Context(memory=memory))[:, -1].log_softmax(-1) + first[:, None]
    pairs = ((id, after) for id in range(VOCAB) for after in range(VOCAB) if id != stop)
    return {(stop,): how.rank(float(first[stop]), 1)} | {p: how.rank(float(second[p]), 2) for p in pairs}


LAWS = [
    stepwise_is_full,
    greedy_is_argmax,
    batched_is_alone,
    seeded_sampling_repeats,
    going_on_is_going_through,
    beams_batched_are_beams_alone,
    one_beam_is_greedy,
    full_width_is_exhaustive,
]


def trials() -> list[Any]:
    """Return every law with every case; of edits of one preset, `make test` tries the first law alone."""
    return [
        pytest.param(law, case, id=f"{law.__name__}-{case.name}", marks=[pytest.mark.full] * (law in rest))
        for case in CASES
        for rest in [LAWS[1:] if case.name.startswith("preset=narang/") else []]
        for law in LAWS
    ]


@pytest.mark.parametrize(("law", "case"), trials())
def test_law_of_decoding_holds(law: Callable[[Predictor], None], case: Case) -> None:
    law(built(case))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_scores_are_those_of_the_model(case: Case) -> None:
    model = built(case)
    row, source = ids(1, CONTEXT)[0].tolist(), ROWS[0][1]
    wanted = -read(model, ([0, *row[:-1]], source)).log_softmax(-1)[torch.arange(CONTEXT), torch.tensor(row)]
    if isinstance(model, EncoderDecoder):
        found = nll_given(model, [source, source], [row, row[:3]], 0)
    else:
        found = list(nll_of(model, [row, row[:3]], Windows(length=CONTEXT, stride=CONTEXT), 0))  # type: ignore[arg-type]
    assert torch.allclose(found[0].double(), wanted, atol=1e-5)
    assert torch.allclose(found[1].double(), wanted[:3], atol=1e-5)


def test_a_model_that_sees_all_is_refused() -> None:
    for case in (c for c in cases() if not c.stepwise):
        model = loud(case.config)
        with pytest.raises(UsageError):
            write(model, ROWS, GREEDY)
        with pytest.raises(UsageError):
            list(nll_of(model, [prompt for prompt, _ in ROWS], Windows(length=4, stride=4), 0))


# --- planted faults ---------------------------------------------------------------------------------------------------


def forget_to_select(patch: pytest.MonkeyPatch) -> None:
    """Keep the first rows of the state, whichever were chosen."""

    def first(self: State, rows: torch.Tensor) -> State:
        return real(self, torch.arange(len(rows)) % len(self.lengths))

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
        (forget_to_select, beams_batched_are_beams_alone),
        (draw_by_row, batched_is_alone),
        (draw_by_step, going_on_is_going_through),
        (draw_by_step, stepwise_is_full),
    ],
    ids=lambda f: f.__name__,
)
def test_a_planted_fault_breaks_the_law(
    fault: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[Predictor], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = loud(next(case for case in CASES if case.name == "preset=first").config)
    law(model)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        law(model)
