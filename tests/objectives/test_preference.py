"""Preferences (DPO): loss and gradients as written out, log 2 at the start, answers only, runs that resume."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.objective_cases import CASES, encoder, language_model, plain, preferences, teacher
from reliability.harness import metrics, tiny, trainer_for, write_text

import heddle
from heddle.checkpoints.store import load_config
from heddle.core import ConfigError, DataError, decode, replace
from heddle.core.system import read_config
from heddle.data.rows import PreferenceRows
from heddle.data.shards import open_split, prepare
from heddle.data.sources import (
    CorpusConfig,
    DocumentCounter,
    HashSplit,
    PreferenceSource,
    Split,
    corpus_for,
)
from heddle.data.sources.preferences import ChatPreferenceSource
from heddle.models.presets import PresetConfig
from heddle.nn.adapters import LoraConfig
from heddle.objectives import NextTokenConfig, PreferenceConfig
from heddle.training import RunConfig
from heddle.training.optimizers import SGDConfig

CASE = CASES["preference"]
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def loss(model: Any, reference: Any, batch: Any) -> Any:
    """The loss of a prepared batch."""
    return PreferenceConfig().loss_function(reference)(model, batch, None, None)


def written_out(model: Any, reference: Any, batch: Any, beta: float) -> torch.Tensor:
    """The loss of Rafailov et al. 2023, pair by pair and token by token; a batch as rows give it."""
    total, half = torch.zeros((), dtype=torch.float64), batch.inputs.shape[1] // 2
    for row in range(len(batch)):
        ratios = []
        for side in (slice(0, half), slice(half, None)):
            ids, targets, weights = batch.inputs[row, side], batch.targets[row, side], batch.weights[row, side]
            ratio = torch.zeros((), dtype=torch.float64)
            own, given = (one.logits(ids[None])[0].log_softmax(-1) for one in (model, reference))
            for place in weights.nonzero().flatten().tolist():
                ratio = ratio + own[place, targets[place]] - given[place, targets[place]].detach()
            ratios.append(ratio)
        total = total + torch.log(1 + torch.exp(-beta * (ratios[0] - ratios[1])))
    return total


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_loss_and_gradients_are_those_written_out(beta: float) -> None:
    model, reference, objective = language_model(), teacher(language_model), PreferenceConfig(beta=beta)
    made, wanted = objective.prepare(preferences(), 0), written_out(model, reference, preferences(), beta)
    found = objective.loss_function(reference)(model, made, None, None)
    assert made.tokens == len(made), "the unit is a pair"
    torch.testing.assert_close(found.total, wanted, **CLOSE)
    names, weights = zip(*model.named_parameters(), strict=True)
    pairs = [torch.autograd.grad(one, weights, allow_unused=True) for one in (found.total, wanted)]
    for name, mine, theirs in zip(names, *pairs, strict=True):
        if mine is not None or theirs is not None:
            torch.testing.assert_close(mine, theirs, msg=name, **CLOSE)


def test_at_the_start_a_pair_costs_log_2_and_prompts_do_not_count() -> None:
    model, made = language_model(), CASE.prepare(preferences(), 0)
    found = loss(model, model, made)
    assert found.total.item() == pytest.approx(4 * math.log(2), rel=1e-15)
    assert found.metrics["reward_margin"] == 0 and found.metrics["reward_accuracy"] == 0
    other = dataclasses.replace(made, targets=made.targets.where(made.answers > 0, 1))  # type: ignore[attr-defined]
    totals = [loss(model, teacher(language_model), one).total for one in (made, other)]
    assert torch.equal(*totals), "a target outside answers counts"


def test_metrics_tell_how_often_and_how_far_the_chosen_answer_is_ahead() -> None:
    model, reference = language_model(), teacher(language_model)
    found = loss(model, reference, CASE.prepare(preferences(), 0))
    each = [loss(model, reference, CASE.prepare(preferences().slice(n, n + 1), 0)) for n in range(4)]
    margins = torch.stack([one.metrics["reward_margin"] for one in each])
    torch.testing.assert_close(found.metrics["reward_margin"], margins.mean())
    assert found.metrics["reward_accuracy"].item() == (margins > 0).double().mean().item()
    torch.testing.assert_close(found.total, torch.log(1 + torch.exp(-margins)).sum())


# --- data -------------------------------------------------------------------------------------------------------------


def write_pairs(path: Path, count: int = 40) -> Path:
    """Write preference pairs: the chosen answer repeats the prompt's last word."""
    words = ["cat", "dog", "tree", "mat", "hat"]
    rows = [
        {"prompt": f"say {words[n % 5]} {n}:", "chosen": f" {words[n % 5]}", "rejected": f" {words[(n + 1) % 5]} no"}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows: list[Any] = [good, good | {"chosen": "c"}, {"prompt": "a", "chosen": "b"}, good | {"rejected": " "}]
    rows += ["text", 3, good | {"chosen": ["b"]}]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    counter = DocumentCounter()
    found = list(PreferenceSource(path=str(tmp_path / "my.jsonl")).documents(counter))
    assert [(d.text, d.target, d.rejected) for d in found] == [("a", "b", "c")]
    assert dict(counter.skipped) == {"same_answers": 1, "missing_field": 3, "empty": 1, "bad_json": 2}
    assert found[0].group == "a", "pairs of one prompt stay on one side of a split"
    swapped = [dataclasses.replace(found[0], rejected=other).digest for other in ("c", "d")]
    assert len(set(swapped)) == 2, "pairs that differ in the rejected answer are not copies"


def test_a_path_is_known_by_its_fields(tmp_path: Path) -> None:
    assert isinstance(corpus_for(str(write_pairs(tmp_path / "my.jsonl"))).sources[0], PreferenceSource)
    (tmp_path / "other.jsonl").write_text('{"text": "a"}\n')
    assert not isinstance(corpus_for(str(tmp_path / "other.jsonl")).sources[0], PreferenceSource)


# --- conversations ----------------------------------------------------------------------------------------------------


def said(*contents: str, first: str = "user") -> list[dict[str, str]]:
    """Return messages of user and assistant in turn."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(contents)]


def test_messages_in_each_form_are_the_same_two_conversations(tmp_path: Path) -> None:
    good, bad = said("Hello!", first="assistant"), said("Go away.", first="assistant")
    whole = {"chosen": said("Hi", "Hello!"), "rejected": said("Hi", "Go away.")}
    rows: list[Any] = [
        {"prompt": said("Hi"), "chosen": good, "rejected": bad},
        {"prompt": "Hi", "chosen": good, "rejected": bad},
        whole,
        {"prompt": "Hi", **whole},
    ]
    bads: list[Any] = [whole | {"rejected": whole["chosen"]}, {"prompt": "Hi", "chosen": good}, "text"]
    bads += [whole | {"chosen": said("Hi", "Hello!", "More?")}, whole | {"rejected": ["x", {"role": 3}]}]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *bads]))
    source, counter = corpus_for(str(tmp_path / "my.jsonl")).sources[0], DocumentCounter()
    assert isinstance(source, ChatPreferenceSource)
    found = list(source.documents(counter))
    sides = [
        [[dict(m) for m in t.messages] for t in (d.conversation, d.rejected_conversation) if t is not None]
        for d in found
    ]
    assert sides == [[whole["chosen"], whole["rejected"]]] * 4
    assert len({d.group for d in found}) == 1 and "Hi" in found[0].group and "Hello" not in found[0].group
    wanted = {"same_answers": 1, "missing_field": 1, "bad_json": 1, "no_answer": 1, "bad_turns": 1}
    assert dict(counter.skipped) == wanted
    other = dataclasses.replace(found[0], rejected_conversation=found[0].conversation)
    assert other.digest != found[0].digest


def test_a_run_on_conversations_counts_the_answers_by_the_template(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"chosen": said(f"{n}?", "yes", "So?", "good"), "rejected": said(f"{n}?", "yes", "So?", "no")}
        for n in range(40)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = CorpusConfig(
        sources=(ChatPreferenceSource(path=str(tmp_path / "chats.jsonl")),),
        split=HashSplit(fraction=0.2),
        template="plain",
    )
    base = run_on(folder)
    config = replace(base, data=corpus, rows=PreferenceRows(length=64))
    trainer = trainer_for(config, tmp_path / "run")
    tokenizer = heddle.load(folder / "start").tokenizer
    row = trainer.loader.plan.row(0)
    for side, answer in ((slice(0, 64), "good"), (slice(64, 128), "no")):
        targets, weights = row.tokens[1:][side], row.weights[side]
        text = tokenizer.decode(targets[weights > 0].tolist())
        assert "yes" in text and answer in text and "?" not in text, text
    trainer.fit()
    first = next(line for line in metrics(tmp_path / "run") if "loss" in line)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert (tmp_path / "run" / "chat_template.jinja").is_file()


def test_a_side_that_the_template_rejects_takes_the_other_with_it(folder: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('no') }}{% endif %}"
    template += "{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    rows = [{"chosen": said(f"{n}?", "yes"), "rejected": said(f"{n}?", "no" if n % 4 else "nay")} for n in range(80)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, tokenizer = (
        ChatPreferenceSource(path=str(tmp_path / "chats.jsonl")),
        heddle.load(folder / "start").tokenizer,
    )
    corpus = CorpusConfig(sources=(source,), split=HashSplit(fraction=0.3))
    made = prepare(corpus, tokenizer, tmp_path / "prepared", None, template)
    assert made.counter.kept == 20 and made.pairs
    for split in Split:
        chosen, rejected = open_split(made, split)
        assert rejected is not None and chosen.count == rejected.count


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with preference pairs and a model to start from."""
    root = tmp_path_factory.mktemp("preference")
    model = PresetConfig(name="first", layers=1, width=32, heads=2, dropout=0.2, context=64)
    trainer_for(replace(tiny(write_text(root / "text.txt"), training__steps=2), model=model), root / "start").fit()
    write_pairs(root / "pairs.jsonl")
    return root


def run_on(folder: Path, **changes: Any) -> RunConfig:
    """Return a run on preference pairs."""
    config = tiny(folder / "text.txt", training__steps=4, every__save=2, every__validate=2, **changes)
    corpus = CorpusConfig(sources=(PreferenceSource(path=str(folder / "pairs.jsonl")),), split=HashSplit(fraction=0.2))
    rows = PreferenceRows(length=32)
    return replace(config, data=corpus, rows=rows, init=str(folder / "start"), objective=PreferenceConfig())


def test_a_run_begins_at_log_2_and_resumes_in_the_same_bits(folder: Path, tmp_path: Path) -> None:
    ended = []
    for name, stops in (("whole", (4,)), ("cut", (2, 4))):
        for steps in stops:
            path = tmp_path / name / "run" / "config.json"
            here = decode(RunConfig, load_config(read_config(path), path)) if path.exists() else run_on(folder)
            trainer = trainer_for(replace(here, training=replace(here.training, steps=steps)), path.parent)
            trainer.fit()
        ended.append(trainer.model.weights())
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())
    lines = [line for line in metrics(tmp_path / "whole" / "run") if "loss" in line]
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-6), "dropout, or another reference"
    assert lines[-1]["loss"] < lines[0]["loss"] and {"reward_accuracy", "reward_margin"} <= set(lines[0])
    held_out = [line for line in metrics(tmp_path / "whole" / "run") if "validation_loss" in line]
    assert {"reward_accuracy", "reward_margin"} <= set(held_out[-1]) and "perplexity" not in held_out[-1]
    assert trainer.frozen_model is not None and not trainer.frozen_model.model.training
    assert "frozen_model" in trainer.snapshot().state
    assert heddle.load(tmp_path / "cut" / "run").generate("say", max_tokens=2) is not None


def test_rows_hold_prompt_and_answers(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_for(run_on(folder), tmp_path / "run")
    batch = trainer.loader.plan.row(0)
    tokenizer = heddle.load(folder / "start").tokenizer
    for side in (slice(0, 32), slice(32, 64)):
        inputs, targets, weights = batch.inputs[side], batch.tokens[1:][side], batch.weights[side]  # type: ignore[index]
        count = int(weights.nonzero()[0][-1]) + 1
        prompt = int(weights.nonzero()[0][0])
        assert tokenizer.decode(targets[:prompt].tolist()).endswith(":") and targets[count - 1] == tokenizer.end
        word = tokenizer.decode(targets[prompt : count - 1].tolist())
        assert word.startswith(" ") and word.endswith(" no") == (side.start == 32)
        assert inputs[0] == tokenizer.end and (inputs[1:count] == targets[: count - 1]).all()
    assert (heddle.load(folder / "start").model.config.context) == 64


@pytest.mark.parametrize("micro", [2, 1])
def test_micro_batches_give_the_same_steps(micro: int, folder: Path, tmp_path: Path) -> None:
    sgd, weights = SGDConfig(learning_rate=0.5), []  # linear in the gradient: Adam would blow roundings up
    for rows in (4, micro):
        config = run_on(folder, training__micro_batch=rows, training__average=None, hardware__dtype="float32")
        trainer = trainer_for(replace(config, training=replace(config.training, optimizer=sgd)), tmp_path / str(rows))
        before = {name: weight.clone() for name, weight in trainer.model.weights().items()}
        trainer.fit()
        weights.append(trainer.model.weights())
    assert max(float((weight - before[name]).abs().max()) for name, weight in weights[0].items()) > 1e-3
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def test_lora_starts_at_log_2_too(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_for(replace(run_on(folder), adapters=LoraConfig(rank=2)), tmp_path / "run")
    trainer.fit()
    first = next(line for line in metrics(tmp_path / "run") if "loss" in line)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_what_cannot_be_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    good, text = run_on(folder), tiny(folder / "text.txt")
    cases: list[tuple[RunConfig, str]] = [
        (replace(good, init=None), "objective.reference: want a model: a run"),
        (replace(good, rows=text.rows), "rows.kind: want preferences, because the objective is preference"),
        (replace(good, objective=NextTokenConfig()), "objective.kind: want preference, because the rows are pairs"),
        (replace(good, objective=NextTokenConfig(), rows=text.rows), "rows.kind: want preferences, because the corpus"),
        (replace(good, data=text.data), "data: want preference pairs (JSON lines with prompt, chosen and rejected)"),
        (replace(good, rows=PreferenceRows(length=4)), "want pairs of at most 4 tokens, a prompt with an answer"),
    ]
    for number, (config, words) in enumerate(cases):
        with pytest.raises((ConfigError, DataError)) as caught:
            trainer_for(config, tmp_path / str(number))
        assert words in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="beta"):
        PreferenceConfig(beta=0.0)
    with pytest.raises(ConfigError, match="a language model for preference"):
        PreferenceConfig().checked_model(encoder())
    with pytest.raises(ConfigError, match=r"objective\.reference: want a language model, got"):
        PreferenceConfig().check_frozen(language_model(), encoder())
    with pytest.raises(ConfigError, match="made by `prepare`"):
        PreferenceConfig()(language_model(), plain())
    with pytest.raises(ConfigError, match="given to `loss_function`"):
        PreferenceConfig()(language_model(), CASE.prepare(preferences(), 0))
