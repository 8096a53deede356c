"""Coverage is what attention gave each place of the source, step by step as in a whole reading; padding has no say."""

import math

import pytest
import torch
from decoding.reference import END, SOURCES, VOCAB, Plain, find, model, named, requests, search
from laws.cases import ATTENTION, CHANNEL, CROSS, pair, tower

from heddle.core import ConfigError, UsageError, replace
from heddle.decoding.generation import GenerationConfig
from heddle.decoding.runtime import PrefixCache, Request
from heddle.decoding.search import BeamSearch, beam
from heddle.decoding.search.coverage import coverage_penalties, record_attention
from heddle.models.networks import EncoderDecoder, TowerConfig
from heddle.nn.base import Context
from heddle.nn.stack import Branch, RepeatConfig

READERS = ("pair-attention", "pair-attentive", "pair-parallel")


def config(coverage: float, **more: object) -> GenerationConfig:
    choice = BeamSearch(beams=3, length_penalty=0.6, coverage=coverage)
    return replace(GenerationConfig(max_tokens=5, stop=(END,), begin=END, samples=3, strategy=choice), **more)


@pytest.mark.parametrize("coverage", [0.2, 3.0])
@pytest.mark.parametrize("name", READERS)
def test_covering_beams_are_those_of_a_plain_search(name: str, coverage: float) -> None:
    made, options = model(name, 2), config(coverage)
    for request, found in zip(requests(made), find(made, options), strict=True):
        plain = Plain(made, options, request)
        assert [tuple(h.ids) for h in found] == plain.beams()
        for h in found:
            wanted = h.logprob / len(h.ids) ** 0.6 + coverage * plain.covered(tuple(h.ids))
            assert h.score == pytest.approx(wanted)


@pytest.mark.parametrize("name", READERS)
def test_sources_side_by_side_are_sources_alone(name: str) -> None:
    made = model(name, 3)
    together = find(made, config(1.0))
    for row, best in enumerate(together):
        (alone,) = find(made, config(1.0), [row])
        assert named([best]) == named([alone])
        assert [h.score for h in best] == pytest.approx([h.score for h in alone])


def test_what_a_target_begins_with_covers_too() -> None:
    made = model("pair-attention", 4)
    given = [Request([END, 2, 1], SOURCES[0]), Request([END], SOURCES[1])]
    for request, found in zip(given, search(made, given, config(1.0)), strict=True):
        plain = Plain(made, config(1.0), request)
        assert [tuple(h.ids) for h in found] == plain.beams()
        assert [h.score - h.logprob / len(h.ids) ** 0.6 for h in found] == pytest.approx(
            [plain.covered(tuple(h.ids)) for h in found]
        )


def test_prefixes_read_in_chunks_or_read_before_count_too() -> None:
    made = model("pair-attention", 4)
    given = [Request([END, 2, 1, 3, 1, 2], SOURCES[0]), Request([END, 2, 1, 3, 1, 1, 1], SOURCES[0])]
    wanted = search(made, given, config(1.0))
    known = PrefixCache(made)
    for found in (
        search(made, given, config(1.0, chunk=2)),
        search(made, given, config(1.0), known),
        search(made, given, config(1.0), known),
    ):
        assert named(found) == named(wanted)
        assert found[0][0].score == pytest.approx(wanted[0][0].score)


def test_stopping_early_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, options = [model(name, seed) for seed, name in enumerate(READERS, 1)], config(0.5, max_tokens=12, samples=2)
    stopped = [named(find(one, options)) for one in made]
    monkeypatch.setattr(beam.PromptSearch, "is_final", lambda self: not any(self.live))
    assert [named(find(one, options)) for one in made] == stopped


def test_a_heavy_weight_on_coverage_changes_what_wins() -> None:
    found = [
        [named(find(model("pair-attention", seed), config(weight, samples=1))) for seed in range(4)]
        for weight in (0.0, 50.0)
    ]
    assert found[0] != found[1]


def test_the_penalty_is_that_of_the_paper() -> None:
    cover = torch.tensor([[0.5, 1.7, 0.25], [0.9, 0.1, 0.0]], dtype=torch.float64)
    assert coverage_penalties(cover[:1], None).tolist() == pytest.approx([math.log(0.5) + math.log(0.25)])
    allowed = torch.tensor([[True] * 3, [True, True, False]])[:, None, None]
    assert coverage_penalties(cover, allowed)[1].item() == pytest.approx(math.log(0.9) + math.log(0.1))
    assert coverage_penalties(torch.zeros(1, 1), None).isfinite().all()


@torch.no_grad()
def test_all_layers_and_heads_count_and_every_token_gives_a_whole_one() -> None:
    deep = replace(pair(tower(ATTENTION), tower(ATTENTION, CROSS, CHANNEL)), vocab=VOCAB)
    plan = deep.decoder.plan
    assert isinstance(deep.decoder, TowerConfig) and isinstance(plan, RepeatConfig)
    made = replace(deep, decoder=replace(deep.decoder, plan=replace(plan, times=3))).build(0).eval()
    assert isinstance(made, EncoderDecoder)
    memory = made.encode(torch.tensor(SOURCES[:1]))
    with record_attention(made) as watch:
        made(torch.tensor([[0, 1, 2]]), Context(memory=memory))
        assert len(watch.attention) == 3
        assert watch.take().sum().item() == pytest.approx(3.0)
        assert not watch.attention
    assert not any(m._forward_pre_hooks for m in made.modules() if isinstance(m, Branch))


def test_a_model_that_does_not_attend_to_a_source_is_refused() -> None:
    for name in ("attention", "recurrent", "pair-recurrent"):
        with pytest.raises(UsageError, match="coverage: want a model whose decoder attends to its source"):
            find(model(name), config(0.3))
    with pytest.raises(ConfigError, match="coverage: want 0 or more"):
        BeamSearch(coverage=-1.0)
