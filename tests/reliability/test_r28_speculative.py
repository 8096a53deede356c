"""R28, speculative: what a draft guesses changes the speed alone: tokens follow the model's own odds.

What should come is worked out in plain Python, as for sampling. The draft is another model with odds of its own, so
that many guesses are wrong.
"""

import math
from collections import Counter

import pytest
from reliability.test_r28_sampling import PROMPT, SETTINGS, VOCAB, exact, model, p_value

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, generate
from heddle.decoding.runtime import make_requests
from heddle.decoding.sampling import RowPosition
from heddle.decoding.speculative import Draft, LookupDraft, ModelDraft, speculate
from heddle.models.networks import LanguageModel

BATCH = 1000
DRAFTS = {"gpt2": "lstm_lm", "lstm_lm": "gpt2"}  # a cache guesses for hidden vectors, and the other way round


def sequences(made: LanguageModel, config: GenerationConfig, new: int) -> dict[tuple[int, ...], float]:
    """Return the odds of all that so many new tokens may be."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(new):
        found = {(*ids, id): p * q for ids, p in found.items() for id, q in exact(made, config, list(ids)).items()}
    return found


def written(made: LanguageModel, config: GenerationConfig, draft: Draft) -> list[list[int]]:
    """Return what each sample writes."""
    found: list[list[int]] = [[] for _ in range(config.samples)]
    for step in speculate(made, make_requests([PROMPT]), config, draft):
        assert step.id is not None
        found[step.row].append(step.id)
    return found


def drawn(made: LanguageModel, config: GenerationConfig, draft: Draft, draws: int) -> Counter[tuple[int, ...]]:
    """Count what so many samples write, a batch of one seed at a time."""
    found: Counter[tuple[int, ...]] = Counter()
    assert isinstance(config.strategy, MultinomialSampling)
    for seed in range(-(-draws // BATCH)):
        samples = min(BATCH, draws - seed * BATCH)
        several = replace(config, strategy=replace(config.strategy, seed=seed), samples=samples)
        found.update(tuple(row) for row in written(made, several, draft))
    return found


def trial(name: str, settings: dict[str, int], new: int) -> None:
    """Hold what is written with a draft against the model's own odds, for so many samples of each setting."""
    made, draft = model(name), ModelDraft(model=model(DRAFTS[name]), ahead=2)
    least = 1.0
    for setting, draws in settings.items():
        config = replace(SETTINGS[setting], max_tokens=new)
        wanted, found = sequences(made, config, new), drawn(made, config, draft, draws)
        assert not found.keys() - wanted.keys(), f"{setting}: outside of the support"
        assert found.total() == draws
        least = min(least, p_value(found, wanted))
        assert least > 0.001, f"{setting}: p = {least:.2g}"
    told = f"{len(settings)} settings, {sum(settings.values()):,} samples of {new} tokens"
    print(f"R28 speculative, {name}: {told}, {draft.tally.rate:.0%} of guesses right, least p {least:.3f}")
    assert 0.05 < draft.tally.rate < 0.95, "a draft that is always right, or never, tries nothing"


@pytest.mark.parametrize("name", DRAFTS)
def test_r28_guessed_tokens_follow_the_odds(name: str) -> None:
    trial(name, {"plain": 2_000, "penalized": 150}, new=3)
    trial(name, {"top-k": 2_000}, new=4)  # two guesses at once


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", DRAFTS)
def test_r28_guessed_tokens_follow_the_odds_at_full_size(name: str) -> None:
    settings = {
        setting: 100_000 for setting, config in SETTINGS.items() if isinstance(config.strategy, MultinomialSampling)
    }
    trial(name, settings | {"penalized": 5_000}, new=4)  # one row at a time, for what is penalized differs


def test_r28_a_draft_that_is_believed_too_often_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, draft = model("gpt2"), ModelDraft(model=model("lstm_lm"), ahead=2)
    config = replace(SETTINGS["plain"], max_tokens=3)
    wanted = sequences(made, config, 3)
    real = MultinomialSampling.uniform

    def believed(self: MultinomialSampling, position: RowPosition, use: str = "next") -> float:
        return 0.0 if use == "keep" else real(self, position, use)

    monkeypatch.setattr(MultinomialSampling, "uniform", believed)
    found = drawn(made, config, draft, 2_000)
    assert found.keys() - wanted.keys() or p_value(found, wanted) < 1e-9


@pytest.mark.parametrize("name", DRAFTS)
def test_r28_greedy_and_looked_up_tokens_are_those_of_plain_generation(name: str) -> None:
    made, tokens = model(name), 0
    for config in (replace(config, samples=20, max_tokens=5) for config in SETTINGS.values()):
        plain = generate(made, [PROMPT], config)
        assert written(made, config, LookupDraft(ahead=3, longest=2)) == plain
        tokens += sum(map(len, plain))
        if not isinstance(config.strategy, MultinomialSampling):
            assert written(made, config, ModelDraft(model=model(DRAFTS[name]), ahead=3)) == plain
    print(f"R28 speculative, {name}: {tokens}/{tokens} greedy and looked-up tokens equal")


def test_r28_odds_for_the_trial_add_up() -> None:
    made = model("gpt2")
    found = sequences(made, SETTINGS["plain"], 3)
    assert math.isclose(sum(found.values()), 1.0, rel_tol=1e-9)
    assert len(found) == VOCAB**3
