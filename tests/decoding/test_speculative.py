"""Speculative decoding: proposals change the speed alone, whatever else is requested; and what cannot be is refused."""

import random
from collections.abc import Sequence

import pytest
import torch
from laws.cases import SMALL, pair

from heddle.core import ConfigError, UsageError, replace
from heddle.decoding.generation import Completion, ContrastiveSearch, GenerationConfig, MultinomialSampling, complete
from heddle.decoding.runtime import CaptureMode, FinishReason, PrefixCache, Request, cuda_graphs
from heddle.decoding.sampling import PenaltyConfig
from heddle.decoding.search import BeamSearch
from heddle.decoding.speculative import Draft, LookupDraft, ModelDraft, block_decoder, speculate
from heddle.decoding.speculative.drafts import NgramIndex, SpeculativeRow
from heddle.models.networks import AutoregressiveModel
from heddle.models.presets import preset
from heddle.nn.state import State

VOCAB = 11
REQUESTS = [Request([1, 2, 3, 1, 2]), Request([4]), Request([7, 7, 7, 0, 3, 5])]


@pytest.fixture(params=["growing", "fixed"], autouse=True)
def states(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows go on states that grow with them, or on some of fixed size that must be changed on the way."""
    if request.param == "fixed":
        monkeypatch.setattr(block_decoder, "AHEAD", 2)
        monkeypatch.setattr(cuda_graphs, "BUCKET", 4)
        monkeypatch.setattr(cuda_graphs, "requested_mode", lambda model, start, config: CaptureMode.CAPTURED)


def model(name: str = "gpt2", seed: int = 0, **dials: int) -> AutoregressiveModel:
    made = (
        preset(name)
        .config(**{"vocab": VOCAB, "context": 40} | SMALL[name.split("-")[0]] | dials)
        .build(seed)
        .double()
        .eval()
    )
    assert isinstance(made, AutoregressiveModel)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw, dtype=weight.dtype)
    return made


def speculated(
    made: AutoregressiveModel, config: GenerationConfig, draft: Draft, requested: Sequence[Request] = REQUESTS
) -> list[Completion]:
    rows = [[] for _ in range(len(requested) * config.samples)]  # type: ignore[var-annotated]
    for step in speculate(made, requested, config, draft):
        rows[step.row].append(step)
    return [Completion.from_steps(row) for row in rows]


class Odd:
    """A constraint that allows odd ids only, and at last one even id to end with."""

    def __init__(self, left: int = 6) -> None:
        self.left = left

    def allowed(self) -> torch.Tensor:
        return torch.arange(VOCAB) % 2 == (1 if self.left else 0)

    def advance(self, id: int) -> "Odd":
        assert bool(self.allowed()[id]), "a guide is told of ids that it allows"
        return Odd(self.left - 1)

    @property
    def finished(self) -> bool:
        return self.left < 0


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(max_tokens=9),
        GenerationConfig(max_tokens=1),
        GenerationConfig(max_tokens=9, stop=(2, 5), min_tokens=4),
        GenerationConfig(
            max_tokens=9, penalties=PenaltyConfig(repetition=1.7, frequency=0.8, bias=((3, 1.0), (1, -9.0)))
        ),
        GenerationConfig(max_tokens=9, logprobs=3),
        GenerationConfig(max_tokens=9, chunk=2, vocab=8),
    ],
    ids=["plain", "one", "stops", "penalties", "alternatives", "chunks"],
)
@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_greedy_rows_are_those_of_plain_generation(name: str, config: GenerationConfig) -> None:
    made, wanted = model(name), complete(model(name), REQUESTS, config)
    for draft in (ModelDraft(model=model("gru_lm", 1)), ModelDraft(model=made, ahead=3), LookupDraft(ahead=5)):
        found = speculated(made, config, draft)
        assert [(c.ids, c.reason) for c in found] == [(c.ids, c.reason) for c in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs)
            assert [[id for id, _ in top] for top in one.alternatives] == [
                [id for id, _ in top] for top in other.alternatives
            ]


def test_looked_up_draws_are_those_of_plain_generation_seed_for_seed() -> None:
    for seed in range(3):
        config = GenerationConfig(max_tokens=12, samples=2, strategy=MultinomialSampling(seed=seed, top_p=0.95))
        assert speculated(model(), config, LookupDraft()) == complete(model(), REQUESTS, config)


def test_drawn_proposals_do_not_depend_on_the_other_rows() -> None:
    made, draft = model(), ModelDraft(model=model("gpt2", 1), ahead=3)
    config = GenerationConfig(
        max_tokens=10, samples=2, strategy=MultinomialSampling(temperature=1.2, seed=4), stop=(6,)
    )
    together = speculated(made, config, draft)
    assert together == speculated(made, config, draft)
    assert together == [row for one in REQUESTS for row in speculated(made, config, draft, [one])]
    other = replace(config, strategy=MultinomialSampling(temperature=1.2, seed=5))
    assert together != speculated(made, other, draft)


def test_a_draft_of_the_same_opinion_is_always_right_and_saves_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    made, twin, steps = model(), model(), [0]
    real = made.step

    def counted(inputs: torch.Tensor, state: State, lengths: torch.Tensor | None = None) -> object:
        steps[0] += 1
        return real(inputs, state, lengths)

    monkeypatch.setattr(made, "step", counted)
    for choice in (GenerationConfig().strategy, MultinomialSampling(seed=3)):
        steps[0], draft = 0, ModelDraft(model=twin, ahead=4)
        speculated(made, GenerationConfig(max_tokens=21, strategy=choice), draft)
        assert steps == [1 + 4]  # the prompts, then 5 tokens for each reading
        assert draft.tally.proposed == draft.tally.accepted == 3 * 16
        assert draft.tally.rate == 1.0


def test_constraints_are_obeyed_and_refused_only_of_what_they_allow() -> None:
    made, requested = model(), [replace(one, constraint=Odd()) for one in REQUESTS]
    for draft in (ModelDraft(model=model("gpt2", 1), ahead=4), LookupDraft(ahead=4)):
        config = GenerationConfig(max_tokens=12)
        found = speculated(made, config, draft, requested)
        assert found == complete(made, requested, config)
        assert all(row.reason is FinishReason.STOP for row in found)
        drawn = speculated(made, replace(config, strategy=MultinomialSampling(temperature=3.0)), draft, requested)
        assert all([id % 2 for id in row.ids] == [1] * 6 + [0] for row in drawn)


def test_a_stop_criterion_ends_a_row_among_its_proposals() -> None:
    made, config = model(), GenerationConfig(max_tokens=12)
    wanted = complete(made, REQUESTS, config, should_stop=lambda row, id: id == 3)
    rows: list[list[int]] = [[], [], []]
    for step in speculate(made, REQUESTS, config, ModelDraft(model=made), should_stop=lambda row, id: id == 3):
        assert step.id is not None
        rows[step.row].append(step.id)
    assert rows == [one.ids for one in wanted]


def test_rows_end_at_the_context_and_drafts_may_have_a_shorter_one() -> None:
    made, config = model(context=12), GenerationConfig(max_tokens=30)
    wanted = complete(made, REQUESTS, config)
    assert {row.reason for row in wanted} == {FinishReason.CONTEXT}
    for draft in (ModelDraft(model=made), ModelDraft(model=model("gpt2", 1, context=8)), LookupDraft()):
        assert speculated(made, config, draft) == wanted


def test_a_language_model_may_propose_for_an_encoder_decoder() -> None:
    made = replace(pair(), vocab=VOCAB).build(0).double().eval()
    requested = [Request([0], [1, 2, 3, 1]), Request([0, 1], [4])]
    wanted = complete(made, requested, GenerationConfig(max_tokens=8))
    for draft in (ModelDraft(model=model()), ModelDraft(model=made), LookupDraft()):
        assert speculated(made, GenerationConfig(max_tokens=8), draft, requested) == wanted


def looked_up(ids: list[int], source: list[int] | None, count: int, longest: int = 2) -> list[int]:
    """Return what is guessed after ids that came one by one."""
    index, line = NgramIndex(longest, source), SpeculativeRow(None, ids[:1], source)  # type: ignore[arg-type]
    for id in ids[1:]:
        index.update(line)
        line.ids.append(id)
    index.update(line)
    return index.lookup(count)


def searched(ids: list[int], source: list[int] | None, count: int, longest: int) -> list[int]:
    """Guess in the plainest way: search all that was said, from its end."""
    seen = [*(source or ()), *ids]
    for length in range(min(longest, len(seen) - 1), 0, -1):
        for start in range(len(seen) - length - 1, -1, -1):
            if seen[start : start + length] == seen[-length:]:
                for place in range(start + length, start + length + count):
                    seen.append(seen[place])
                return seen[len(seen) - count :]
    return []


def test_what_followed_the_longest_match_is_looked_up() -> None:
    assert looked_up([1, 2, 3, 9, 2, 4, 1, 2], None, 4) == [3, 9, 2, 4]
    assert looked_up([5, 2], [1, 2, 8], 2) == [8, 5]
    assert looked_up([9, 4, 6, 4, 6], None, 5) == [4, 6, 4, 6, 4]  # on and on
    assert looked_up([5], None, 2) == []


def test_looking_up_finds_what_searching_finds() -> None:
    draw = random.Random(0)
    for _ in range(300):
        ids = draw.choices(range(4), k=draw.randint(1, 25))
        source = draw.choice([None, [], draw.choices(range(4), k=6)])
        longest, count = draw.randint(1, 4), draw.randint(1, 6)
        assert looked_up(ids, source, count, longest) == searched(ids, source, count, longest)


def test_looking_up_costs_the_same_however_long_the_row_is() -> None:
    class Counted(list[int]):
        """A list that counts the ids that are read of it."""

        read = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            found = super().__getitem__(at)
            Counted.read += len(found) if isinstance(at, slice) else 1
            return found

    draw, index, costs = random.Random(0), NgramIndex(3, None), []
    index.ids, line = Counted(), SpeculativeRow(None, Counted([0]), None)  # type: ignore[arg-type]
    for _ in range(2000):
        before = Counted.read
        index.update(line)
        index.lookup(4)
        costs.append(Counted.read - before)
        line.ids.append(draw.randrange(50))
    assert max(costs[-100:]) <= max(costs[100:200]) <= 20


def test_proposals_go_round_in_the_ring_of_a_window(request: pytest.FixtureRequest) -> None:
    made, other = (model("mistral-7b", seed, context=64) for seed in (0, 1))
    config = GenerationConfig(max_tokens=36)  # the ring has capacity for 21
    wanted = complete(made, REQUESTS, config)
    for draft in (LookupDraft(ahead=16), ModelDraft(model=other, ahead=3)):
        assert speculated(made, config, draft) == wanted
    kept = cuda_graphs._CACHED.get(made, {}).values()
    assert any(isinstance(one, block_decoder.StaticBlocks) for one in kept) == ("fixed" in request.node.callspec.id)


def test_what_was_read_last_does_no_harm_when_all_is_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(act: cuda_graphs.CapturedGraph[object], made: AutoregressiveModel) -> None:
        for _ in range(2):
            act._call(made)  # as a GPU does before it records

    monkeypatch.setattr(cuda_graphs.CapturedGraph, "recapture", tried)
    made, config = model(context=40), GenerationConfig(max_tokens=12)
    running = speculate(made, [Request([1, 2, 3, 1, 2]), Request([4])], config, LookupDraft())
    for _ in range(6):
        next(running)
    running.close()
    for weight in made.parameters():
        weight.data = weight.data.clone()  # elsewhere
    requested = [Request([1, 2] * 19), Request([1, 2, 1])]
    assert speculated(made, config, LookupDraft(), requested) == complete(made, requested, config)


def test_a_draft_that_is_refused_costs_nothing_that_was_kept() -> None:
    made, config = model(), GenerationConfig(max_tokens=9)
    speculated(made, config, LookupDraft())
    kept = list(cuda_graphs._CACHED.get(made, {}).values())
    with pytest.raises(UsageError, match="draft: want the model's vocabulary"):
        speculated(made, config, ModelDraft(model=model("gpt2", vocab=23)))
    assert list(cuda_graphs._CACHED.get(made, {}).values()) == kept


def test_longer_rows_beside_others_leave_these_their_tables() -> None:
    made, config = model("llama", context=64), GenerationConfig(max_tokens=30)
    alone = speculated(made, config, LookupDraft(), [Request([1, 2, 1])])
    running = speculate(made, [Request([1, 2, 1])], config, LookupDraft())
    first = [next(running)]
    speculated(made, GenerationConfig(max_tokens=20), LookupDraft(), [Request([3] * 40)])
    assert Completion.from_steps([*first, *running]) == alone[0]


def test_what_was_captured_is_kept_for_the_next_rows(request: pytest.FixtureRequest) -> None:
    made, config, draft = model(), GenerationConfig(max_tokens=9), ModelDraft(model=model("gpt2", 1))
    first = speculated(made, config, draft)
    kept = list(cuda_graphs._CACHED.get(made, {}).values())
    assert speculated(made, config, draft) == first
    assert list(cuda_graphs._CACHED.get(made, {}).values()) == kept
    assert bool(kept) == ("fixed" in request.node.callspec.id)
    made.train()
    places = [weight.data_ptr() for weight in made.parameters()]
    assert speculated(made, config, draft) == first and made.training
    assert places == [weight.data_ptr() for weight in made.parameters()]


def test_prefixes_and_drafts_go_together() -> None:
    made, config = model(), GenerationConfig(max_tokens=6)
    store, wanted = PrefixCache(made), complete(made, REQUESTS, config)
    for _ in range(2):
        rows: list[list[int]] = [[], [], []]
        for step in speculate(made, REQUESTS, config, LookupDraft(), prefix_cache=store):
            assert step.id is not None
            rows[step.row].append(step.id)
        assert rows == [one.ids for one in wanted]
    assert store.reused_tokens == 4 + 5


def test_what_cannot_be_proposed_is_refused_in_one_line() -> None:
    made = model()
    with pytest.raises(UsageError, match="draft: want the model's vocabulary of 11 ids, got 23"):
        speculated(made, GenerationConfig(), ModelDraft(model=model("gpt2", vocab=23)))
    for choice in (BeamSearch(), ContrastiveSearch()):
        with pytest.raises(UsageError, match="draft: want sampling or greedy decoding"):
            speculated(made, GenerationConfig(strategy=choice), LookupDraft())
    with pytest.raises(UsageError, match="draft: want a language model"):
        speculated(made, GenerationConfig(max_tokens=3), ModelDraft(model=replace(pair(), vocab=VOCAB).build(0)))
    for ahead in (0, 17, 1.5):
        with pytest.raises(ConfigError, match="ahead"):
            LookupDraft(ahead=ahead)
    with pytest.raises(ConfigError, match="longest"):
        LookupDraft(longest=0)
    assert speculated(made, GenerationConfig(), LookupDraft(), []) == []
