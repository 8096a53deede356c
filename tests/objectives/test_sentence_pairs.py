"""Next sentence and sentence order beside masked tokens: the loss, refusals, and runs of BERT with both outputs."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from laws.objective_cases import CASES, PAIRS_MASKED, encoder, pair_encoder, plain
from reliability.harness import metrics, tiny, trainer_for, write_text
from torch.nn import functional as F

from heddle.core import ConfigError, decode, encode, replace
from heddle.data.rows import PackedRows, SentencePairRows
from heddle.data.sources import HashSplit, corpus_for
from heddle.models.presets import PresetConfig
from heddle.nn.base import Context
from heddle.objectives import (
    MaskedTokenConfig,
    NextSentenceConfig,
    NextTokenConfig,
    ObjectiveConfig,
    SentenceOrderConfig,
)
from heddle.training import RunConfig
from heddle.training.checks import check_fit

CASE = CASES["next_sentence"]


def test_the_loss_is_that_of_both_outputs() -> None:
    model, made = pair_encoder().eval(), CASE.prepare(CASE.batch(), 3)
    ctx = Context(lengths=made.lengths, segments=made.segments)  # type: ignore[attr-defined]
    hidden = F.cross_entropy(
        model.scores("masked_token", made.inputs, ctx).transpose(1, 2), made.targets, reduction="none"
    )
    pairs = F.cross_entropy(model.scores("next_sentence", made.inputs, ctx), made.labels, reduction="sum")  # type: ignore[attr-defined]
    for weight in (1.0, 0.25):
        objective = NextSentenceConfig(masked=PAIRS_MASKED, weight=weight)
        loss = objective(model, made)
        torch.testing.assert_close(loss.total, (hidden * made.weights).sum() + weight * 6 * pairs)
        assert 0 <= float(loss.metrics["sentence_accuracy"]) <= 1


def test_segments_and_padding_matter_as_they_should() -> None:
    model, made = pair_encoder().eval(), CASE.prepare(CASE.batch(), 3)
    base = CASE.loss(model, made)
    assert made.segments is not None  # type: ignore[attr-defined]
    assert not torch.equal(CASE.loss(model, replace_field(made, "segments", 1 - made.segments)), base)  # type: ignore[attr-defined]
    padded = made.inputs.clone()
    padded[-1, 29:] = 7
    torch.testing.assert_close(CASE.loss(model, replace_field(made, "inputs", padded)), base)


def replace_field(batch: object, name: str, value: torch.Tensor) -> object:
    return dataclasses.replace(batch, **{name: value})  # type: ignore[type-var]


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"model\.outputs: want next_sentence among them"):
        CASE.loss(encoder(), CASE.prepare(CASE.batch(), 3))
    with pytest.raises(
        ConfigError, match=r"rows\.kind: want sentence_pairs, because next_sentence reads two texts a row"
    ):
        CASE.objective.prepare(plain(), 3)
    for objective, rows, line in (
        (
            NextSentenceConfig(),
            PackedRows(),
            r"rows\.kind: want sentence_pairs, because next_sentence reads two texts a row, got 'packed'",
        ),
        (
            SentenceOrderConfig(),
            SentencePairRows(),
            r"rows\.second: want swapped, because the objective is sentence_order, got 'random'",
        ),
        (NextSentenceConfig(), SentencePairRows(second="swapped"), r"rows\.second: want random"),
        (
            MaskedTokenConfig(),
            SentencePairRows(),
            r"rows\.kind: want packed, because masked_token reads one text a row",
        ),
        (NextTokenConfig(), SentencePairRows(), r"rows\.kind: want packed, because next_token"),
        (NextSentenceConfig(masked=MaskedTokenConfig(static=10)), SentencePairRows(), r"masked\.static: want null"),
    ):
        config = RunConfig(model=PresetConfig(name="bert-base-pretraining"), objective=objective, rows=rows)
        with pytest.raises(ConfigError, match=line):
            check_fit(config)


@pytest.mark.parametrize("kind", [NextSentenceConfig, SentenceOrderConfig])
def test_bert_learns_both_outputs_and_resumes_in_the_same_bits(kind: type[NextSentenceConfig], tmp_path: Path) -> None:
    lines = write_text(tmp_path / "text.txt", lines=120).read_text().splitlines()
    documents = [{"text": " ".join(lines[first : first + 4])} for first in range(0, 120, 4)]
    data = tmp_path / "my.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in documents))
    config = tiny(tmp_path / "text.txt", every__save=4, every__validate=4)
    rows = SentencePairRows(length=48, second="random" if kind is NextSentenceConfig else "swapped")
    model = PresetConfig(name="bert-base-pretraining", layers=1, width=32, heads=2, dropout=0.1)
    objective = kind(masked=MaskedTokenConfig(unit="word"))
    corpus = replace(corpus_for(str(data)), split=HashSplit(fraction=0.3))
    config = replace(config, data=corpus, rows=rows, model=model, objective=objective)
    ended = []
    for name, stops in (("whole", (8,)), ("cut", (4, 8))):
        for steps in stops:
            trainer = trainer_for(
                replace(config, training=replace(config.training, steps=steps)), tmp_path / name / "run"
            )
            trainer.fit()
        ended.append(trainer.model.weights())
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())
    assert any("sentence_accuracy" in line for line in metrics(tmp_path / "whole" / "run"))
    assert decode(ObjectiveConfig, encode(trainer.objective)) == trainer.objective
