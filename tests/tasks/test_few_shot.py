"""Few-shot prompts: labels are scored as `score` scores them, answers written as `generate` writes them."""

import logging
import math
from collections import Counter
from typing import Any

import pytest
import torch
from cli.runs import TOKENIZER, config, loud_model

from heddle.core import ConfigError, UsageError
from heddle.lm import LM
from heddle.tasks.few_shot import Example, FewShotClassifier, draw_examples, few_shot, prompt_template
from heddle.tasks.few_shot.template import ANSWER, CLASSIFY
from heddle.text_tasks import CLASSIFY_OPTIONS

EXAMPLES = [("so good", "yes"), ("so bad", "no"), ("fine", "yes"), ("poor", "no"), ("dull", "no")]
TEXTS = ["nice one", "a bad thing", "b", "c c c"]
TEMPLATE = "{text}: {label}\n"


def model(name: str = "first", **dials: Any) -> LM:
    longer = {"context": 160} if name in ("first", "gpt2", "t5-small") else {}
    return LM(loud_model(config(name, **longer | dials)), TOKENIZER)


def prompt(lm: LM, drawn: list[tuple[str, str]], text: str) -> str:
    return "".join(f"{one}: {label}\n" for one, label in drawn) + f"{text}:"


def drawn(k: int, seed: int = 0) -> list[tuple[str, str]]:
    found = draw_examples([Example(*one) for one in EXAMPLES], k, seed, balanced=True)
    return [(one.text, one.target) for one in found]


@pytest.mark.parametrize("name", ["first", "gpt2", "lstm_lm"])
@pytest.mark.parametrize("k", [0, 4])
def test_a_label_has_the_probability_of_its_text_after_the_prompt(name: str, k: int) -> None:
    lm = model(name)
    found = lm.classify(TEXTS, labels=["yes", "no"], examples=EXAMPLES, k=k, template=TEMPLATE)
    for text, one in zip(TEXTS, found, strict=True):
        before = prompt(lm, drawn(k), text)
        logprobs = [lm.score(f" {label}", context=before).logprob for label in ("yes", "no")]
        want = torch.tensor(logprobs).softmax(0).tolist()
        assert [one.probabilities["yes"], one.probabilities["no"]] == pytest.approx(want, rel=1e-3)
        assert one.label == ("yes" if want[0] > want[1] else "no") and one.examples == k
    alone = lm.classify(TEXTS[0], labels=["yes", "no"], examples=EXAMPLES, k=k, template=TEMPLATE)
    assert alone.probabilities == pytest.approx(found[0].probabilities, rel=1e-4)


def test_an_encoder_decoder_scores_labels_given_the_prompt_as_its_source() -> None:
    lm = model("t5-small")
    found = lm.classify(TEXTS, labels=["yes", "no"], examples=EXAMPLES, k=2, template=TEMPLATE)
    for text, one in zip(TEXTS, found, strict=True):
        logprobs = [lm.score(label, source=prompt(lm, drawn(2), text)).logprob for label in ("yes", "no")]
        assert one.probabilities["yes"] == pytest.approx(torch.tensor(logprobs).softmax(0)[0].item(), rel=1e-3)


def test_a_shared_prefix_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model()
    read: list[int] = []
    step = lm.autoregressive_model.step
    monkeypatch.setattr(
        lm.model, "step", lambda ids, state, lengths=None: (read.append(ids.numel()), step(ids, state, lengths))[1]
    )
    lm.classify(["x" * 3] * 40, labels=["yes", "no"], examples=EXAMPLES, k=4, template=TEMPLATE)
    shared = len(prompt(lm, drawn(4), ""))
    assert sum(read) < 3 * shared + 40 * 8  # not 40 prompts


def test_calibration_divides_by_the_probabilities_after_texts_without_content() -> None:
    lm = model()
    options: Any = {"labels": ["yes", "no"], "examples": EXAMPLES, "k": 2, "template": TEMPLATE}
    plain, found = lm.classify(TEXTS, **options), lm.classify(TEXTS, **options, calibrate=True)
    empty = lm.classify(["N/A", "[MASK]", ""], **options)
    prior = sum(one.probabilities["yes"] for one in empty) / 3
    for before, after in zip(plain, found, strict=True):
        yes, no = before.probabilities["yes"] / prior, before.probabilities["no"] / (1 - prior)
        assert after.probabilities["yes"] == pytest.approx(yes / (yes + no), rel=1e-6)


def test_a_label_that_begins_another_is_scored_with_its_end() -> None:
    lm = model()
    (found,) = lm.classify(["a"], labels=["yes", "yes!"], template=TEMPLATE)
    logprobs = [lm.score(f" {label}\n", context="a:").logprob for label in ("yes", "yes!")]
    want = torch.tensor(logprobs).softmax(0).tolist()
    assert [found.probabilities["yes"], found.probabilities["yes!"]] == pytest.approx(want, rel=1e-3)
    (worded,) = lm.classify(["a"], labels={"0": "yes", "1": "yes!"}, template=TEMPLATE)
    assert worded.probabilities["0"] == found.probabilities["yes"]


def test_a_prompt_that_is_too_long_loses_whole_examples_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    lm = model(context=60)
    examples = [(f"text {i}", "ab"[i % 2]) for i in range(8)]
    with caplog.at_level(logging.WARNING, "heddle"):
        found = lm.classify(["x", "y" * 40], examples=examples, template=TEMPLATE)
    assert found[0].examples == (60 - 1 - len("x:") - 1) // len("text 0: a\n") == 5 and found[1].examples == 1
    assert len(caplog.messages) == 1 and "5 of 8 examples fit" in caplog.messages[0]
    kept = draw_examples([Example(*one) for one in examples], 8, 0, balanced=True)[-5:]
    before = "".join(f"{one.text}: {one.target}\n" for one in kept) + "x:"
    want = torch.tensor([lm.score(f" {one}", context=before).logprob for one in "ab"]).softmax(0)[0].item()
    assert found[0].probabilities["a"] == pytest.approx(want, rel=1e-3)
    with pytest.raises(UsageError, match="text: want a text that fits into the model's context of 60 tokens"):
        lm.classify(["z" * 80], examples=examples)


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_an_answer_is_what_is_generated_up_to_the_line_break(name: str) -> None:
    lm = model(name)
    pairs = [("who?", "Ann"), ("where?", "Rome"), ("when?", "May")]
    questions = [f"why {letter}?" for letter in "abcdefgh"]
    found = lm.answer(questions, examples=pairs, k=2, max_tokens=6, template="{question} {answer}\n")
    kept = draw_examples([Example(*one) for one in pairs], 2, 0, balanced=False)
    before = "".join(f"{one.text} {one.target}\n" for one in kept)
    want = lm.generate([before + one for one in questions], max_tokens=6, temperature=0, stop="\n")
    assert [one.text for one in found] == [one.strip() for one in want]
    assert any(one.text for one in found) and all(one.logprob < 0 for one in found)


def test_an_encoder_decoder_answers_the_question_alone() -> None:
    lm = model("t5-small")
    want = lm.generate("who?", max_tokens=5, temperature=0, stop="\n")
    assert lm.answer(["who?"], max_tokens=5)[0].text == want.strip()


def test_draws_are_balanced_seeded_and_of_every_label() -> None:
    examples = [Example(str(i), "abc"[i % 3 if i < 30 else 0]) for i in range(90)]
    first = draw_examples(examples, 9, 0, balanced=True)
    assert Counter(one.target for one in first) == {"a": 3, "b": 3, "c": 3}
    assert first == draw_examples(examples, 9, 0, balanced=True) != draw_examples(examples, 9, 1, balanced=True)
    assert Counter(one.target for one in draw_examples(examples, 90, 0, balanced=True)) == {"a": 70, "b": 10, "c": 10}
    assert len({one.text for one in draw_examples(examples, 40, 0, balanced=False)}) == 40


def test_a_template_is_read() -> None:
    found = prompt_template("{{x}} {text}|{pair}->  {label}", CLASSIFY)
    assert found.prompt("a", "b") == "{x} a|b->" and found.gap == "  " and found.end == "\n\n" and found.reads_second
    assert prompt_template("Q: {question} A: {answer}.", ANSWER).example("w?", None, "me") == "Q: w? A: me."


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"labels": ["a"]}, "labels: want two or more, by name or as the labels of examples, got 'a'"),
        ({"labels": "ab"}, "labels: want a list of names, or a table of names and words, got 'ab'"),
        ({"labels": ["a", "b"], "k": 3}, "k: want 0 to 0, the number of examples, got 3"),
        ({"labels": ["a", "b"], "k": "3"}, "k: want a whole number, got '3'"),
        ({"examples": [("x", "c"), ("y", "a")], "labels": ["a", "b"]}, "examples: want labels from a, b, got 'c'"),
        ({"examples": ["x"]}, "examples: want tuples of a text and its label or answer, got 'x'"),
        (
            {"labels": ["a", "b"], "template": "{text}"},
            "template: want a text with {text} and, as its last",
        ),
        ({"labels": ["a", "b"], "template": "{x}{label}"}, "template: want fields from text, pair, label, got '{x}'"),
        ({"labels": ["a", "b"], "template": "{text {label}"}, "template: want"),
        ({"labels": ["a", "b"], "template": "{text}{pair}{label}"}, "template: want no {pair}, as the texts have none"),
        ({"labels": {"0": "a", "1": "a"}}, "labels: want labels of different tokens, got 'a, a'"),
        ({"labels": ["a", "b"], "max_tokens": 3}, "max_tokens: want one of labels, examples, k"),
    ],
)
def test_wrong_options_are_refused(options: Any, want: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        model().classify(["x"], **options)
    assert str(refusal.value).startswith(want)


def test_an_encoder_has_classes_of_its_own() -> None:
    with pytest.raises(UsageError, match="labels: want a model that writes text, got an encoder"):
        LM(loud_model(config("bert-base")), TOKENIZER).classify(["x"], labels=["a", "b"])
    with pytest.raises(UsageError, match="context: want one for each question"):
        LM(loud_model(config("bert-base")), TOKENIZER).answer(["x"])
    prompting = few_shot({"labels": ["a", "b"]}, CLASSIFY_OPTIONS)
    lm = model()
    assert math.isclose(
        sum(FewShotClassifier.of(lm.model, lm.tokenizer, prompting).run(["x"])[0].probabilities.values()), 1
    )
