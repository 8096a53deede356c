"""Choices: the same for every model, half of the second texts follow, and each kind of model ranks as it scores."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runs import TOKENIZER, config, loud_model, save_run

from heddle.cli.main import main
from heddle.core import DataError, UsageError
from heddle.lm import LM
from heddle.nn.base import Context
from heddle.tasks.evaluation import DialogueTask, GradedModel, NextSentenceTask, ReplyChoice

ROWS = [{"text": f"is it {n // 2}?", "target": f"it is {n}.", "prototype": f"not {n}"} for n in range(40)]


def pairs(path: Path, edited: bool = False) -> str:
    rows = ROWS if edited else [{name: row[name] for name in ("text", "target")} for row in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def graded(name: str, **more: Any) -> tuple[GradedModel, LM]:
    lm = LM(loud_model(config(name, context=96, **more)), TOKENIZER)
    return GradedModel(lm.model, lm.tokenizer), lm


# --- replies ----------------------------------------------------------------------------------------------------------


def test_a_right_reply_stands_among_nine_that_answer_other_contexts(tmp_path: Path) -> None:
    task, file = DialogueTask(), pairs(tmp_path / "a.jsonl")
    examples = task.examples(file)
    assert examples == task.examples(file) and len(examples) == len(ROWS)
    for one, row in zip(examples, ROWS, strict=True):
        own = {other["target"] for other in ROWS if other["text"] == row["text"]}
        assert len(set(one.replies)) == 10 and set(one.replies) & own == {row["target"]}
        assert (one.context, one.replies[one.right], one.prototype) == (row["text"], row["target"], None)
    assert len({one.right for one in examples}) > 5
    assert set(task.metrics([1] * 3, examples[:3]).values()) == {1.0}
    assert task.metrics([1, 2, 4, 10], examples[:4]) == {
        "recall@1": 0.25,
        "recall@2": 0.5,
        "recall@5": 0.75,
        "mrr": pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 10) / 4),
    }
    edited = task.examples(pairs(tmp_path / "b.jsonl", edited=True))
    assert [one.prototype for one in edited] == [row["prototype"] for row in ROWS]


def ranks(scores: list[list[float]], examples: list[ReplyChoice]) -> list[int]:
    """Return the ranks of the right replies by their scores."""
    return [sum(x >= row[one.right] for x in row) for row, one in zip(scores, examples, strict=True)]


def test_a_language_model_ranks_by_mean_log_probability(tmp_path: Path) -> None:
    model, lm = graded("first")
    examples = DialogueTask().examples(pairs(tmp_path / "a.jsonl"))[:6]
    scores = [
        [lm.score(reply, context=f"{one.context}\n").logprob / len(reply.encode()) for reply in one.replies]
        for one in examples
    ]
    assert DialogueTask().predict(model, examples) == ranks(scores, examples)


@torch.no_grad()
def test_an_editor_ranks_given_the_context_and_the_prototype(tmp_path: Path) -> None:
    model, lm = graded("transformer_pre_norm", edits={"head": "pointer_generator"})
    examples = DialogueTask().examples(pairs(tmp_path / "a.jsonl", edited=True))[:6]
    scores = []
    for one in examples:
        source = TOKENIZER.source(one.context, one.prototype)
        row = []
        for reply in one.replies:
            target = [*TOKENIZER.encode(reply), TOKENIZER.end]
            logits = lm.logits([[TOKENIZER.end, *target[:-1]]], source=[source])
            row.append(logits.log_softmax(-1)[0, range(len(target)), target].mean().item())
        scores.append(row)
    assert DialogueTask().predict(model, examples) == ranks(scores, examples)


def test_an_encoder_ranks_by_cosine(tmp_path: Path) -> None:
    model, lm = graded("bert-base")
    examples = DialogueTask().examples(pairs(tmp_path / "a.jsonl"))[:6]
    scores = [
        torch.cosine_similarity(lm.embed(list(one.replies)), lm.embed(one.context)[None]).tolist() for one in examples
    ]
    assert DialogueTask().predict(model, examples) == ranks(scores, examples)


def test_too_few_replies_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:8]))
    with pytest.raises(DataError, match="want 10 different replies or more"):
        DialogueTask().examples(str(tmp_path / "a.jsonl"))
    one = [{"text": "a", "target": f"r{n}"} for n in range(12)] + [{"text": "b", "target": "x"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in one))
    with pytest.raises(DataError, match="want 9 replies to other contexts for 'a', found 1"):
        DialogueTask().examples(str(tmp_path / "a.jsonl"))


# --- sentences --------------------------------------------------------------------------------------------------------


def articles(path: Path, count: int = 30) -> str:
    rows = [" ".join(f"Fact {n} of article {a}." for n in range(2 + a % 5)) for a in range(count)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path)


def number(text: str, word: str) -> list[int]:
    return [int(found.split()[0].rstrip(".")) for found in text.split(word)[1:]]


def test_every_second_text_goes_on_in_another_document(tmp_path: Path) -> None:
    task, file = NextSentenceTask(), articles(tmp_path / "a.jsonl")
    examples = task.examples(file)
    assert examples == task.examples(file) and [one.follows for one in examples] == [True, False] * 15
    for place, one in enumerate(examples):
        first, second = ((number(text, "article "), number(text, "Fact ")) for text in (one.first, one.second))
        assert set(first[0]) == {place}
        if one.follows:
            assert set(second[0]) == {place} and second[1][0] == first[1][-1] + 1
        else:
            assert place not in second[0]
    assert task.metrics([one.follows for one in examples], examples) == {"accuracy": 1.0}
    assert task.metrics([True] * 30, examples) == {"accuracy": 0.5}


@torch.no_grad()
def test_the_output_that_learned_it_decides(tmp_path: Path) -> None:
    model, lm = graded("bert-base-pretraining")
    examples = NextSentenceTask().examples(articles(tmp_path / "a.jsonl"))
    encoder: Any = lm.model.eval()
    special, margins = TOKENIZER.special_tokens, []
    for one in examples:
        first, second = (TOKENIZER.encode(text) for text in (one.first, one.second))
        space = encoder.context - len(TOKENIZER.pair([], []))
        while len(first) + len(second) > space:  # where the texts meet, their tokens stay
            if len(second) > max(space // 2, space - len(first)):
                second.pop()
            else:
                first.pop(0)
        row = TOKENIZER.pair(first, second)
        second_at = len(row) - len(second) - len(special.text.after)
        segments = (torch.arange(len(row)) >= second_at).long()[None]
        scores = encoder.scores("next_sentence", torch.tensor([row]), Context(segments=segments))
        margins.append(float(scores[0, 0] - scores[0, 1]))
    middle = sorted(margins)[14:16]
    bias = encoder.get_parameter("outputs.next_sentence.classes.bias")
    bias[0] -= sum(middle) / 2  # half of the pairs are now said to follow
    assert NextSentenceTask().predict(model, examples) == [margin > sum(middle) / 2 for margin in margins]


def test_models_without_the_output_and_single_documents_are_refused(tmp_path: Path) -> None:
    examples = NextSentenceTask().examples(articles(tmp_path / "a.jsonl"))
    with pytest.raises(UsageError, match="next_sentence: want an encoder with an output of the kind next_sentence"):
        NextSentenceTask().predict(graded("bert-base")[0], examples)
    with pytest.raises(UsageError, match="next_sentence: want an encoder, such as BERT, got a language model"):
        NextSentenceTask().predict(graded("first")[0], examples)
    with pytest.raises(DataError, match="want two documents of two sentences or more, found 1"):
        NextSentenceTask().examples(articles(tmp_path / "b.jsonl", count=1))


def test_the_command_grades_an_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(Path("runs/editor"), config("transformer_pre_norm", edits={"head": "pointer_generator"}))
    pairs(Path("a.jsonl"), edited=True)
    assert main(["evaluate", "-m", "editor", "--task", "dialogue", "--data", "a.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 40 and found["intervals"]["recall@1"][0] <= found["recall@1"] <= found["recall@5"]
