"""Prefix LM: what a prefix sees and who sees it, also beside packed neighbours; where it ends; what counts; a run."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from laws.cases import SMALL, ids, loud
from laws.objective_cases import LENGTH, VOCAB, encoder, language_model, plain
from reliability.harness import tiny, trainer_for, write_text

from heddle.core import ConfigError, replace
from heddle.data.rows import StreamRows
from heddle.models.presets import build, preset
from heddle.nn.base import Context
from heddle.nn.layers import base_mask
from heddle.objectives import PrefixLMConfig
from heddle.training import RunConfig
from heddle.training.checks import check_fit

OBJECTIVE = PrefixLMConfig()
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])


def test_the_mask_is_causal_but_for_the_prefix_of_the_same_document() -> None:
    prefix = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0]]).bool()
    found = base_mask(Context(documents=DOCUMENTS, prefix=prefix), 12, "past", torch.device("cpu"))
    assert found is not None
    for query in range(12):
        for key in range(12):
            same = DOCUMENTS[0, query] == DOCUMENTS[0, key]
            assert found[0, 0, query, key] == bool(same and (key <= query or prefix[0, key]))


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-7b", "first"])
def test_outputs_see_the_prefix_whole_and_nothing_else_ahead(name: str) -> None:
    sizes = SMALL[name.partition("-")[0]]
    model = loud(preset(name).config(**sizes, vocab=VOCAB, context=LENGTH))
    tokens, prefix = ids(1, 12), torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0]]).bool()
    ctx = Context(documents=DOCUMENTS, positions=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2]]), prefix=prefix)

    def moved(place: int) -> list[int]:
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 20
        return (model(tokens, ctx) - model(other, ctx)).abs().amax(-1)[0].gt(1e-9).nonzero().flatten().tolist()

    assert moved(2) == [0, 1, 2, 3, 4], "the last of the prefix is seen by the first"
    assert moved(3) == [3, 4] and moved(6) == [5, 6, 7, 8] and moved(11) == [11]


def test_the_split_is_even_and_only_targets_after_it_count() -> None:
    batch = dataclasses.replace(plain(rows=2000, length=10, cut=False))
    made = OBJECTIVE.prepare(batch, 0)
    assert made.prefix is not None
    sizes = made.prefix.sum(1)
    counts = np.bincount(sizes.numpy(), minlength=11)[1:]
    assert counts.sum() == 2000 and (np.abs(counts - 200) < 4 * np.sqrt(200 * 0.9)).all(), "1 to 10, evenly"
    assert torch.equal(made.weights.sum(1).long(), 11 - sizes), "the last of the prefix predicts the first after it"
    assert (made.weights > 0).long().diff().ge(0).all()


def test_each_document_of_a_row_has_a_prefix_of_its_own() -> None:
    batch = plain(rows=300, length=12, cut=False)
    made = OBJECTIVE.prepare(dataclasses.replace(batch, documents=DOCUMENTS.expand(300, -1)), 1)
    assert made.prefix is not None
    for number, (start, stop) in enumerate(((0, 5), (5, 9), (9, 12))):
        inside = made.prefix[:, start:stop]
        assert inside[:, 0].all() and (inside.long().diff() <= 0).all(), f"a prefix of document {number}"
        assert set(inside.sum(1).tolist()) == set(range(1, stop - start + 1))
        assert torch.equal(made.weights[:, start:stop].sum(1).long(), stop - start + 1 - inside.sum(1))


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="a language model for prefix_lm"):
        OBJECTIVE.checked_model(encoder())
    with pytest.raises(ConfigError, match="model: want attention alone, which can see a prefix whole, got 'lstm'"):
        OBJECTIVE.checked_model(build("lstm_lm", layers=1, width=16, vocab=VOCAB, context=8))
    with pytest.raises(ConfigError, match=r"model\.sight: want past"):
        OBJECTIVE.checked_model(replace(language_model().config, sight="all").build())
    with pytest.raises(ConfigError, match="made by `prepare`"):
        OBJECTIVE(language_model(), plain())
    with pytest.raises(ConfigError, match=r"rows\.kind: want packed, because prefix_lm"):
        check_fit(RunConfig(objective=OBJECTIVE, rows=StreamRows()))


def test_a_run_resumes_in_the_same_bits(tmp_path: Path) -> None:
    config = replace(tiny(write_text(tmp_path / "text.txt"), every__save=4), objective=OBJECTIVE)
    ended = []
    for name, stops in (("whole", (8,)), ("cut", (4, 8))):
        for steps in stops:
            trainer = trainer_for(
                replace(config, training=replace(config.training, steps=steps)), tmp_path / name / "run"
            )
            trainer.fit()
        ended.append(trainer.model.weights())
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())
