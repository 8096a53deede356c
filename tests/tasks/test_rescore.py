"""Rescoring: totals add up, equal texts are read once, tuning finds the best there is, lists are checked."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from cli.runs import TOKENIZER, config, loud_model
from tasks.pair_runs import small_pair

from heddle.core import ConfigError, DataError, UsageError
from heddle.models.networks import EncoderDecoder, LanguageModel
from heddle.tasks.metrics import WordErrorRate
from heddle.tasks.rescoring import (
    WORDS,
    NBest,
    NBestCandidate,
    Rescorer,
    RescoringConfig,
    ScoringModel,
    feature_weights,
    measure_weights,
    metric_counts,
    parse_nbest,
    tune_weights,
)
from heddle.tasks.rescoring.mert import Mert, NBestArrays
from heddle.tasks.scoring import ScoringInput, text_scorer
from heddle.text.normalize import NormalizerConfig
from heddle.text.tokenizers import MASK, ByteTokenizer


@pytest.fixture(scope="module")
def scoring_model() -> ScoringModel:
    model = loud_model(config())
    assert isinstance(model, LanguageModel)
    return ScoringModel("small", model, TOKENIZER)


def nbest(*texts: str, **more: Any) -> NBest:
    return NBest(tuple(NBestCandidate(text, {"score": -float(i)}) for i, text in enumerate(texts)), **more)


# --- features ---------------------------------------------------------------------------------------------------------


def test_logprob_is_that_of_the_text_after_its_context(scoring_model: ScoringModel) -> None:
    lists = [nbest("to be", "or not", context="he said\n"), nbest("to be")]
    rescorer = Rescorer((scoring_model,), RescoringConfig(ending="none"))
    found = rescorer.features(lists)
    wanted = text_scorer(scoring_model.model, TOKENIZER).run(
        [ScoringInput("to be", "he said\n"), ScoringInput("or not", "he said\n")]
    )
    assert found[0]["small"] == pytest.approx([s.logprob for s in wanted], abs=1e-4)
    assert found[0]["score"].tolist() == [0.0, -1.0]
    assert found[0][WORDS].tolist() == [2.0, 2.0]
    assert found[1]["small"][0] != found[0]["small"][0]


def test_a_score_of_a_judge_is_given_anew_and_a_count_of_words_is_refused(scoring_model: ScoringModel) -> None:
    fresh = Rescorer((scoring_model,)).features([NBest((NBestCandidate("to be", {}),))])
    again = Rescorer((scoring_model,)).features([NBest((NBestCandidate("to be", {"small": 5.0}),))])
    assert again[0]["small"] == pytest.approx(fresh[0]["small"])
    with pytest.raises(DataError, match=f"scores: want a name other than {WORDS}"):
        Rescorer((scoring_model,)).features([NBest((NBestCandidate("to be", {WORDS: 5.0}),))])


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_shared_context_changes_nothing(name: str) -> None:
    model = loud_model(config(name))
    rescorer = Rescorer((ScoringModel("small", model, TOKENIZER),))
    texts = ["to be", "or not to be", "x", ""]
    for context in ("he said\n", "much more than a model can hold " * 3):
        together = rescorer.features([nbest(*texts, context=context)])[0]["small"]
        apart = [rescorer.features([nbest(text, context=context)])[0]["small"][0] for text in texts]
        assert together == pytest.approx(apart, abs=1e-3)


def test_encoder_gives_its_pseudo_log_likelihood() -> None:
    tokenizer = ByteTokenizer(special=(MASK,)).train([])
    model = loud_model(config("bert-base-masked", vocab=tokenizer.vocab)).eval()
    found = Rescorer((ScoringModel("bert", model, tokenizer),)).features([nbest("ab", "ba")])[0]["bert"]
    wanted = text_scorer(model, tokenizer).run([ScoringInput("ab"), ScoringInput("ba")])
    assert found == pytest.approx([s.logprob for s in wanted], abs=1e-4)
    with pytest.raises(UsageError, match="bert: want a tokenizer with"):
        Rescorer((ScoringModel("bert", model, TOKENIZER),)).features([nbest("ab")])


def test_what_ends_a_text_counts(scoring_model: ScoringModel) -> None:
    alone = Rescorer((scoring_model,), RescoringConfig(ending="none")).features([nbest("to be", "to be\n")])[0]["small"]
    line = Rescorer((scoring_model,), RescoringConfig(ending="line")).features([nbest("to be")])[0]["small"]
    document = Rescorer((scoring_model,)).features([nbest("to be")])[0]["small"]
    assert line[0] == pytest.approx(alone[1], abs=1e-4)
    assert document[0] < alone[0] and document[0] != pytest.approx(line[0], abs=1e-4)


def test_equal_texts_are_read_once(scoring_model: ScoringModel, monkeypatch: pytest.MonkeyPatch) -> None:
    import heddle.tasks.rescoring.rescore as module

    asked: list[int] = []
    plain = module.text_logprobs
    monkeypatch.setattr(
        module, "text_logprobs", lambda j, requests, r: asked.append(len(requests)) or plain(j, requests, r)
    )
    rescorer = Rescorer((scoring_model,), RescoringConfig(form=NormalizerConfig()))
    found = rescorer.features([nbest("A b.", "a B", "c"), nbest("a b")])
    assert asked == [2]
    assert found[0]["small"][0] == found[0]["small"][1] == found[1]["small"][0]


def test_encoder_decoder_needs_the_source() -> None:
    model = small_pair().build(0)
    assert isinstance(model, EncoderDecoder)
    rescorer = Rescorer((ScoringModel("pair", model, TOKENIZER),))
    found = rescorer.features([nbest("das", "ein", source="the"), nbest("das", source="a")])
    assert found[0]["pair"][0] != found[1]["pair"][0]
    with pytest.raises(DataError, match="source: want the text that was translated"):
        rescorer.features([nbest("das")])


def test_two_models_of_one_name_are_refused(scoring_model: ScoringModel) -> None:
    with pytest.raises(ConfigError, match="different names"):
        Rescorer((scoring_model, scoring_model))


# --- choosing and tuning ----------------------------------------------------------------------------------------------


def drawn_lists(seed: int, lists: int = 40, features: int = 3) -> tuple[list[dict[str, Any]], list[Any]]:
    """Draw features and error counts; the second and third feature tell something of the errors."""
    draw = np.random.default_rng(seed)
    found, counts = [], []
    for _ in range(lists):
        size = int(draw.integers(1, 7))
        errors = draw.integers(0, 5, size)
        rows = draw.normal(size=(features, size)) - 0.4 * errors * np.arange(features)[:, None]
        found.append({"score": rows[0], "a": rows[1], WORDS: rows[2]})
        counts.append(np.stack([errors, np.full(size, 10)], axis=1).astype(float))
    return found, counts


def test_line_search_finds_the_least_cost_of_a_fine_grid() -> None:
    for seed in range(5):
        features, counts = drawn_lists(seed)
        weighting = feature_weights(["score"], ["a"], {})
        search = Mert(weighting.arrays(features, counts), WordErrorRate(), {1: (0.0, 5.0), 2: (-9.0, 9.0)})
        for direction in np.array([[0.0, 1.0, 0.0], [0.0, 1.0, -1.0]]):
            step, cost = search.line(weighting.vector, direction)
            grid = [search.cost(weighting.vector + x * direction) for x in np.linspace(-0.5, 4.5, 401)]
            assert search.cost(weighting.vector + step * direction) == pytest.approx(cost)
            assert -0.5 <= step <= 4.5 and cost <= min(grid) + 1e-9


def test_tuning_never_ends_worse_than_it_began_and_reports_what_it_did() -> None:
    features, counts = drawn_lists(3, lists=200)
    weighting = feature_weights(["score"], ["a"], {}, weight=0.3)
    tuned = tune_weights(features, counts, WordErrorRate(), weighting)
    before, after = (measure_weights(features, counts, WordErrorRate(), m) for m in (weighting, tuned))
    assert after.oracle <= after.after < before.after <= 1e9
    assert after.before == before.before and after.lists == 200
    assert after.better > after.worse and after.changed >= after.better + after.worse
    assert tuned.weights["score"] == 1.0 and tuned.weights["a"] > 0


def test_choice_is_the_highest_total_and_the_first_of_equals() -> None:
    draw = random.Random(0)
    for _ in range(50):
        rows = [np.array([[draw.randint(0, 2) for _ in range(2)] for _ in range(draw.randint(1, 5))]) for _ in range(3)]
        weights = np.array([1.0, 0.5])
        wanted = [max(range(len(r)), key=lambda i, r=r: (r[i] @ weights, -i)) for r in rows]
        assert NBestArrays.of(rows).choose(weights).tolist() == wanted


def test_before_is_the_first_pass_and_oracle_the_best_of_each_list(scoring_model: ScoringModel) -> None:
    lists = [nbest("a b c", "a b", reference="a b"), nbest("x", "y z", reference="x")]
    features = Rescorer(()).features(lists)
    measure = WordErrorRate()
    report = measure_weights(
        features, metric_counts(lists, measure), measure, feature_weights(["score"], [], {WORDS: -5.0})
    )
    assert (report.before, report.after, report.oracle) == pytest.approx((100 / 3, 0.0, 0.0))
    assert (report.changed, report.better, report.worse) == (1, 1, 0)


def test_lists_without_scores_come_in_their_order() -> None:
    lists = [NBest((NBestCandidate("b"), NBestCandidate("a")), reference="b")]
    report = measure_weights(
        Rescorer(()).features(lists),
        metric_counts(lists, WordErrorRate()),
        WordErrorRate(),
        feature_weights([], [], {}),
    )
    assert report.before == 0.0


def test_score_without_a_weight_is_refused() -> None:
    weighting = feature_weights(["score"], ["lm"], {"lm": 0.2})
    assert weighting.weights == {"score": 1.0, "lm": 0.2, WORDS: 0.0}
    with pytest.raises(DataError, match="found other, which has no weight"):
        weighting.arrays([{"other": np.zeros(1), WORDS: np.zeros(1)}])
    with pytest.raises(ConfigError, match="weight: want one of score, lm, words, got 'lmm'; did you mean 'lm'"):
        feature_weights(["score"], ["lm"], {"lmm": 1.0})


# --- lists ------------------------------------------------------------------------------------------------------------


def test_lists_go_by_several_names() -> None:
    for key, right in itertools.product(("candidates", "hyps"), ("ref", "reference")):
        found = parse_nbest({"id": "u", key: [{"text": "a", "score": -1}], right: "b"})
        assert found == NBest((NBestCandidate("a", {"score": -1.0}),), "u", "b")
    found = parse_nbest({"candidates": ["a", "b"], "source": "x", "context": "y", "right": "z"}, "right")
    assert [c.text for c in found.candidates] == ["a", "b"] and found.names == ()
    assert (found.source, found.context, found.reference) == ("x", "y", "z")
    named = parse_nbest({"candidates": [{"text": "a", "score": 1, "scores": {"am": 2.5}}]})
    assert named.candidates[0].scores == {"score": 1.0, "am": 2.5}


BAD = {
    "candidates: want a list of one candidate or more, got None": {},
    "candidates: want a list of one candidate or more, got []": {"candidates": []},
    'scores: want each with its own candidate: {"text": ..., "score": ...}, got [-1.0]': {
        "candidates": ["a"],
        "scores": [-1.0],
    },
    "candidates.0.text: want a text, got 'nothing'": {"candidates": [{"score": 1}]},
    "candidates.0.text: want a text, got 3": {"candidates": [{"text": 3}]},
    "candidates.1: want a candidate with a text, got 7": {"candidates": ["a", 7]},
    "candidates.0.score: want a finite number, got 'high'": {"candidates": [{"text": "a", "score": "high"}]},
    "candidates.0.score: want a finite number, got True": {"candidates": [{"text": "a", "score": True}]},
    "candidates.1: want score, as the first candidate has, got 'no scores'": {
        "candidates": [{"text": "a", "score": 1}, {"text": "b"}]
    },
    "candidates.0.scores: want an object of numbers by name, got [1]": {"candidates": [{"text": "a", "scores": [1]}]},
    "candidates.0.text: want at most 100,000 characters, got '1,048,576'": {"candidates": ["x" * (1 << 20)]},
    "reference: want a text, got 1": {"candidates": ["a"], "reference": 1},
    "id: want a text or a whole number, got [1]": {"candidates": ["a"], "id": [1]},
}


@pytest.mark.parametrize(("message", "record"), BAD.items(), ids=range(len(BAD)))
def test_record_that_is_no_list_is_told_by_field(message: str, record: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_nbest(record)
    assert str(caught.value) == message
