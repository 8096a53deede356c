"""Training on labelled texts: every objective learns, resumes in the same bits, starts from a model, and is graded."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import differences, metrics, tiny, trainer_for, write_text

from heddle.core import ConfigError, DataError, override, replace
from heddle.data.rows import ExampleRows
from heddle.data.shards import ClassSet
from heddle.data.sources import CorpusConfig, HashSplit, ParallelSource, corpus_for
from heddle.models.presets import PresetConfig
from heddle.nn.adapters import LoraConfig
from heddle.objectives import (
    ClassifyConfig,
    ContrastiveConfig,
    MaskedTokenConfig,
    ObjectiveConfig,
    SimilarityConfig,
    SpanConfig,
    TagConfig,
)
from heddle.training import RunConfig
from heddle.training.callbacks import Validate
from heddle.training.loop import Trainer

ENCODER = PresetConfig(
    name="bert-base", layers=1, width=32, heads=2, dropout=0.1, context=64, edits={"pooling": {"kind": "mean"}}
)
NAMES, PLACES = ("Ann", "Bob", "Eve"), ("Rome", "Oslo")


def rows(kind: str) -> tuple[str, str]:
    """Return the name and the text of a small file of labelled texts."""
    draw = random.Random(0)
    lines: list[Any] = []
    for number in range(60):
        name, place = draw.choice(NAMES), draw.choice(PLACES)
        if kind == "tag":
            lines.append(f"{name} I-PER\nis O\nin O\n{place} I-LOC\n{number} O\n\n")
        elif kind == "span":
            context = f"in {place} is {name} now"
            found = [{"text": name, "answer_start": context.index(name)}] if number % 4 else []
            lines.append({"question": f"who {number}", "context": context, "answers": found})
        elif kind == "similarity":
            lines.append({"text": f"{name} {number}", "pair": draw.choice(NAMES), "score": 1 + len(lines) % 5})
            lines[-1]["pair"] = name if lines[-1]["score"] > 3 else "nobody"
        else:
            text = f"{'pq' * (number % 2)}p" if kind == "several" else f"{name} is in {place}"
            label: Any = ["p", "q"][: 1 + number % 2] if kind == "several" else f"is {place}"
            lines.append({"text": f"{text} {number}"} | ({} if kind == "contrastive" else {"label": label}))
    if kind == "tag":
        return "a.conll", "".join(lines)
    return "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines)


OBJECTIVES: dict[str, ObjectiveConfig] = {
    "classify": ClassifyConfig(class_weights="balanced", smoothing=0.1),
    "several": ClassifyConfig(),
    "tag": TagConfig(),
    "span": SpanConfig(),
    "similarity": SimilarityConfig(),
    "contrastive": ContrastiveConfig(),
}


def run(folder: Path, kind: str, **changes: Any) -> RunConfig:
    name, text = rows(kind)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / name).exists():
        (folder / name).write_text(text)
    start = replace(
        tiny(write_text(folder / "text.txt")),
        model=ENCODER,
        data=CorpusConfig(sources=corpus_for(str(folder / name)).sources, split=HashSplit(fraction=0.2)),
        rows=ExampleRows(length=64, batch=4),
        objective=OBJECTIVES[kind],
    )
    if kind == "contrastive":
        start = override(start, "training.micro_batch", None)
    for path, value in changes.items():
        start = override(start, path.replace("__", "."), value)
    return start


def fitted(config: RunConfig, folder: Path) -> Trainer:
    trainer = trainer_for(config, folder)
    trainer.fit()
    return trainer


@pytest.mark.parametrize(("kind", "metric"), [("classify", "accuracy"), ("tag", "entity_f1"), ("several", "micro_f1")])
def test_it_learns_and_is_graded(kind: str, metric: str, tmp_path: Path) -> None:
    config = run(tmp_path, kind, training__steps=40, every__validate=40, training__optimizer__learning_rate=1e-2)
    trainer = fitted(config, tmp_path / "run")
    lines = [line for line in metrics(tmp_path / "run") if "validation_loss" in line]
    assert lines[-1][metric] > 0.95 and "perplexity" not in lines[-1]
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    names = {"classify": ["is Oslo", "is Rome"], "tag": ["B-LOC", "B-PER", "O"], "several": ["p", "q"]}[kind]
    assert stored["objective"]["labels"]["names"] == stored["model"]["outputs"][0]["labels"] == names
    assert trainer.objective == trainer_for(config, tmp_path / "again").objective


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_resumed_run_ends_in_the_same_bits(kind: str, tmp_path: Path) -> None:
    fitted(run(tmp_path, kind, training__steps=8, every__validate=4), tmp_path / "whole" / "run")
    fitted(run(tmp_path, kind, training__steps=5, every__validate=4), tmp_path / "cut" / "run")
    again = trainer_for(run(tmp_path, kind, training__steps=8, every__validate=4), tmp_path / "cut" / "run")
    assert again.step == 5
    again.fit()
    found = differences(tmp_path / "cut" / "run", tmp_path / "whole" / "run")
    assert [line for line in found if not line.startswith("validation_loss")] == []


def test_the_encoder_of_a_masked_model_is_taken_and_the_output_is_new(tmp_path: Path) -> None:
    masked = replace(
        tiny(write_text(tmp_path / "text.txt"), training__steps=3, training__average=None),
        model=PresetConfig(name="bert-base-masked", layers=1, width=32, heads=2, context=64),
        objective=MaskedTokenConfig(),
    )
    parent = fitted(masked, tmp_path / "masked").model.weights()
    for kind, adapters in (("classify", None), ("tag", None), ("classify", LoraConfig(rank=2))):
        config = run(tmp_path, kind, init=str(tmp_path / "masked"))
        trainer = trainer_for(replace(config, adapters=adapters), tmp_path / f"{kind}{adapters is None}")
        own = trainer.model.weights()
        shared = [name for name in own if name in parent]
        assert any(name.startswith("stack.") for name in shared)
        assert all(torch.equal(own[name], parent[name]) for name in shared)
        assert {name.split(".")[0] for name in own if name not in parent and "adapter" not in name} <= {
            "outputs",
            "pooling",
        }
        learned = trainer.model.trainable()
        assert any(name.startswith("outputs.") for name in learned)
        assert (adapters is None) == any(name.startswith("embedding.") for name in learned)


def test_long_texts_are_told_in_the_header_and_graded_whole(tmp_path: Path) -> None:
    trainer = fitted(run(tmp_path, "tag", rows__length=12, training__steps=2), tmp_path / "run")
    assert "are divided" in trainer.loader.plan.notes[0]
    assert "entity_f1" in metrics(tmp_path / "run")[-2] | metrics(tmp_path / "run")[-1]


def test_masked_tokens_can_be_learnt_from_labelled_texts(tmp_path: Path) -> None:
    config = replace(
        run(tmp_path, "classify"),
        rows=tiny(tmp_path / "text.txt").rows,
        model=PresetConfig(name="bert-base-masked", layers=1, width=32, heads=2),
        objective=MaskedTokenConfig(),
    )
    config = override(config, "data.sources.0.label", "label")
    assert fitted(override(config, "training.steps", 2), tmp_path / "run").step == 2


@pytest.mark.parametrize(
    ("kind", "changes", "line"),
    [
        (
            "classify",
            {"rows": {"kind": "packed"}},
            "rows.kind: want examples, because the objective is classify, got 'packed'",
        ),
        ("classify", {"objective": {"kind": "next_token"}}, "objective.kind: want classify, tag, span"),
        ("contrastive", {"training__micro_batch": 2}, "training.micro_batch: want null on one process"),
        ("contrastive", {"model__dropout": 0.0}, "model.dropout: want above 0, because two passes must differ"),
        ("classify", {"objective__class_weights": {"x": 1.0}}, "class_weights: want a number for each of is Oslo"),
        ("tag", {"objective": {"kind": "classify"}}, "data.sources.0: .*|want labels of the kind classes, found tags"),
        ("classify", {"model__name": "first"}, "encoder, because the output is sequence_class"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    model = changes.pop("model__name", None)
    config = run(tmp_path, kind, **changes)
    if model is not None:
        config = replace(config, model=PresetConfig(name=model, layers=1, width=32, heads=2))
    with pytest.raises((ConfigError, DataError), match=line):
        trainer_for(config, tmp_path / "run")


def test_pairs_are_no_examples(tmp_path: Path) -> None:
    config = run(tmp_path, "contrastive")
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"{side} {number}\n" for number in range(60)))
    source = ParallelSource(source=str(tmp_path / "source"), target=str(tmp_path / "target"))
    with pytest.raises(ConfigError, match=r"because rows.kind is examples, got 'pairs'"):
        trainer_for(replace(config, data=replace(config.data, sources=(source,))), tmp_path / "run")


def test_rows_after_the_validated_ones_are_graded_at_their_own_places(tmp_path: Path) -> None:
    trainer = trainer_for(run(tmp_path, "classify", validation_rows=3), tmp_path / "run")
    validate = next(one for one in trainer.callbacks if isinstance(one, Validate))
    first, after = validate.held_out, validate.held_out.following()
    assert after is not None and after.rows > 0
    both = dataclasses.replace(first, most=first.rows + after.rows)
    right = []
    for part in (first, after, both):
        found = validate.measure(trainer, part)
        assert found is not None
        texts = sum(part.plan.row(row).weights.any() for row in range(part.first, part.end))  # others fill a batch up
        right.append(found.metrics["accuracy"] * texts)
    assert right[0] + right[1] == pytest.approx(right[2])


def test_balanced_weights_have_the_mean_1() -> None:
    labels = ClassSet(names=("a", "b", "c"), counts=(5, 3, 1))
    weights = ClassifyConfig(class_weights="balanced", labels=labels).weights_by_class()
    assert weights is not None and sum(w * n for w, n in zip(weights, labels.counts, strict=True)) == pytest.approx(9)
    assert ClassifyConfig(labels=labels, class_weights={"a": 1, "b": 2, "c": 3}).weights_by_class() == [1.0, 2.0, 3.0]
