"""Beam search finds what a plain search finds, stops early without changing it, and refuses what it cannot mean."""

from collections.abc import Sequence

import pytest
import torch
from laws.cases import ATTENTION, CHANNEL, CROSS, pair, small, tower

from heddle.core import ConfigError, UsageError, replace
from heddle.decoding import How, Reason, beam, complete, generate, search, stream
from heddle.models import EncoderDecoder, Predictor, TowerConfig, pre_norm
from heddle.nn import (
    Context,
    FanInInitConfig,
    FirstStateConfig,
    LayerNormConfig,
    LSTMConfig,
    NoPositionConfig,
    RepeatConfig,
)

VOCAB, END = 4, 0
LOUD = FanInInitConfig(embedding=1.0, into_stream=1.0)
CELL = RepeatConfig(body=pre_norm(LSTMConfig(hidden=8), norm=LayerNormConfig()), times=1)
RECURRENT = TowerConfig(plan=CELL)
CONFIGS = {
    "attention": small(RepeatConfig(body=pre_norm(ATTENTION, CHANNEL, norm=LayerNormConfig()), times=1)),
    "recurrent": small(CELL, position=NoPositionConfig()),
    "pair-attention": pair(tower(ATTENTION, CHANNEL), tower(ATTENTION, CROSS, CHANNEL)),
    "pair-recurrent": pair(tower(ATTENTION), RECURRENT, bridge=FirstStateConfig()),
}
SOURCES = [[1, 2, 3, 1, END], [2, END], [3, 3, 1, END]]
PENALTIES = (0.0, 0.6, 1.0, -0.5)


def model(name: str, seed: int = 0) -> Predictor:
    built = replace(CONFIGS[name], vocab=VOCAB, init=LOUD).build(seed).double().eval()
    assert isinstance(built, Predictor)
    return built


def find(made: Predictor, how: How, rows: Sequence[int] = (0, 1, 2)) -> list[list[beam.Hypothesis]]:
    """Search from the beginning, for the sources of some rows where there are any."""
    read = [SOURCES[row] for row in rows] if isinstance(made, EncoderDecoder) else None
    return search(made, [[]] * len(rows), how, read)


def named(found: list[list[beam.Hypothesis]]) -> list[list[list[int]]]:
    """Return the ids alone: log-probabilities may differ in their last bit."""
    return [[h.ids for h in best] for best in found]


class Plain:
    """The plainest searches, which read everything anew for each sequence."""

    @torch.no_grad()
    def __init__(self, made: Predictor, how: How, source: list[int]) -> None:
        self.model, self.how = made, how
        self.memory = made.encode(torch.tensor([source])) if isinstance(made, EncoderDecoder) else None

    @torch.no_grad()
    def odds(self, new: Sequence[int]) -> list[float]:
        scores = self.model.logits(torch.tensor([[END, *new]]), Context(memory=self.memory))
        return scores[0, -1].log_softmax(-1).tolist()

    def over(self, new: Sequence[int]) -> bool:
        return bool(new) and (new[-1] == END or len(new) == self.how.max_tokens)

    def everything(self, new: tuple[int, ...] = (), logprob: float = 0.0) -> dict[tuple[int, ...], float]:
        if self.over(new):
            return {new: self.how.rank(logprob, len(new))}
        found: dict[tuple[int, ...], float] = {}
        for id, odds in enumerate(self.odds(new)):
            found |= self.everything((*new, id), logprob + odds)
        return found

    def beams(self) -> list[tuple[int, ...]]:
        """Search to the last length, never stopping early."""
        live, ended = {(): 0.0}, dict[tuple[int, ...], float]()
        while live:
            grown = {(*new, id): lp + o for new, lp in live.items() for id, o in enumerate(self.odds(new))}
            ranked = sorted(grown, key=lambda new: -grown[new])
            ended |= {new: self.how.rank(grown[new], len(new)) for new in ranked[: self.how.beams] if self.over(new)}
            live = {new: grown[new] for new in [new for new in ranked if not self.over(new)][: self.how.beams]}
        return sorted(ended, key=lambda new: -ended[new])[: self.how.samples]


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", CONFIGS)
def test_full_width_is_exhaustive_search(name: str, penalty: float) -> None:
    how = How(max_tokens=3, stop=(END,), begin=END, beams=64, samples=64, length_penalty=penalty)
    made = model(name)
    for row, found in enumerate(find(made, how, [0, 1])):
        wanted = Plain(made, how, SOURCES[row]).everything()
        assert {tuple(h.ids): h.score for h in found} == pytest.approx(wanted)
        assert found[0].score == max(h.score for h in found)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", CONFIGS)
def test_narrow_beams_are_those_of_a_plain_search_without_early_stop(name: str, penalty: float) -> None:
    made = model(name, 1)
    how = How(max_tokens=5, stop=(END,), begin=END, beams=3, samples=2, length_penalty=penalty)
    for row, found in enumerate(find(made, how, [0, 1])):
        assert [tuple(h.ids) for h in found] == Plain(made, how, SOURCES[row]).beams()


@pytest.mark.parametrize("name", CONFIGS)
def test_one_beam_is_greedy_whatever_the_penalty(name: str) -> None:
    for seed in range(4):
        made = model(name, seed)
        how = How(max_tokens=9, stop=(END,), begin=END)
        read = SOURCES if isinstance(made, EncoderDecoder) else None
        greedy = complete(made, [[]] * 3, how, read)
        assert [(h.ids, h.reason) for (h,) in find(made, how)] == [(c.ids, c.reason) for c in greedy]
        assert complete(made, [[]] * 3, replace(how, length_penalty=1.0), read) == greedy


@pytest.mark.parametrize("penalty", PENALTIES)
def test_stopping_early_changes_nothing(penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    how = How(max_tokens=12, stop=(END,), begin=END, beams=3, samples=2, length_penalty=penalty)
    made = model("pair-attention", 2)
    stopped = named(find(made, how))
    monkeypatch.setattr(beam._Beam, "_settled", lambda self: False)
    assert named(find(made, how)) == stopped


def test_the_early_stop_saves_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = model("recurrent"), list[int]()
    real = Predictor.step
    monkeypatch.setattr(Predictor, "step", lambda *a, **k: (steps.append(1), real(*a, **k))[1])
    find(made, How(max_tokens=200, stop=(END,), begin=END, beams=2), [0])
    assert len(steps) < 100


@pytest.mark.parametrize("name", CONFIGS)
def test_the_best_is_the_same_in_a_list_of_one_and_of_many_and_beside_other_rows(name: str) -> None:
    made = model(name)
    how = How(max_tokens=6, stop=(END,), begin=END, beams=4, samples=4, length_penalty=1.0)
    lists = find(made, how)
    assert [found[0].ids for found in find(made, replace(how, samples=1))] == [found[0].ids for found in lists]
    assert [named(find(made, how, [row]))[0] for row in range(3)] == named(lists)
    read = SOURCES if isinstance(made, EncoderDecoder) else None
    assert generate(made, [[]] * 3, how, read) == [h.ids for found in lists for h in found]


@torch.no_grad()
def test_a_score_is_that_of_the_ids_and_the_prompt_has_no_say() -> None:
    made = model("attention")
    how = How(max_tokens=5, stop=(END,), beams=3, samples=3, length_penalty=1.0)
    for prompt in ([END], [END, 1, 2]):
        for h in search(made, [prompt], how)[0]:
            odds = made.logits(torch.tensor([[*prompt, *h.ids]])).log_softmax(-1)[0]
            wanted = sum(float(odds[len(prompt) - 1 + i, id]) for i, id in enumerate(h.ids))
            assert h.logprob == pytest.approx(wanted) and h.score == pytest.approx(wanted / len(h.ids))
            assert (h.reason is Reason.STOP) == (h.ids[-1] == END)


def test_room_grows_with_the_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    how = How(max_tokens=9, begin=END, beams=3, samples=3)
    wanted = named(find(model("pair-attention"), how))
    monkeypatch.setattr("heddle.decoding.opening.SPARE", 1)
    assert named(find(model("pair-attention"), how)) == wanted


def test_what_beams_cannot_mean_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature: want 0 with several beams"):
        How(beams=2, temperature=1.0)
    with pytest.raises(ConfigError, match="samples: want at most the 2 beams"):
        How(beams=2, samples=3)
    with pytest.raises(ConfigError, match="length_penalty"):
        How(length_penalty=float("nan"))
    with pytest.raises(UsageError, match="samples: want at most 4"):  # of one token there are four sequences
        generate(model("attention"), [[]], How(max_tokens=1, begin=END, beams=9, samples=9))
    with pytest.raises(UsageError, match="stop: want none with several beams"):
        complete(model("attention"), [[]], How(begin=END, beams=2), halt=lambda row, id: False)


def test_the_stream_of_beams_is_their_best() -> None:
    made, how = model("pair-recurrent"), How(max_tokens=5, stop=(END,), begin=END, beams=3)
    assert list(stream(made, [], how, SOURCES[0])) == find(made, how, [0])[0][0].ids
