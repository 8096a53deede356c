"""The laws of decoding, over every model that can go on from a state, and planted faults that they catch."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from decoding.reference import search
from laws.cases import CONTEXT, VOCAB, Case, Given, as_source, cases, ids, loud, pairs

from heddle.core import UsageError, replace
from heddle.decoding import sampling
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, complete, generate, stream
from heddle.decoding.runtime import PrefixCache, Request, make_requests
from heddle.decoding.sampling import RowPosition
from heddle.decoding.scoring import ScoringWindows, nll_given_source, nll_sliding_window
from heddle.decoding.search import BeamSearch
from heddle.decoding.speculative import Draft, LookupDraft, ModelDraft, speculate
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.nn.base import Context
from heddle.nn.state import State

Law = Callable[[AutoregressiveModel], None]
Row = tuple[list[int], list[int]]  # a prompt, and the source that an encoder-decoder answers with it

CASES = [case for case in cases() + pairs() if case.stepwise]
ROWS: list[Row] = [([1, 2, 3], [7, 3, 9, 1]), ([4], [5]), ([5, 6, 0, 8, 2, 2], [2, 2, 8, 4, 1, 6, 3])]
LENGTH = 6
DRAW = MultinomialSampling(temperature=1.3, top_k=VOCAB - 1, top_p=0.98, seed=7)
BOLD = GenerationConfig(max_tokens=LENGTH, strategy=DRAW)
GREEDY = GenerationConfig(max_tokens=LENGTH)
BEAMS = BeamSearch(beams=3, length_penalty=0.6)
WIDE = GenerationConfig(max_tokens=3, stop=(3,), strategy=BEAMS, samples=2)


def opened(case: Case, seed: int = 0) -> AutoregressiveModel:
    """Build a case's model, an encoder-decoder without a source of its own."""
    model = loud(case.config, seed)
    return model.model if isinstance(model, Given) else model  # type: ignore[no-any-return]


@cache
def built(case: Case) -> AutoregressiveModel:
    """Build a case's model once for all laws."""
    return opened(case)


def given(model: AutoregressiveModel, source: list[int]) -> Any:
    """Return the source of a row as the model reads it: ids, or features."""
    return source if model.reads == "ids" else as_source(model, torch.tensor(source))


def sources(model: AutoregressiveModel, rows: Sequence[Row]) -> list[Any] | None:
    """Return the sources of rows where the model reads any."""
    return [given(model, source) for _, source in rows] if isinstance(model, EncoderDecoder) else None


def write(model: AutoregressiveModel, rows: Sequence[Row], config: GenerationConfig) -> list[list[int]]:
    """Return the new ids of rows."""
    return generate(model, [prompt for prompt, _ in rows], config, sources(model, rows))


@torch.no_grad()
def read(model: AutoregressiveModel, row: Row) -> torch.Tensor:
    """Return the scores after each token of a row, read at once and alone, with no state."""
    memory = model.encode(as_source(model, torch.tensor([row[1]]))) if isinstance(model, EncoderDecoder) else None
    return model.logits(torch.tensor([row[0]]), Context(memory=memory))[0]


def reread(model: AutoregressiveModel, row: Row, config: GenerationConfig) -> list[int]:
    """Decode in the plainest way: read everything anew for each token."""
    prompt, source = list(row[0]), row[1]
    for _ in range(config.max_tokens):
        scores = read(model, (prompt, source))[-1:]
        past = sampling.hash_ids(prompt, given(model, source) if isinstance(model, EncoderDecoder) else None)
        prompt.append(int(config.strategy.choose(scores, [RowPosition(0, len(prompt), past)])))
    return prompt[len(row[0]) :]


def stepwise_is_full(model: AutoregressiveModel) -> None:
    """What grows step by step is what reading everything anew gives."""
    for config in (GREEDY, BOLD):
        assert write(model, ROWS, config) == [reread(model, row, config) for row in ROWS]


def greedy_is_argmax(model: AutoregressiveModel) -> None:
    """Greedy takes the best token of the full scores, at every step."""
    found = write(model, ROWS, GREEDY)
    for (prompt, source), new in zip(ROWS, found, strict=True):
        best = read(model, (prompt + new, source)).argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == new


def batched_is_alone(model: AutoregressiveModel) -> None:
    """A row's ids do not depend on the other rows, nor on when they end."""
    early = write(model, ROWS[:1], BOLD)[0][1]
    for config in (GREEDY, BOLD, replace(BOLD, stop=(early,))):
        alone = [write(model, [row], config)[0] for row in ROWS]
        assert write(model, ROWS, config) == alone
        assert write(model, ROWS[::-1], config) == alone[::-1]


def beams_batched_are_beams_alone(model: AutoregressiveModel) -> None:
    """Beams of one row do not depend on those of other rows."""
    alone = [ids for row in ROWS for ids in write(model, [row], WIDE)]
    assert write(model, ROWS, WIDE) == alone


def seeded_sampling_repeats(model: AutoregressiveModel) -> None:
    """The same seed gives the same ids, another seed others, and the stream is the list."""
    wild = replace(BOLD, strategy=replace(DRAW, temperature=30.0))  # at which even a very sure model has a choice
    first = write(model, ROWS, wild)
    assert write(model, ROWS, wild) == first
    assert write(model, ROWS, replace(wild, strategy=replace(DRAW, temperature=30.0, seed=8))) != first
    prompt, source = ROWS[0]
    assert (
        list(stream(model, prompt, wild, given(model, source) if isinstance(model, EncoderDecoder) else None))
        == first[0]
    )


def going_on_is_going_through(model: AutoregressiveModel) -> None:
    """A prompt that ends with tokens generated earlier continues as the earlier run did."""
    prompt, source = ROWS[0]
    whole = write(model, ROWS[:1], BOLD)[0]
    for cut in (1, LENGTH // 2):
        rest = replace(BOLD, max_tokens=LENGTH - cut)
        assert write(model, [(prompt + whole[:cut], source)], rest)[0] == whole[cut:]


def one_beam_is_greedy(model: AutoregressiveModel) -> None:
    """Beam search of width 1 takes the best token each time, and ends where greedy does."""
    stop = (write(model, ROWS[:1], GREEDY)[0][2],)
    config = replace(GREEDY, stop=stop)
    narrow = replace(config, strategy=BeamSearch(beams=1))
    found = search(model, make_requests([prompt for prompt, _ in ROWS], sources(model, ROWS)), narrow)
    assert [best.ids for (best,) in found] == write(model, ROWS, config)


def full_width_is_exhaustive(model: AutoregressiveModel) -> None:
    """With as many beams as there are sequences, beam search lists them all, in the order of their scores."""
    config = replace(WIDE, max_tokens=2, strategy=replace(BEAMS, beams=VOCAB * VOCAB), samples=VOCAB * VOCAB)
    (found,) = search(model, make_requests([ROWS[0][0]], sources(model, ROWS[:1])), config)
    wanted = every_pair(model, ROWS[0], config)
    assert len(found) == len(wanted)
    assert all(abs(h.score - wanted[tuple(h.ids)]) < 1e-6 for h in found)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@torch.no_grad()
def every_pair(model: AutoregressiveModel, row: Row, config: GenerationConfig) -> dict[tuple[int, ...], float]:
    """Return the score of every sequence of at most two new tokens."""
    (stop,), prompt = config.stop, torch.tensor([row[0]])
    first = read(model, row)[-1].log_softmax(-1)
    grown = torch.cat((prompt.expand(VOCAB, -1), torch.arange(VOCAB)[:, None]), 1)
    memory = (
        model.encode(as_source(model, torch.tensor([row[1]] * VOCAB))) if isinstance(model, EncoderDecoder) else None
    )
    second = model.logits(grown, Context(memory=memory))[:, -1].log_softmax(-1) + first[:, None]
    pairs = ((id, after) for id in range(VOCAB) for after in range(VOCAB) if id != stop)
    return {(stop,): float(first[stop])} | {p: float(second[p]) / 2**BEAMS.length_penalty for p in pairs}


def chunked_reading_is_reading_at_once(model: AutoregressiveModel) -> None:
    """A prompt read in chunks, of which rows have unlike numbers, gives what it gives when read at once."""
    whole = write(model, ROWS, GREEDY)
    for chunk in (1, 4):
        assert write(model, ROWS, replace(GREEDY, chunk=chunk)) == whole


def reused_beginnings_are_fresh(model: AutoregressiveModel) -> None:
    """Rows that go on from a beginning which was read before give what they give alone, whatever their sources."""
    rows = [*ROWS, ([5, 6, 0, 8, 2, 1], ROWS[2][1]), ([5, 6, 0, 8, 2, 2], ROWS[0][1]), ([5, 6, 0, 8, 7], ROWS[2][1])]
    requests = make_requests([prompt for prompt, _ in rows], sources(model, rows))
    for config in (GREEDY, WIDE):
        prefix_cache, fresh = PrefixCache(model), complete(model, requests, config)
        assert complete(model, requests, config, prefix_cache=prefix_cache) == fresh
        assert prefix_cache.reused_tokens > 0 or model.reads != "ids"
        seen = prefix_cache.reused_tokens
        assert [complete(model, [one], config, prefix_cache=prefix_cache) for one in requests[::-1]] == [
            fresh[n * config.samples : (n + 1) * config.samples] for n in reversed(range(len(requests)))
        ]
        assert prefix_cache.reused_tokens >= seen + 5 + 5 + 4 or model.reads != "ids"  # features are not kept


def guessing_changes_nothing(model: AutoregressiveModel) -> None:
    """Tokens that a draft guessed, right or wrong, leave every row as it is without a draft."""
    requests = make_requests([prompt for prompt, _ in ROWS], sources(model, ROWS))
    for config in (GREEDY, BOLD):
        assert guessed(model, requests, config, LookupDraft(ahead=2)) == write(model, ROWS, config)
    for draft in (ModelDraft(model=model, ahead=3), ModelDraft(model=shaken(model), ahead=3)):
        assert guessed(model, requests, GREEDY, draft) == write(model, ROWS, GREEDY)
        assert draft.tally.rate == 1.0 or draft.model is not model


@torch.no_grad()
def shaken(model: AutoregressiveModel) -> AutoregressiveModel:
    """Return a model that is often, not always, of the same opinion."""
    other, draw = copy.deepcopy(model), torch.Generator().manual_seed(5)
    for weight in other.parameters():
        weight += 0.05 * torch.randn(weight.shape, generator=draw, dtype=weight.dtype)
    return other


def guessed(
    model: AutoregressiveModel, requests: list[Request], config: GenerationConfig, draft: Draft
) -> list[list[int]]:
    """Return the new ids of each request."""
    found: list[list[int]] = [[] for _ in requests]
    for step in speculate(model, requests, config, draft):
        assert step.id is not None
        found[step.row].append(step.id)
    return found


LAWS: list[Law] = [
    stepwise_is_full,
    greedy_is_argmax,
    batched_is_alone,
    seeded_sampling_repeats,
    going_on_is_going_through,
    chunked_reading_is_reading_at_once,
    reused_beginnings_are_fresh,
    guessing_changes_nothing,
    beams_batched_are_beams_alone,
    one_beam_is_greedy,
    full_width_is_exhaustive,
]


OF_PARTS = [stepwise_is_full, batched_is_alone, beams_batched_are_beams_alone]  # where a part's own state can fail


def trials() -> list[Any]:
    """Return every law with every case.

    `make test` tries all laws with presets, of edits of one preset the first alone, and with single parts those that
    their own state can break; the other laws are about the state as a whole. `make reliability` tries all with all.
    """
    return [
        pytest.param(law, case, id=f"{law.__name__}-{case.name}", marks=[pytest.mark.full] * (law not in tried(case)))
        for case in CASES
        for law in LAWS
    ]


def tried(case: Case) -> list[Law]:
    """Return the laws that `make test` tries with a case."""
    if not case.name.startswith("preset="):
        return OF_PARTS
    return LAWS[:1] if "narang/" in case.name else LAWS


@pytest.mark.parametrize(("law", "case"), trials())
def test_law_of_decoding_holds(law: Callable[[AutoregressiveModel], None], case: Case) -> None:
    law(built(case))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_scores_are_those_of_the_model(case: Case) -> None:
    model = built(case)
    row, source = ids(1, CONTEXT)[0].tolist(), ROWS[0][1]
    wanted = -read(model, ([0, *row[:-1]], source)).log_softmax(-1)[torch.arange(CONTEXT), torch.tensor(row)]
    if isinstance(model, EncoderDecoder):
        found = nll_given_source(model, [given(model, source)] * 2, [row, row[:3]], 0)
    else:
        found = list(nll_sliding_window(model, [row, row[:3]], ScoringWindows(length=CONTEXT, stride=CONTEXT), 0))  # type: ignore[arg-type]
    assert torch.allclose(found[0].double(), wanted, atol=1e-5)
    assert torch.allclose(found[1].double(), wanted[:3], atol=1e-5)


def test_a_model_that_sees_all_is_refused() -> None:
    for case in (c for c in cases() if not c.stepwise):
        model = loud(case.config)
        with pytest.raises(UsageError):
            write(model, ROWS, GREEDY)
        with pytest.raises(UsageError):
            list(nll_sliding_window(model, [prompt for prompt, _ in ROWS], ScoringWindows(length=4, stride=4), 0))


# --- planted faults ---------------------------------------------------------------------------------------------------


def forget_to_select(patch: pytest.MonkeyPatch) -> None:
    """Keep the first rows of the state, whichever were chosen."""

    def first(self: State, rows: torch.Tensor) -> State:
        return real(self, torch.arange(len(rows)) % len(self.lengths))

    real = State.select
    patch.setattr(State, "select", first)


def draw_by_row(patch: pytest.MonkeyPatch) -> None:
    """Let a row's draw depend on its place in the batch."""

    def choose(self: MultinomialSampling, logits: torch.Tensor, positions: Sequence[RowPosition]) -> Any:
        return real(self, logits, [position._replace(sample=row) for row, position in enumerate(positions)])

    real = MultinomialSampling.choose
    patch.setattr(MultinomialSampling, "choose", choose)


def draw_by_step(patch: pytest.MonkeyPatch) -> None:
    """Let a row's draw depend on how many steps there were, and not on what it holds."""

    def choose(self: MultinomialSampling, logits: torch.Tensor, positions: Sequence[RowPosition]) -> Any:
        counts[0] += 1
        return real(self, logits, [position._replace(past=counts[0]) for position in positions])

    counts, real = [0], MultinomialSampling.choose
    patch.setattr(MultinomialSampling, "choose", choose)


def forget_the_source(patch: pytest.MonkeyPatch) -> None:
    """Find beginnings whatever their source was."""
    real = PrefixCache.find
    patch.setattr(PrefixCache, "find", lambda self, ids, source=None, cache=None: real(self, ids, None, cache))
    stored = PrefixCache.store
    patch.setattr(
        PrefixCache, "store", lambda self, ids, state, source=None, row=0: stored(self, ids, state, None, row)
    )


def take_too_much_back(patch: pytest.MonkeyPatch) -> None:
    """Forget a token that counts, with those that do not."""
    real = State.rewind
    patch.setattr(State, "rewind", lambda self, lengths: real(self, (lengths - 1).clamp(min=1)))


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (forget_to_select, batched_is_alone),
        (forget_to_select, beams_batched_are_beams_alone),
        (draw_by_row, batched_is_alone),
        (draw_by_step, going_on_is_going_through),
        (draw_by_step, stepwise_is_full),
        (forget_the_source, reused_beginnings_are_fresh),
        (take_too_much_back, guessing_changes_nothing),
    ],
    ids=lambda f: f.__name__,
)
def test_a_planted_fault_breaks_the_law(
    fault: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[AutoregressiveModel], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "preset=transformer" if fault is forget_the_source else "preset=first"
    model = opened(next(case for case in CASES if case.name == name))
    law(model)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        law(model)
