"""R28, sampling: every draw lies in the support that the settings leave, and draws follow the exact odds.

What should come is worked out in plain Python from the model's full scores; what comes is written by `generate`, two
tokens for each of many samples, so that filters, keys, state and samples are all on trial.
"""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from laws.cases import SMALL

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, generate
from heddle.decoding.sampling import PenaltyConfig
from heddle.models.networks import LanguageModel, LanguageModelConfig
from heddle.models.presets import preset

VOCAB, PROMPT, BATCH = 7, [1, 2, 1], 1_000
SETTINGS = {
    "greedy": GenerationConfig(),
    "plain": GenerationConfig(strategy=MultinomialSampling()),
    "cold": GenerationConfig(strategy=MultinomialSampling(temperature=0.5)),
    "hot": GenerationConfig(strategy=MultinomialSampling(temperature=1.8)),
    "top-k": GenerationConfig(strategy=MultinomialSampling(top_k=3)),
    "top-p": GenerationConfig(strategy=MultinomialSampling(top_p=0.75)),
    "min-p": GenerationConfig(strategy=MultinomialSampling(min_p=0.15)),
    "typical": GenerationConfig(strategy=MultinomialSampling(typical=0.6)),
    "combined": GenerationConfig(
        strategy=MultinomialSampling(temperature=1.4, top_k=6, top_p=0.95, min_p=0.02, typical=0.9)
    ),
    "penalized": GenerationConfig(
        strategy=MultinomialSampling(temperature=0.9, top_p=0.9),
        penalties=PenaltyConfig(repetition=1.3, presence=0.4, frequency=0.5, bias=((0, 1.0), (4, -math.inf))),
    ),
}


def model(name: str) -> LanguageModel:
    """Build a small model whose odds are neither even nor sure."""
    config = preset(name).config(vocab=VOCAB, context=8, **SMALL[name])
    assert isinstance(config, LanguageModelConfig)
    made = config.build(1).double().eval()
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.25 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return made


# --- what should come -------------------------------------------------------------------------------------------------


def normal(odds: dict[int, float]) -> dict[int, float]:
    return {id: p / sum(odds.values()) for id, p in odds.items()}


def heaviest(odds: dict[int, float], order: list[int], mass: float) -> dict[int, float]:
    """Keep the first ids of an order, the fewest whose mass is enough."""
    kept, total = {}, 0.0
    for id in order:
        if total >= mass:
            break
        kept[id], total = odds[id], total + odds[id]
    return normal(kept)


def filtered(odds: dict[int, float], choice: MultinomialSampling) -> dict[int, float]:
    """Apply the filters by their definitions."""
    odds = normal({id: p ** (1 / choice.temperature) for id, p in odds.items()})
    best = sorted(odds, key=lambda id: -odds[id])
    if choice.top_k is not None:
        odds = normal({id: odds[id] for id in best[: choice.top_k]})
    if choice.top_p is not None:
        odds = heaviest(odds, [id for id in best if id in odds], choice.top_p)
    if choice.min_p is not None:
        odds = normal({id: p for id, p in odds.items() if p >= choice.min_p * max(odds.values())})
    if choice.typical is not None:
        entropy = -sum(p * math.log(p) for p in odds.values())
        odds = heaviest(odds, sorted(odds, key=lambda id: abs(-math.log(odds[id]) - entropy)), choice.typical)
    return odds


@torch.no_grad()
def exact(made: LanguageModel, config: GenerationConfig, new: list[int]) -> dict[int, float]:
    """Return the odds of the token after some new ones."""
    scores = made.logits(torch.tensor([PROMPT + new]))[0, -1].tolist()
    penalties, bias = config.penalties, dict(config.penalties.bias)
    for id in range(VOCAB):
        scores[id] += bias.get(id, 0.0)
        if id in PROMPT + new:
            scores[id] *= penalties.repetition if scores[id] < 0 else 1 / penalties.repetition
        scores[id] -= penalties.presence * (id in new) + penalties.frequency * new.count(id)
    if not isinstance(config.strategy, MultinomialSampling):
        return {scores.index(max(scores)): 1.0}
    return filtered(normal({id: math.exp(s) for id, s in enumerate(scores) if s > -math.inf}), config.strategy)


def pairs(made: LanguageModel, config: GenerationConfig) -> dict[tuple[int, int], float]:
    """Return the odds of every pair of new tokens."""
    first = exact(made, config, [])
    return {(a, b): p * q for a, p in first.items() for b, q in exact(made, config, [a]).items()}


# --- what comes -------------------------------------------------------------------------------------------------------


def drawn(made: LanguageModel, config: GenerationConfig, draws: int) -> Counter[tuple[int, ...]]:
    """Count the pairs of so many samples, a batch of one seed at a time."""
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(-(-draws // BATCH)):
        choice = (
            replace(config.strategy, seed=seed) if isinstance(config.strategy, MultinomialSampling) else config.strategy
        )
        samples = min(BATCH, draws - seed * BATCH)
        rows = generate(made, [PROMPT], replace(config, strategy=choice, samples=samples, max_tokens=2))
        found.update(tuple(row) for row in rows)
    return found


def p_value(found: Counter[tuple[int, ...]], wanted: dict[tuple[int, int], float]) -> float:
    """Return how often chance alone strays as far (Pearson 1900); what is rarer than five counts as one kind."""
    draws = found.total()
    common = [pair for pair in wanted if wanted[pair] * draws >= 5]
    cells = [(found[pair], wanted[pair] * draws) for pair in common]
    rest = draws - sum(count for count, _ in cells), draws - sum(mean for _, mean in cells)
    cells += [rest] if rest[1] > 1e-6 else []
    if len(cells) == 1:
        return 1.0
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


def trial(name: str, draws: int) -> None:
    made, least, outside = model(name), 1.0, 0
    for setting, config in SETTINGS.items():
        wanted, found = pairs(made, config), drawn(made, config, draws)
        strays = sum(count for pair, count in found.items() if pair not in wanted)
        chance = p_value(found, wanted)
        assert strays == 0, f"{setting}: {strays} draws outside of the support"
        assert chance > 0.001, f"{setting}: p = {chance:.2g}"
        assert found.total() == draws
        least, outside = min(least, chance), outside + strays
    told = f"{len(SETTINGS)} settings x {2 * draws:,} draws ({draws:,} samples of 2 tokens)"
    print(f"R28 sampling, {name}: {told}, {outside} outside of the support, least p {least:.3f}")


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_r28_draws_stay_in_their_support_and_follow_the_odds(name: str) -> None:
    trial(name, 2_000)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_r28_draws_stay_in_their_support_and_follow_the_odds_at_full_size(name: str) -> None:
    trial(name, 50_000)


@pytest.mark.parametrize("setting", SETTINGS)
def test_r28_settings_bite_and_the_test_notices_the_wrong_one(setting: str) -> None:
    made = model("gpt2")
    wanted, found = pairs(made, SETTINGS[setting]), drawn(made, SETTINGS[setting], 4_000)
    for other in SETTINGS.keys() - {setting}:
        wrong = pairs(made, SETTINGS[other])
        assert any(pair not in wrong for pair in found) or p_value(found, wrong) < 0.001, other
    assert all(abs(sum(odds.values()) - 1) < 1e-9 for odds in [wanted])


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_r28_seeded_samples_repeat_and_are_the_same_in_a_batch_and_alone(name: str) -> None:
    made = model(name)
    for config in (SETTINGS[setting] for setting in ("greedy", "combined", "penalized")):
        prompts, several = [PROMPT, [3], [5, 0, 4, 4]], replace(config, samples=3, max_tokens=4)
        found = generate(made, prompts, several)
        assert generate(made, prompts, several) == found
        for row, sample in product(range(3), range(3)):
            (alone, *_) = generate(made, prompts[row : row + 1], replace(several, samples=sample + 1))[sample:]
            assert alone == found[3 * row + sample]
