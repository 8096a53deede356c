"""Supervised fine-tuning on conversations: only answers are learnt, by the template that stays with the run."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import differences, metrics, tiny, trainer_for, write_text

import heddle
from heddle.checkpoints import find_source
from heddle.cli.main import main
from heddle.core import ConfigError, override, replace
from heddle.data.shards import Shards, open_prepared
from heddle.data.sources import corpus_for
from heddle.models.networks import LanguageModel
from heddle.tasks.scoring import evaluate
from heddle.text.chat import Chat, find_template, load_template
from heddle.training import MixConfig, RunConfig
from heddle.training.loop import Trainer


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Forty conversations of two answers each."""
    path = tmp_path / "chats.jsonl"
    talks = [[f"Say {i}", f"I say {i}", "Again", f"{i}, as I said"] for i in range(40)]
    path.write_text("".join(json.dumps({"dialog": talk}) + "\n" for talk in talks))
    return path


def short(rows: Path, **changes: Any) -> RunConfig:
    base = {
        "training__steps": 6,
        "every__validate": 3,
        "every__save": 3,
        "hardware__dtype": "float32",
        "rows__length": 160,
        "data__split": {"kind": "hash", "fraction": 0.2},
        "data__template": "chatml",
    }
    return tiny(rows, **(base | changes))


def prepared_of(trainer: Trainer) -> Path:
    """Return the folder of the run's prepared data."""
    folders = [p for p in (trainer.folder.parent / ".data").iterdir() if open_prepared(p) is not None]
    assert len(folders) == 1
    return folders[0]


def answer_costs(model: LanguageModel, chat: Chat, talks: list[list[str]]) -> tuple[float, int, int]:
    """Compute by hand what the answers cost in nats, their number of ids, and their bytes as text."""
    nats, count, size = 0.0, 0, 0
    for talk in talks:
        turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(talk)]
        example = chat.training_example(turns)
        ids, assistant_mask = example.ids, example.assistant_mask
        with torch.no_grad():
            odds = model.logits(torch.tensor([ids[:-1]])).log_softmax(-1)[0]
        costs = -odds[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        nats += float(costs[torch.tensor(assistant_mask[1:])].sum())
        count += sum(assistant_mask)
        size += sum(len(text.encode()) for text in talk[1::2])
    return nats, count, size


def held_out(config: RunConfig) -> list[list[str]]:
    turns = [document.conversation for document in config.data.held_out() if document.conversation is not None]
    return [[str(message["content"]) for message in found.messages] for found in turns]


def test_a_model_from_scratch_learns_answers_and_keeps_the_template(rows: Path, tmp_path: Path) -> None:
    config = short(rows, training__steps=16, training__optimizer__learning_rate=0.02, training__average=None)
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    source = find_source(tmp_path / "run")
    tokenizer, template = source.tokenizer(), source.template()
    assert tokenizer is not None and {"<|im_start|>", "<|im_end|>"} <= tokenizer.special.keys()
    assert template == find_template("chatml", tokenizer)
    losses = [line["validation_loss"] for line in metrics(tmp_path / "run") if "validation_loss" in line]
    assert losses[-1] < losses[0] - 0.5


def test_the_held_out_loss_is_that_of_the_answers_alone(rows: Path, tmp_path: Path) -> None:
    config = short(rows, rows__length=4096, training__steps=3, training__average=None)
    with pytest.raises(heddle.core.DataError, match="want at least 4096 tokens for one row"):
        trainer_for(config, tmp_path / "run")
    config = override(config, "rows.length", 1024)  # held out: rows as long as all of it, so that nothing is cut
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    lm = heddle.load(tmp_path / "run", device="cpu")
    assert isinstance(lm.model, LanguageModel) and lm.origin.template is not None
    nats, count, size = answer_costs(lm.model, Chat(lm.origin.template, lm.tokenizer), held_out(config))
    line = [line for line in metrics(tmp_path / "run") if "validation_loss" in line][-1]
    assert line["validation_loss"] == pytest.approx(nats / count, rel=1e-4)
    assert line["bits_per_byte"] == pytest.approx(nats / size / math.log(2), rel=1e-4)
    shards = Shards.open(prepared_of(trainer) / "valid")
    found = evaluate(lm.model, lm.tokenizer, shards, window=512)
    assert (found.tokens, found.bytes, found.documents) == (count, size, shards.count)
    assert found.nats == pytest.approx(nats, rel=1e-4)


def test_evaluate_measures_answers_whatever_it_is_given(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = short(rows)
    trainer = trainer_for(config, tmp_path / "runs" / "chats")
    trainer.fit()
    held = held_out(config)
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"dialog": talk}) + "\n" for talk in held))

    def measure(*words: str) -> dict[str, Any]:
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            assert main(["evaluate", "-m", "chats", "--json", "--device", "cpu", "--window", "128", *words]) == 0
        found: dict[str, Any] = json.loads(heard.getvalue())
        return found

    first = measure()
    assert first["documents"] == len(held) and first["bytes"] == sum(len(t) for talk in held for t in talk[1::2])
    for data in ("held.jsonl", str(prepared_of(trainer))):
        found = measure("--data", data)
        assert found["tokens"] == first["tokens"] and found["nats"] == pytest.approx(first["nats"], rel=1e-5)


@pytest.mark.parametrize("learn", ["answers", "all"])
def test_a_cut_run_goes_on_exactly(learn: str, rows: Path, tmp_path: Path) -> None:
    config = short(rows, data__learn=learn)
    trainer_for(config, tmp_path / "whole" / "run").fit()
    cut = trainer_for(override(config, "training.steps", 3), tmp_path / "cut" / "run")
    cut.fit()
    again = trainer_for(replace(config, model=cut.model.config), tmp_path / "cut" / "run")
    assert again.step == 3 and again.data == cut.data and prepared_of(again)
    again.fit()
    assert differences(tmp_path / "cut" / "run", tmp_path / "whole" / "run") == []


def test_a_child_learns_by_the_template_of_its_parent(rows: Path, tmp_path: Path) -> None:
    trainer_for(short(rows), tmp_path / "parent").fit()
    own = find_template("chatml", heddle.load(tmp_path / "parent").tokenizer)
    child = trainer_for(short(rows, init=str(tmp_path / "parent"), data__template=None), tmp_path / "child")
    assert load_template(tmp_path / "child") == own
    child.fit()
    assert find_source(tmp_path / "child").template() == own
    other = trainer_for(short(rows, init=str(tmp_path / "parent"), data__template="plain"), tmp_path / "other")
    assert other.data != child.data and load_template(tmp_path / "other") != own


def test_without_a_template_one_line_says_what_to_give(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.template: want a chat template, since the model has none: chatml,"):
        trainer_for(short(rows, data__template=None), tmp_path / "run")


def test_texts_are_mixed_in_beside_conversations(rows: Path, tmp_path: Path) -> None:
    text = corpus_for(str(write_text(tmp_path / "text.txt")))
    config = replace(short(rows, data__template="plain"), mix=(MixConfig(data=text, weight=0.5),))
    trainer = trainer_for(config, tmp_path / "run")
    batches = [batch for _, batch in zip(range(8), trainer.loader, strict=False)]
    full = [float(row.mean()) for batch in batches for row in batch.weights]
    assert 1.0 in full and any(0 < share < 0.6 for share in full)
    trainer_for(config, tmp_path / "again").fit()


def test_prepared_conversations_bring_tokenizer_and_template(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        assert main(["tokenizer", "train", "chats.jsonl", "--kind", "byte"]) == 0
        words = ["data", "prepare", "chats.jsonl", "--tokenizer", "tokenizer.json", "template=plain", "-o", "ready"]
        assert main([*words, "split.fraction=0.2"]) == 0
    assert "tokens, of which" in heard.getvalue()
    config = tiny(
        tmp_path / "ready",
        training__steps=2,
        rows__length=64,
        data={"sources": [{"kind": "prepared", "path": "ready"}]},
    )
    trainer_for(config, tmp_path / "run").fit()
    assert find_source(tmp_path / "run").template() == load_template(tmp_path / "ready")
