"""Generation ends where it should, refuses what it cannot read, and leaves the model as it was."""

import math
from dataclasses import dataclass
from itertools import count

import pytest
import torch
from jaxtyping import Bool
from laws.cases import CONTEXT, VOCAB, of_presets

from heddle.core import UsageError, replace
from heddle.decoding.generation import (
    ContrastiveSearch,
    GenerationConfig,
    GreedySearch,
    MultinomialSampling,
    complete,
    follow,
    generate,
    stream,
)
from heddle.decoding.runtime import FinishReason, Request, has_kv_cache, make_requests, prefill
from heddle.decoding.runtime import requests as requests_module
from heddle.decoding.scoring import ScoringWindows, nll_sliding_window
from heddle.decoding.search import BeamSearch
from heddle.models.networks import LanguageModel, LanguageModelConfig
from heddle.nn.positions import SinusoidalPositionConfig

CONFIGS = {
    case.name.removeprefix("preset="): case.config
    for case in of_presets()
    if isinstance(case.config, LanguageModelConfig) and case.stepwise
}


def model(name: str) -> LanguageModel:
    return CONFIGS[name].build(3).double().eval()


def test_the_stop_is_the_last_id() -> None:
    config = GenerationConfig(max_tokens=40, strategy=MultinomialSampling())
    free = generate(model("first"), [[1]], config)[0]
    stop = free[5]
    found = complete(
        model("first"),
        make_requests([[1]]),
        GenerationConfig(max_tokens=40, strategy=MultinomialSampling(), stop=(stop,)),
    )[0]
    assert found.ids == free[: free.index(stop) + 1]
    assert found.reason is FinishReason.STOP


def test_rows_of_one_seed_draw_apart_though_their_probabilities_are_the_same() -> None:
    """To a model that knows nothing, texts after different prompts agree as often as chance has it."""
    made = model("first")
    with torch.no_grad():
        for weight in made.parameters():
            weight.zero_()
    prompts = [[a, b] for a in range(5) for b in range(5)]
    found = torch.tensor(generate(made, prompts, GenerationConfig(max_tokens=20, strategy=MultinomialSampling(seed=1))))
    alike = (found[:, None] == found).double().mean(-1).fill_diagonal_(0).sum() / (len(found) * (len(found) - 1))
    assert alike.item() == pytest.approx(1 / VOCAB, abs=0.02)
    assert (
        generate(made, [[0, 1]] * 2, GenerationConfig(max_tokens=20, strategy=MultinomialSampling(seed=1)))
        == found[[1, 1]].tolist()
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_ends_at_the_context_and_recurrence_goes_on(name: str) -> None:
    prompts, config = [[1], [1, 2, 3]], GenerationConfig(max_tokens=2 * CONTEXT)
    found = complete(model(name), make_requests(prompts), config)
    if has_kv_cache(model(name).decoder_tower):
        # the last token needs no position of its own: nothing is read after it
        assert [len(c.ids) for c in found] == [CONTEXT, CONTEXT - 2]
        assert {c.reason for c in found} == {FinishReason.CONTEXT}
    else:
        assert [len(c.ids) for c in found] == [2 * CONTEXT] * 2
        assert {c.reason for c in found} == {FinishReason.LENGTH}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_may_fill_the_context_and_attention_takes_no_more(name: str) -> None:
    full = [1] * CONTEXT
    assert len(generate(model(name), [full], GenerationConfig(max_tokens=1))[0]) == 1
    if not has_kv_cache(model(name)):
        assert len(generate(model(name), [[*full, 1]], GenerationConfig(max_tokens=1))[0]) == 1
    else:
        with pytest.raises(UsageError, match=f"{CONTEXT + 1} tokens are more than the model's context of {CONTEXT}"):
            generate(model(name), [full, [*full, 1]], GenerationConfig(max_tokens=1))


def test_an_empty_prompt_begins_from_the_begin_id() -> None:
    config = GenerationConfig(max_tokens=5, begin=4)
    assert generate(model("first"), [[], [4]], config) == [generate(model("first"), [[4]], config)[0]] * 2
    with pytest.raises(UsageError, match="empty prompt"):
        generate(model("first"), [[]], GenerationConfig())


@pytest.mark.parametrize("name", CONFIGS)
def test_capacity_grows_as_rows_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, config = [[1], [1, 2, 3]], GenerationConfig(max_tokens=2 * CONTEXT, strategy=MultinomialSampling())
    wanted = generate(model(name), prompts, config)
    monkeypatch.setattr(prefill, "SPARE", 1)
    assert generate(model(name), prompts, config) == wanted


def test_a_long_option_costs_nothing_by_itself() -> None:
    free = generate(model("first"), [[1]], GenerationConfig(max_tokens=9, strategy=MultinomialSampling()))[0]
    found = generate(
        model("first"), [[1]], GenerationConfig(max_tokens=10**7, strategy=MultinomialSampling(), stop=(free[8],))
    )[0]
    assert found == free[: free.index(free[8]) + 1]


def test_no_prompts_give_no_rows() -> None:
    assert generate(model("first"), [], GenerationConfig()) == []


@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_an_unknown_id_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"got {wrong}"):
        generate(model("first"), [[1, wrong]], GenerationConfig())


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_samples_differ_and_the_first_is_the_one_alone(name: str) -> None:
    prompts = [[1], [2, 3]]
    many = generate(
        model(name), prompts, GenerationConfig(max_tokens=12, strategy=MultinomialSampling(temperature=1.5), samples=3)
    )
    alone = generate(
        model(name), prompts, GenerationConfig(max_tokens=12, strategy=MultinomialSampling(temperature=1.5))
    )
    assert [many[0], many[3]] == alone
    assert len({tuple(row) for row in many}) == 6


def test_a_stop_criterion_ends_its_row_only() -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}

    def should_stop(row: int, id: int) -> bool:
        seen[row].append(id)
        return row == 0 and len(seen[0]) == 2

    found = complete(model("first"), make_requests([[1], [2]]), GenerationConfig(max_tokens=6), should_stop=should_stop)
    assert [c.ids for c in found] == [seen[0], seen[1]]
    assert [len(c.ids) for c in found] == [2, 6]
    assert [c.reason for c in found] == [FinishReason.STOP, FinishReason.LENGTH]


def test_dropout_is_off_while_generating_and_back_afterwards() -> None:
    config = CONFIGS["gpt2"]
    made = config.build(0).double()
    noisy = made.train()
    assert noisy.training
    assert generate(noisy, [[1]], GenerationConfig(max_tokens=4)) == generate(
        made.eval(), [[1]], GenerationConfig(max_tokens=4)
    )
    made.train()
    rows = stream(made, [1], GenerationConfig(max_tokens=4))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert made.training
    made.embedding.eval()  # a part that is kept from dropout by itself stays so
    generate(made, [[1]], GenerationConfig(max_tokens=1))
    assert made.training and not made.embedding.training


def test_streaming_leaves_gradients_on_for_the_one_who_listens() -> None:
    for _ in stream(model("first"), [1], GenerationConfig(max_tokens=3)):
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["first", "sinusoidal", "lstm_lm"])
def test_a_model_still_learns_after_generating_past_its_context(name: str) -> None:
    sinusoidal = replace(CONFIGS["gpt2"], position=SinusoidalPositionConfig())
    made = (sinusoidal if name == "sinusoidal" else CONFIGS[name]).build(0)
    generate(made, [[1]], GenerationConfig(max_tokens=3 * CONTEXT))
    list(nll_sliding_window(made, [[1] * 5 * CONTEXT], ScoringWindows(length=5 * CONTEXT, stride=1), 0))
    made.logits(torch.ones(1, 4, dtype=torch.long)).sum().backward()
    assert all(weight.grad is not None for weight in made.parameters())


def test_generating_within_the_context_grows_no_table() -> None:
    made = model("first")
    before = {name: buffer.shape for name, buffer in made.named_buffers()}
    generate(made, [[1]], GenerationConfig(max_tokens=4))
    assert {name: buffer.shape for name, buffer in made.named_buffers()} == before


# --- time and interruption --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [GreedySearch(), MultinomialSampling(), ContrastiveSearch()], ids=lambda c: c.kind)
def test_rows_end_when_the_time_is_over_with_what_they_have(choice: object, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(GenerationConfig(max_tokens=30), strategy=choice)
    free = generate(model("first"), [[1], [2, 3]], config)
    ticks = count()
    monkeypatch.setattr(requests_module.time, "monotonic", lambda: float(next(ticks)))
    found = complete(model("first"), make_requests([[1], [2, 3]]), replace(config, seconds=3.5))
    assert [c.ids for c in found] == [ids[:4] for ids in free]  # one tick to start, one a token
    assert {c.reason for c in found} == {FinishReason.TIME}


def test_no_time_at_all_still_gives_a_token() -> None:
    (found,) = complete(model("first"), make_requests([[1]]), GenerationConfig(seconds=1e-9))
    assert len(found.ids) == 1 and found.reason is FinishReason.TIME


@pytest.mark.parametrize("choice", [GreedySearch(), ContrastiveSearch()], ids=lambda c: c.kind)
def test_an_interruption_leaves_the_model_as_it_was(choice: object) -> None:
    made, config = CONFIGS["gpt2"].build(0).double().train(), replace(GenerationConfig(max_tokens=6), strategy=choice)
    wanted = generate(made, [[1], [2]], config)

    def interrupt(row: int, id: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(made, make_requests([[1], [2]]), config, should_stop=interrupt)
    assert made.training and not torch.is_inference_mode_enabled()
    assert generate(made, [[1], [2]], config) == wanted


# --- following, probabilities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [GreedySearch(), MultinomialSampling(), BeamSearch(beams=3)], ids=lambda c: c.kind)
def test_following_several_rows_gives_what_completing_does(choice: object) -> None:
    config = replace(GenerationConfig(max_tokens=7, samples=2, stop=(4, 5), logprobs=2), strategy=choice)
    requests = make_requests([[1], [2, 3]])
    rows: dict[int, list[int]] = {row: [] for row in range(4)}
    reasons = {}
    for step in follow(model("first"), requests, config):
        assert step.row not in reasons and step.id is not None and step.logprobs is not None
        rows[step.row].append(step.id)
        if step.reason is not None:
            reasons[step.row] = step.reason
    found = complete(model("first"), requests, config)
    assert [c.ids for c in found] == list(rows.values())
    assert [c.reason for c in found] == [reasons[row] for row in range(4)]


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
@pytest.mark.parametrize(
    "choice",
    [GreedySearch(), MultinomialSampling(temperature=2.0, top_k=5), BeamSearch(beams=3), ContrastiveSearch()],
    ids=lambda c: c.kind,
)
def test_probabilities_are_those_of_the_model_itself(name: str, choice: object) -> None:
    made, prompts = model(name), [[1], [2, 3, 4]]
    config = replace(GenerationConfig(max_tokens=6, logprobs=3, stop=(7,)), strategy=choice)
    for prompt, found in zip(prompts, complete(made, make_requests(prompts), config), strict=True):
        logprobs = made.logits(torch.tensor([prompt + found.ids]))[0].detach().log_softmax(-1)[len(prompt) - 1 : -1]
        wanted = logprobs[torch.arange(len(found.ids)), torch.tensor(found.ids)]
        assert found.logprobs == pytest.approx(wanted.tolist(), abs=1e-6)
        for row, best in zip(logprobs, found.alternatives, strict=True):
            values, ids = row.topk(3)
            assert [id for id, _ in best] == ids.tolist()
            assert [value for _, value in best] == pytest.approx(values.tolist(), abs=1e-6)


def test_probabilities_are_kept_on_request_only() -> None:
    assert complete(model("first"), make_requests([[1]]), GenerationConfig(max_tokens=3))[0].token_logprobs == []
    found = complete(model("first"), make_requests([[1]]), GenerationConfig(max_tokens=3, logprobs=0))[0]
    assert len(found.logprobs) == 3 and found.alternatives == [()] * 3


# --- constraints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sequel:
    """A constraint that allows the ids of one list after another, then the stop or nothing."""

    lists: tuple[frozenset[int], ...]
    stop: int | None = None
    ends: bool = True  # finished when no list is left

    def allowed(self) -> Bool[torch.Tensor, " vocab"]:
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        mask[list(self.lists[0] if self.lists else () if self.stop is None else (self.stop,))] = True
        return mask

    def advance(self, id: int) -> "Sequel":
        assert id in self.lists[0]
        return replace_lists(self, self.lists[1:])

    @property
    def finished(self) -> bool:
        return self.ends and not self.lists


def replace_lists(constraint: Sequel, lists: tuple[frozenset[int], ...]) -> Sequel:
    return Sequel(lists, constraint.stop, constraint.ends)


EVEN, ODD = frozenset(range(0, VOCAB, 2)), frozenset(range(1, VOCAB, 2))
CHOICES = [GreedySearch(), MultinomialSampling(temperature=3.0, top_k=2), ContrastiveSearch()]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.kind)
def test_a_constrained_row_obeys_and_ends_where_its_constraint_does_and_others_are_free(choice: object) -> None:
    config = replace(GenerationConfig(max_tokens=9), strategy=choice)
    constraint = Sequel((EVEN, ODD, frozenset({6}), EVEN))
    requests = [Request([1]), Request([1], constraint=constraint), Request([2, 3], constraint=Sequel((ODD,) * 20))]
    free, ended, cut = complete(model("first"), requests, config)
    assert free.ids == generate(model("first"), [[1]], config)[0]
    assert [id % 2 for id in ended.ids] == [0, 1, 0, 0] and ended.ids[2] == 6 and ended.reason is FinishReason.STOP
    assert {id % 2 for id in cut.ids} == {1} and cut.reason is FinishReason.LENGTH and len(cut.ids) == 9
    assert [c.ids for c in complete(model("first"), requests[1:2], config)] == [ended.ids]


def test_greedy_under_a_constraint_takes_the_best_of_what_is_allowed() -> None:
    scores = model("first").logits(torch.tensor([[1]]))[0, -1].detach()
    wanted = max(ODD, key=lambda id: float(scores[id]))
    (found,) = complete(model("first"), [Request([1], constraint=Sequel((ODD,)))], GenerationConfig())
    assert found.ids == [wanted]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.kind)
def test_a_constraint_that_allows_nothing_ends_its_row_and_no_other(choice: object) -> None:
    config = replace(GenerationConfig(max_tokens=5), strategy=choice)
    stuck = Sequel((EVEN, frozenset(), EVEN))
    free, found = complete(model("first"), [Request([1]), Request([1], constraint=stuck)], config)
    assert len(found.ids) == 1 and found.reason is FinishReason.STUCK
    assert len(free.ids) == 5 and all(math.isfinite(id) for id in free.ids)


def test_a_constraint_that_is_finished_from_the_prefix_ends_its_row_at_once() -> None:
    (found,) = complete(model("first"), [Request([1], constraint=Sequel(()))], GenerationConfig())
    assert found.ids == [] and found.reason is FinishReason.STOP


def test_a_stop_that_the_constraint_allows_ends_the_row_and_is_its_last_id() -> None:
    constraint = Sequel((EVEN, ODD), stop=3, ends=False)
    (found,) = complete(model("first"), [Request([1], constraint=constraint)], GenerationConfig(stop=(3,)))
    assert len(found.ids) in (2, 3) and found.ids[-1] == 3 and found.reason is FinishReason.STOP


def test_samples_obey_one_constraint_each_on_its_own() -> None:
    config = GenerationConfig(max_tokens=6, samples=4, strategy=MultinomialSampling(temperature=5.0))
    found = complete(model("first"), [Request([1], constraint=Sequel((EVEN, ODD, EVEN)))], config)
    assert all([id % 2 for id in c.ids] == [0, 1, 0] for c in found) and len({tuple(c.ids) for c in found}) > 1


@pytest.mark.parametrize("choice", [*CHOICES, BeamSearch(beams=2)], ids=lambda c: c.kind)
def test_a_row_that_ends_without_an_id_is_refused_of_once(choice: object) -> None:
    config = replace(GenerationConfig(max_tokens=5), strategy=choice)
    steps = list(follow(model("first"), [Request([1], constraint=Sequel((frozenset(),)))], config))
    assert [(step.row, step.id, step.reason) for step in steps] == [(0, None, FinishReason.STUCK)]
