"""The task routes give what the library's own tasks give, and refuse what a model does not have."""

import json
from typing import Any

import pytest
from serving.server import Running
from serving.wire import exchange, post

from heddle.tasks.rescoring import Rescorer, ScoringModel, feature_weights, parse_nbest

TEXTS = ["Ann flew to Oslo.", "A dull film."]
EXAMPLES = [["fine", "good"], ["dull", "bad"], ["warm", "good"]]
TUPLES: Any = [tuple(one) for one in EXAMPLES]


def close(found: Any, wanted: Any) -> bool:
    """Tell whether two values are equal, numbers nearly so."""
    if isinstance(wanted, float):
        return bool(found == pytest.approx(wanted, rel=1e-4, abs=1e-5))
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(close(a, b) for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted)


def ask(server: Running, task: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a task route answers, in order."""
    status, found = post(server, f"/v1/heddle/{task}", body)
    assert status == 200, found
    assert [one.pop("index") for one in found["data"]] == list(range(len(found["data"])))
    assert (found["object"], found["model"]) == ("list", body["model"])
    data: list[dict[str, Any]] = found["data"]
    return data


def test_encoder_labels_texts_as_the_library_does(server: Running, lms: dict[str, Any]) -> None:
    lm, reader = lms["reader"], {"model": "reader", "texts": TEXTS}
    assert close(ask(server, "classify", reader), [one.plain() for one in lm.classify(TEXTS)])
    pairs = ask(server, "classify", reader | {"pairs": TEXTS[::-1]})
    assert close(pairs, [one.plain() for one in lm.classify(TEXTS, pair=TEXTS[::-1])])
    assert close(ask(server, "tag", reader), [json.loads(json.dumps(one.plain())) for one in lm.tag(TEXTS)])
    words = [["Ann", "flew"], ["to"]]
    assert close(ask(server, "tag", {"model": "reader", "texts": words}), [one.plain() for one in lm.tag(words)])
    (filled,) = ask(server, "fill", {"model": "reader", "texts": "An[MASK] f[MASK]w", "top": 3})
    wanted = [[token.plain() for token in gap] for gap in lm.fill("An[MASK] f[MASK]w", top=3)]
    assert close(filled["masks"], wanted) and [len(gap) for gap in filled["masks"]] == [3, 3]
    asked = {"model": "reader", "questions": ["Who?"], "contexts": [TEXTS[0]]}
    for must in (False, True):
        wanted = [lm.answer("Who?", TEXTS[0], must=must).plain()]
        assert close(ask(server, "answer", asked | {"must": must}), wanted)


@pytest.mark.parametrize("name", ["gpt", "lstm", "pair"])
def test_model_that_writes_text_is_prompted_as_by_the_library(name: str, server: Running, lms: dict[str, Any]) -> None:
    body = {"model": name, "texts": TEXTS, "examples": EXAMPLES, "k": 2, "seed": 3, "calibrate": True}
    wanted = lms[name].classify(TEXTS, examples=TUPLES, k=2, seed=3, calibrate=True)
    assert close(ask(server, "classify", body), [one.plain() for one in wanted])
    asked = {"model": name, "questions": ["Who?", "Why?"], "examples": EXAMPLES, "max_tokens": 9}
    answers = lms[name].answer(["Who?", "Why?"], examples=TUPLES, max_tokens=9)
    assert close(ask(server, "answer", asked), [one.plain() for one in answers])


def test_encoder_decoder_writes_as_the_library_does(server: Running, lms: dict[str, Any]) -> None:
    lm, body = lms["pair"], {"model": "pair", "texts": [*TEXTS, " "], "max_tokens": 12}
    for beams in (1, 3):
        found = ask(server, "translate", body | {"beams": beams})
        wanted = lm.generate(TEXTS, beams=beams, max_tokens=12, max_length_ratio=2.0)
        assert [one["text"] for one in found] == [*(" ".join(text.split()) for text in wanted), ""]
        found = ask(server, "summarize", body | {"beams": beams})
        assert [one["text"] for one in found] == lm.summarize([*TEXTS, " "], beams=beams, max_tokens=12)
        assert [one["windows"] for one in found] == [1, 1, 1]


@pytest.mark.parametrize("name", ["gpt", "lstm", "pair", "reader"])
def test_candidates_are_chosen_as_by_the_library(name: str, server: Running, lms: dict[str, Any]) -> None:
    records: list[dict[str, Any]] = [
        {"id": 7, "candidates": [{"text": "a b", "score": -1.0}, {"text": "c", "score": -2.5}], "source": "x"},
        {"candidates": [{"text": "d", "score": -3.0}, {"text": "e f", "score": 0.5}], "context": "y ", "source": "x"},
    ]
    body = {"model": name, "lists": records, "weight": 0.3, "bonus": 0.2}
    if name == "reader":
        body["weight"] = {"reader": 0.3, "score": 1.0}
    task = Rescorer((ScoringModel(name, lms[name].model, lms[name].tokenizer),))
    lists = [parse_nbest(record) for record in records]
    features, weighting = task.features(lists), feature_weights(["score"], [name], {}, weight=0.3, bonus=0.2)
    chosen = weighting.arrays(features).choose(weighting.vector).tolist()
    for found, one, own, index in zip(ask(server, "rescore", body), lists, features, chosen, strict=True):
        scores = {key: float(values[index]) for key, values in own.items()}
        assert (found["id"], found["chosen"], found["text"]) == (one.id, index, one.candidates[index].text)
        assert close(found["scores"], scores)
        assert close(found["total"], sum(weighting.weights[key] * value for key, value in scores.items()))


def test_embeddings_are_the_librarys_own(server: Running, lms: dict[str, Any]) -> None:
    for name in ("gpt", "reader"):
        found = ask(server, "embed", {"model": name, "texts": TEXTS})
        assert close([one["embedding"] for one in found], lms[name].embed(TEXTS).tolist())


def test_models_say_which_tasks_they_have(server: Running) -> None:
    cards = json.loads(exchange(server, "GET", "/v1/models")[2])["data"]
    tasks = {card["id"]: set(card["tasks"]) for card in cards}
    always = {"score", "rescore", "embed"}
    assert tasks["gpt"] == tasks["lstm"] == {"classify", "answer"} | always
    assert tasks["pair"] == {"classify", "answer", "translate", "summarize"} | always
    assert tasks["reader"] == {"classify", "tag", "answer", "fill"} | always


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("classify", {"model": "gpt", "texts": "a"}, "model", "classify: want an encoder"),
    ("classify", {"model": "reader", "texts": "a", "labels": ["x", "y"]}, "labels", "want a model that writes text"),
    ("classify", {"model": "reader", "texts": ["a"], "pairs": ["b", "c"]}, "pairs", "want 1, one for each text, got 2"),
    ("classify", {"model": "gpt", "texts": "a", "examples": EXAMPLES, "k": 9}, "k", "want 0 to 3"),
    ("classify", {"model": "gpt", "texts": "a", "examples": [["b"]]}, "examples", "want tuples"),
    ("tag", {"model": "lstm", "texts": "a"}, "model", "tag: want an encoder"),
    ("tag", {"model": "reader", "texts": [["a", ""]]}, "texts", "none empty"),
    ("fill", {"model": "reader", "texts": "no gap"}, "fill", "want a mask in the text"),
    ("fill", {"model": "reader", "texts": "[MASK]", "top": 0}, "top", "greater than or equal to 1"),
    ("answer", {"model": "reader", "questions": "a"}, "contexts", "want one for each question"),
    ("answer", {"model": "reader", "questions": "a", "contexts": "b", "k": 0}, "model", "is an encoder"),
    ("answer", {"model": "gpt", "questions": "a", "must": True}, "must", "has no effect"),
    ("translate", {"model": "gpt", "texts": "a"}, "model", "translate: want an encoder-decoder"),
    ("translate", {"model": "pair", "texts": []}, "texts", "want 1 to 256"),
    ("summarize", {"model": "reader", "texts": "a"}, "model", "summarize: want an encoder-decoder"),
    ("summarize", {"model": "pair", "texts": "a", "beams": 99}, "beams", "less than or equal to 16"),
    ("rescore", {"model": "gpt", "lists": [{"candidates": []}]}, "candidates", "want a list of one candidate"),
    ("rescore", {"model": "pair", "lists": [{"candidates": ["a"]}]}, "source", "since pair is an encoder-decoder"),
    ("rescore", {"model": "gpt", "lists": [{"candidates": ["a"] * 300}]}, "lists", "want at most 256"),
    ("rescore", {"model": "gpt", "lists": [{"candidates": ["a"]}], "weight": {"x": 1.0}}, "weight", "want one of"),
    ("embed", {"model": "gpt", "texts": "a", "bogus": 1}, "bogus", "not a field of this route"),
]


@pytest.mark.parametrize(("task", "body", "param", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_fault_of_a_task_is_named_in_one_line(
    task: str, body: dict[str, Any], param: str, words: str, server: Running
) -> None:
    status, found = post(server, f"/v1/heddle/{task}", body)
    error = found["error"]
    assert (status, error["param"]) == (400, param), error
    assert words in error["message"] and "\n" not in error["message"]


def test_examples_that_do_not_fit_are_counted_and_not_logged(server: Running) -> None:
    secret = "canary-example-30418"
    body = {"model": "gpt", "texts": secret, "examples": [["x" * 300, "good"], ["y" * 300, "bad"]], "k": 2}
    (found,) = ask(server, "classify", body)
    assert found["examples"] < 2
    assert secret not in server.log.read_text()
