"""Beam search finds what a plain search finds, whatever is required of it, and stops early without changing it.

Users of other libraries met the faults that are named here by the number of the report: none of them is ours.
"""

import itertools

import pytest
import torch
from decoding.reference import CONFIGS, END, SOURCES, VOCAB, Plain, find, model, named, requests, search

from heddle.core import ConfigError, UsageError, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import GenerationConfig, complete, generate, stream
from heddle.decoding.runtime import FinishReason, Request, make_requests
from heddle.decoding.runtime import requests as requests_module
from heddle.decoding.sampling import PenaltyConfig
from heddle.decoding.search import BeamSearch, beam, candidates
from heddle.models.networks import AutoregressiveModel, EncoderDecoder

PENALTIES = (0.0, 0.6, 1.0, -0.5)
HOW = GenerationConfig(
    max_tokens=5, stop=(END,), begin=END, samples=2, strategy=BeamSearch(beams=3, length_penalty=0.6)
)

# Everything that changes step scores or who may end, one thing at a time and then together.
WISHES = {
    "repetition": replace(HOW, penalties=PenaltyConfig(repetition=1.7)),
    "praise": replace(HOW, penalties=PenaltyConfig(repetition=0.6)),
    "presence": replace(HOW, penalties=PenaltyConfig(presence=0.8, frequency=0.3)),
    "lifting": replace(HOW, penalties=PenaltyConfig(presence=-2.0, bias=((2, 3.0),))),
    "banned": replace(HOW, penalties=PenaltyConfig(bias=((1, float("-inf")), (2, -0.5)))),
    "least": replace(HOW, min_tokens=3),
    "stops": replace(HOW, stop=(END, 2)),
    "vocab": replace(HOW, vocab=3),
    "all": replace(HOW, min_tokens=2, penalties=PenaltyConfig(repetition=1.2, frequency=0.4, bias=((3, 1.0),))),
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", CONFIGS)
def test_full_width_is_exhaustive_search(name: str, penalty: float) -> None:
    config = GenerationConfig(
        max_tokens=3, stop=(END,), begin=END, samples=64, strategy=BeamSearch(beams=64, length_penalty=penalty)
    )
    made = model(name)
    for request, found in zip(requests(made, [0, 1]), find(made, config, [0, 1]), strict=True):
        wanted = Plain(made, config, request).everything()
        assert {tuple(h.ids): h.score for h in found} == pytest.approx(wanted)
        assert found[0].score == max(h.score for h in found)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", CONFIGS)
def test_narrow_beams_are_those_of_a_plain_search_without_early_stop(name: str, penalty: float) -> None:
    made = model(name, 1)
    config = replace(HOW, strategy=BeamSearch(beams=3, length_penalty=penalty))
    for request, found in zip(requests(made, [0, 1]), find(made, config, [0, 1]), strict=True):
        assert [tuple(h.ids) for h in found] == Plain(made, config, request).beams()


@pytest.mark.parametrize("option", WISHES)
@pytest.mark.parametrize("name", ["recurrent", "pair-attention"])
def test_with_penalties_and_least_lengths_too_beams_are_those_of_a_plain_search(name: str, option: str) -> None:
    made, config = model(name, 3), WISHES[option]
    for request, found in zip(requests(made, [0, 1]), find(made, config, [0, 1]), strict=True):
        plain = Plain(made, replace(config, penalties=_without(config)), request)
        assert [tuple(h.ids) for h in found] == plain.beams()
        for h in found:
            probs = [plain.logprobs(tuple(h.ids[:i]))[id] for i, id in enumerate(h.ids)]
            assert h.logprob == pytest.approx(sum(probs))  # by the model's own probabilities, whatever was wished


def _without(config: GenerationConfig) -> PenaltyConfig:
    """Return the penalties with a ban on ids that stand for nothing, as the plain search does not know of these."""
    if config.vocab is None:
        return config.penalties
    return replace(config.penalties, bias=tuple((id, float("-inf")) for id in range(config.vocab, VOCAB)))


@pytest.mark.parametrize("name", CONFIGS)
def test_one_beam_is_greedy_where_longer_is_not_better(name: str) -> None:
    for seed, penalty in ((0, 0.0), (1, -1.0), (2, 0.0)):
        made = model(name, seed)
        config = GenerationConfig(max_tokens=9, stop=(END,), begin=END)
        greedy = complete(made, requests(made), config)
        one = replace(config, strategy=BeamSearch(beams=1, length_penalty=penalty))
        assert [(h.ids, h.reason) for (h,) in find(made, one)] == [(c.ids, c.reason) for c in greedy]


# --- early stopping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalty", "groups"), [(0.0, 1), (1.0, 1), (2.0, 1), (-0.5, 1), (-2.0, 1), (0.6, 2), (-1.0, 2)]
)
def test_stopping_early_changes_nothing_whatever_the_sign_of_the_penalty_as_in_transformers_pr_20901(
    penalty: float, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs took a score to be best at a length that depends on the sign of the penalty the wrong way round."""
    choice = BeamSearch(beams=4, length_penalty=penalty, groups=groups, diversity=float(groups - 1))
    config = GenerationConfig(max_tokens=12, stop=(END,), begin=END, samples=2, strategy=choice)
    made = [model("recurrent", 2), model("pair-attention", 3), model("recurrent", 4)]
    stopped = [named(find(one, config)) for one in made]
    with monkeypatch.context() as patch:
        patch.setattr(beam.PromptSearch, "is_final", lambda self: not any(self.live))
        assert [named(find(one, config)) for one in made] == stopped


@pytest.mark.parametrize("option", WISHES)
def test_stopping_early_changes_nothing_with_penalties_either(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, made = replace(WISHES[option], max_tokens=12), model("pair-attentive", 1)
    stopped = named(find(made, config))
    monkeypatch.setattr(beam.PromptSearch, "is_final", lambda self: not any(self.live))
    assert named(find(made, config)) == stopped


def test_a_search_goes_on_where_penalties_can_lift_a_sequence_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What repeats itself gains here, so that an early end is overtaken by sequences that were far behind it."""
    praise = PenaltyConfig(presence=-2.0)
    config = GenerationConfig(max_tokens=8, stop=(END,), begin=END, penalties=praise, strategy=BeamSearch(beams=2))
    made = [model("recurrent", seed) for seed in range(6)]
    found = [named(find(one, config, [0])) for one in made]
    assert found == [[list(map(list, Plain(one, config, requests(one, [0])[0]).beams()))] for one in made]
    monkeypatch.setattr(beam.PromptSearch, "rewards", False)
    assert [named(find(one, config, [0])) for one in made] != found


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every later step of a model adds its rows."""
    steps: list[int] = []
    real = AutoregressiveModel.step
    monkeypatch.setattr(
        AutoregressiveModel, "step", lambda self, ids, *a, **k: (steps.append(len(ids)), real(self, ids, *a, **k))[1]
    )
    return steps


def test_the_early_stop_saves_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = model("recurrent"), counted(monkeypatch)
    find(made, GenerationConfig(max_tokens=200, stop=(END,), begin=END, strategy=BeamSearch(beams=2)), [0])
    assert len(steps) < 100


def test_each_row_stops_by_itself_as_in_transformers_pr_38778(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs let finished rows go on until all rows were done, and take what came then."""
    made = model("pair-attention", 1)
    config = GenerationConfig(max_tokens=40, stop=(END,), begin=END, strategy=BeamSearch(beams=2))
    steps = counted(monkeypatch)
    alone = [(named(find(made, config, [row])), len(steps)) for row in range(3)]
    lengths = [count - before for before, (_, count) in zip([0, *(c for _, c in alone)], alone, strict=False)]
    steps.clear()
    together = named(find(made, config))
    assert together == [found[0] for found, _ in alone]
    assert len(set(lengths)) > 1 and len(steps) == max(lengths)
    assert steps[-1] < 6  # rows that are done are read no more


# --- what has no say --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_the_best_is_the_same_in_a_list_of_one_and_of_many_as_in_opennmt_py_1320(name: str) -> None:
    """Theirs gave another first translation where several were requested, with a length penalty."""
    for seed, penalty in ((0, 0.0), (1, 1.0)):
        made = model(name, seed)
        config = GenerationConfig(
            max_tokens=6, stop=(END,), begin=END, samples=4, strategy=BeamSearch(beams=4, length_penalty=penalty)
        )
        lists = find(made, config)
        for samples in (1, 3):
            assert named(find(made, replace(config, samples=samples))) == [ids[:samples] for ids in named(lists)]
        read = SOURCES if isinstance(made, EncoderDecoder) else None
        assert generate(made, [[]] * 3, config, read) == [h.ids for found in lists for h in found]


@pytest.mark.parametrize("name", CONFIGS)
def test_other_rows_have_no_say_as_in_transformers_25455(name: str) -> None:
    """Theirs counted padding as length, so that a longer neighbour changed the ranks."""
    made = model(name)
    config = replace(HOW, samples=3, strategy=BeamSearch(beams=3, length_penalty=3.0))
    prompts = [[END], [END, 1, 2, 3, 1, 2], [END, 3, 3]]
    sources = SOURCES if isinstance(made, EncoderDecoder) else None
    given = make_requests(prompts, sources)
    together = search(made, given, config)
    assert named(together) == [named(search(made, [request], config))[0] for request in given]
    assert named(search(made, given[::-1], config)) == named(together)[::-1]


@torch.no_grad()
def test_a_score_is_the_mean_over_new_tokens_alone_as_in_transformers_26624() -> None:
    """Theirs divided by the length of prompt and new tokens together."""
    made = model("attention")
    config = GenerationConfig(max_tokens=5, stop=(END,), samples=3, strategy=BeamSearch(beams=3, length_penalty=1.0))
    for prompt in ([END], [END, 1, 2], [END, 1, 2, 3, 1, 2]):
        for h in search(made, [Request(prompt)], config)[0]:
            probs = made.logits(torch.tensor([[*prompt, *h.ids]])).log_softmax(-1)[0]
            wanted = sum(float(probs[len(prompt) - 1 + i, id]) for i, id in enumerate(h.ids))
            assert h.logprob == pytest.approx(wanted) and h.score == pytest.approx(wanted / len(h.ids))
            assert (h.reason is FinishReason.STOP) == (h.ids[-1] == END)


@pytest.mark.parametrize("name", CONFIGS)
def test_narrower_beams_never_beat_wider_ones_that_see_everything(name: str) -> None:
    made = model(name, 6)
    config = GenerationConfig(max_tokens=3, stop=(END,), begin=END, strategy=BeamSearch(beams=64, length_penalty=1.0))
    best = [found[0].score for found in find(made, config)]
    for beams in (1, 2, 3, 5):
        narrow = find(made, replace(config, strategy=BeamSearch(beams=beams, length_penalty=1.0)))
        assert all(found[0].score <= most + 1e-12 for found, most in zip(narrow, best, strict=True))


def test_sums_are_exact_in_half_precision_too() -> None:
    made = model("pair-attention").bfloat16()
    (found,) = find(made, replace(HOW, max_tokens=3), [0])
    assert found[0].score == pytest.approx(found[0].logprob / len(found[0].ids) ** 0.6)


# --- constraints ------------------------------------------------------------------------------------------------------


class Turns:
    """A constraint: never one id twice in a row, and no end before `least` tokens; over after `most`."""

    def __init__(self, least: int = 0, most: int = 99, emitted: tuple[int, ...] = ()) -> None:
        self.least, self.most, self.emitted = least, most, emitted

    def allowed(self) -> torch.Tensor:
        mask = torch.ones(VOCAB, dtype=torch.bool)
        mask[list(self.emitted[-1:])] = False
        mask[END] = len(self.emitted) >= self.least
        return mask

    def advance(self, id: int) -> "Turns":
        return Turns(self.least, self.most, (*self.emitted, id))

    @property
    def finished(self) -> bool:
        return len(self.emitted) == self.most


@pytest.mark.parametrize("constraint", [Turns(), Turns(least=3), Turns(most=2), Turns(least=9)])
@pytest.mark.parametrize("name", ["recurrent", "pair-attention"])
def test_constrained_beams_are_those_of_a_plain_search(name: str, constraint: Turns) -> None:
    made = model(name, 2)
    for request, found in zip(
        requests(made, constraint=constraint), find(made, HOW, constraint=constraint), strict=True
    ):
        assert [tuple(h.ids) for h in found] == Plain(made, HOW, request).beams()
        assert all(a != b for h in found for a, b in itertools.pairwise(h.ids))


class Threes(Turns):
    """A constraint: no end but after the id 3."""

    def allowed(self) -> torch.Tensor:
        mask = torch.ones(VOCAB, dtype=torch.bool)
        mask[END] = self.emitted[-1:] == (3,)
        return mask

    def advance(self, id: int) -> "Threes":
        return Threes(emitted=(*self.emitted, id))


def test_sequences_that_are_broken_off_come_after_all_that_may_end_where_they_do() -> None:
    config = replace(HOW, max_tokens=3, samples=3, strategy=BeamSearch(beams=3))
    seen = set[tuple[tuple[bool, ...], bool]]()
    for name, seed in itertools.product(("attention", "recurrent"), range(8)):
        made = model(name, seed)
        (request,), (found,) = requests(made, [0], constraint=Threes()), find(made, config, [0], constraint=Threes())
        assert [tuple(h.ids) for h in found] == Plain(made, config, request).beams()
        whole = tuple(h.reason is FinishReason.STOP or h.ids[-1] == 3 for h in found)
        assert whole == tuple(sorted(whole, reverse=True))
        seen.add((whole, found == sorted(found, key=lambda h: -h.score)))
    assert any(not in_order for _, in_order in seen)  # somewhere the better score came later


def test_a_constraint_that_is_over_ends_a_sequence() -> None:
    made = model("attention", 2)
    (found,) = find(made, replace(HOW, samples=3), [0], constraint=Turns(most=2))
    assert {h.reason for h in found} == {FinishReason.STOP} and all(len(h.ids) <= 2 for h in found)


def test_constraints_of_some_rows_leave_the_others_alone() -> None:
    made = model("pair-attention", 2)
    free, led = requests(made), requests(made, constraint=Turns())
    mixed = [free[0], led[1], free[2]]
    wanted = named([*search(made, free, HOW)[:1], *search(made, led, HOW)[1:2], *search(made, free, HOW)[2:]])
    assert named(search(made, mixed, HOW)) == wanted


class Nothing(Turns):
    """A constraint after which nothing may follow, from the second token on."""

    def allowed(self) -> torch.Tensor:
        return torch.zeros(VOCAB, dtype=torch.bool) if self.emitted else super().allowed()

    def advance(self, id: int) -> "Nothing":
        return Nothing(emitted=(*self.emitted, id))


def test_sequences_after_which_nothing_may_follow_are_stuck() -> None:
    made = model("attention")
    never = replace(HOW, samples=1, penalties=PenaltyConfig(bias=((END, float("-inf")),)))
    (found,) = find(made, never, [0], constraint=Nothing())
    assert [(len(h.ids), h.reason) for h in found] == [(1, FinishReason.STUCK)]
    (found,) = find(made, HOW, [0], constraint=Turns(most=0, least=9))  # over before it began, though the model goes on
    assert all(len(h.ids) > 0 for h in found)
    (found,) = find(made, replace(never, penalties=PenaltyConfig(bias=tuple((i, -torch.inf) for i in range(VOCAB)))))[
        :1
    ]
    assert [(h.ids, h.reason) for h in found] == [([], FinishReason.STUCK)]


def test_candidates_that_end_by_a_constraint_do_not_starve_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every id ends the text, so that the first candidates are all used up before the beams are full."""

    class Endless(Turns):
        def allowed(self) -> torch.Tensor:
            return torch.ones(40, dtype=torch.bool)

        def advance(self, id: int) -> "Endless":
            return Endless(emitted=(*self.emitted, id))

        @property
        def finished(self) -> bool:
            return bool(self.emitted) and self.emitted[-1] > 3

    monkeypatch.setattr(candidates, "CHUNK", 7)
    for name, seed in itertools.product(("attention", "pair-attention"), range(2)):
        made = model(name, seed, vocab=40)
        rare = PenaltyConfig(bias=tuple((id, -3.0) for id in (1, 2, 3)))  # what goes on is hardly ever among the first
        config = replace(HOW, max_tokens=3, penalties=rare, strategy=BeamSearch(beams=3, length_penalty=4.0))
        for request, found in zip(
            requests(made, constraint=Endless()), find(made, config, constraint=Endless()), strict=True
        ):
            assert [tuple(h.ids) for h in found] == Plain(made, config, request).beams()


# --- time, capacity, refusals -----------------------------------------------------------------------------------------


def test_after_the_seconds_sequences_end_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("pair-attention", 2)
    ticks = iter(range(99))
    monkeypatch.setattr(requests_module.time, "monotonic", lambda: next(ticks))
    config = GenerationConfig(
        max_tokens=30, stop=(END,), begin=END, min_tokens=20, seconds=4.0, samples=2, strategy=BeamSearch(beams=2)
    )
    found = find(made, config)
    assert {h.reason for best in found for h in best} == {FinishReason.TIME}
    assert {len(h.ids) for best in found for h in best} == {4}
    same = find(made, replace(config, seconds=None, max_tokens=4, min_tokens=4))
    assert named(found) == named(same)


def test_capacity_grows_with_the_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GenerationConfig(max_tokens=9, begin=END, samples=3, strategy=BeamSearch(beams=3))
    wanted = named(find(model("pair-attention"), config))
    monkeypatch.setattr("heddle.decoding.runtime.prefill.SPARE", 1)
    assert named(find(model("pair-attention"), config)) == wanted


def test_what_beams_cannot_mean_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature: not used by beam search"):
        generation_config({"beams": 2, "temperature": 1.0})
    with pytest.raises(ConfigError, match="samples: want at most the 2 beams"):
        GenerationConfig(samples=3, strategy=BeamSearch(beams=2))
    with pytest.raises(ConfigError, match="length_penalty"):
        BeamSearch(length_penalty=float("nan"))
    with pytest.raises(UsageError, match="samples: want at most 4"):  # of one token there are four sequences
        generate(
            model("attention"), [[]], GenerationConfig(max_tokens=1, begin=END, samples=9, strategy=BeamSearch(beams=9))
        )


def test_the_stream_of_beams_is_their_best() -> None:
    made, config = (
        model("pair-recurrent"),
        GenerationConfig(max_tokens=5, stop=(END,), begin=END, strategy=BeamSearch(beams=3)),
    )
    assert list(stream(made, [], config, SOURCES[0])) == find(made, config, [0])[0][0].ids
