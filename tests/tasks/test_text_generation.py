"""Text generation: streamed or whole, with constraints and log-probabilities, and never with an id without a token."""

import math
import re

import pytest
import torch
from cli.runs import TOKENIZER, config, loud_model
from tasks.pair_runs import loud_pair

from heddle.core import ConfigError, UsageError
from heddle.decoding import GenerationOptions
from heddle.decoding.runtime import FinishReason
from heddle.decoding.speculative import LookupDraft
from heddle.lm import LM
from heddle.models.networks import AutoregressiveModel
from heddle.tasks.generation import TextConstraints, make_constraints, text_generator
from heddle.text.tokenizers import CharacterTokenizer, Tokenizer

WORDS: list[GenerationOptions] = [
    {"temperature": 0.0},
    {"temperature": 1.2, "seed": 3},
    {"contrast": 0.6},
    {"beams": 3},
    {"temperature": 1.5, "repetition": 1.2, "presence": 0.1, "frequency": 0.1},
]


@pytest.fixture(scope="module")
def lm() -> LM:
    return LM(loud_model(config()).eval(), TOKENIZER)


@pytest.mark.parametrize("options", WORDS, ids=str)
def test_what_is_followed_is_what_is_generated(lm: LM, options: GenerationOptions) -> None:
    prompts = ["Once", "", "a long beginning"]
    rows: dict[int, str] = {0: "", 1: "", 2: ""}
    ended = {}
    for told in lm.stream_many(prompts, max_tokens=12, **options):
        assert told.row not in ended
        rows[told.row] += told.text
        if told.reason is not None:
            ended[told.row] = told.reason
    assert list(rows.values()) == lm.generate(prompts, max_tokens=12, **options)
    assert list(rows.values()) == [lm.generate(prompt, max_tokens=12, **options) for prompt in prompts]
    assert ended.keys() == rows.keys()


def test_a_stop_ends_one_row_and_its_text_before_the_stop(lm: LM) -> None:
    free = lm.generate(["Once", "a"], max_tokens=30, temperature=1.0)
    stop = next(c for c in free[0][3:] if c.isascii() and c.isprintable())
    task = lm.text_generator()
    config = task.generation_config({"max_tokens": 30, "temperature": 1.0})
    found = task.generate(task.requests(["Once", "a"], config), config, stop)
    assert [answer.text for answer in found] == [text.split(stop)[0] for text in free]
    assert found[0].completion.reason is FinishReason.STOP


def test_several_samples_stand_side_by_side_and_one_text_gives_one(lm: LM) -> None:
    found = lm.generate(["Once", "a"], max_tokens=6, temperature=1.5, samples=3)
    assert len(found) == 6 and len(set(found)) == 6
    assert [found[0], found[3]] == lm.generate(["Once", "a"], max_tokens=6, temperature=1.5)
    with pytest.raises(UsageError, match="samples: want 1 for a single prompt"):
        lm.generate("Once", max_tokens=6, temperature=1.5, samples=3)


# --- ids that stand for nothing ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide() -> LM:
    """A model with more ids than its tokenizer, which likes those best."""
    model = loud_model(config(vocab=TOKENIZER.vocab + 30)).eval()
    assert isinstance(model, AutoregressiveModel)
    real = model.head.logits

    def eager(vectors: torch.Tensor) -> torch.Tensor:
        scores = real(vectors)
        scores[..., TOKENIZER.vocab :] += 50.0
        return scores

    model.head.logits = eager  # type: ignore[method-assign]
    return LM(model, TOKENIZER)


@pytest.mark.parametrize("options", [*WORDS, {"temperature": 3.0, "samples": 4}], ids=str)
def test_ids_that_the_tokenizer_does_not_know_are_never_chosen(wide: LM, options: GenerationOptions) -> None:
    prompts = [wide.tokenizer.encode_prompt(text) for text in ("ab", "")]
    for ids in wide.generate_ids(prompts, max_tokens=9, **options):
        assert ids and all(id < TOKENIZER.vocab for id in ids)
    assert all(isinstance(text, str) for text in wide.generate(["ab"], max_tokens=9, **options))


# --- bias -------------------------------------------------------------------------------------------------------------


def test_a_bias_names_tokens_by_their_text(lm: LM) -> None:
    assert lm.generate("ab", max_tokens=5, bias={"q": 1000.0}) == "qqqqq"
    assert lm.generate("ab", max_tokens=5, bias={ord("q"): 1000.0}) == "qqqqq"
    free = lm.generate("ab", max_tokens=9, temperature=1.0)
    banned = next(c for c in free if c.isascii())
    assert banned not in lm.generate("ab", max_tokens=9, temperature=1.0, bias={banned: -math.inf})
    with pytest.raises(ConfigError, match="bias: want texts of one token, not 5"):
        lm.generate("ab", bias={" word": -5.0})


# --- log-probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", WORDS, ids=str)
def test_the_log_probabilities_add_up_to_the_score_of_the_text(lm: LM, options: GenerationOptions) -> None:
    task = lm.text_generator()
    config = task.generation_config({"max_tokens": 12, "logprobs": 2, **options})
    for prompt in ("Once", ""):
        (answer,) = task.generate(task.requests([prompt], config), config)
        if "\ufffd" in answer.text:  # bytes that are no text have no score
            ids = [*lm.tokenizer.encode_prompt(prompt), *answer.completion.ids]
            logprobs = lm.logits([ids]).log_softmax(-1)[0]
            new = range(len(lm.tokenizer.encode_prompt(prompt)) - 1, len(ids) - 1)
            wanted = sum(float(logprobs[at, ids[at + 1]]) for at in new)
        else:
            (scored,) = lm.score([answer.text], context=[prompt])
            wanted = scored.logprob
            ended = answer.completion.ids[-1] == TOKENIZER.end
            wanted += answer.completion.logprobs[-1] if ended else 0.0
        assert sum(answer.completion.logprobs) == pytest.approx(wanted, abs=1e-4)
        assert all(len(best) == 2 for best in answer.completion.alternatives)


def test_the_log_probabilities_of_an_answer_are_given_its_source() -> None:
    lm = LM(loud_pair(), TOKENIZER)
    task = lm.text_generator()
    for options in ({"temperature": 1.0}, {"beams": 3}):
        config = task.generation_config({"max_tokens": 8, "logprobs": 0, **options})  # type: ignore[typeddict-item]
        (answer,) = task.generate(task.requests(["the cat"], config), config)
        ids = [TOKENIZER.end, *answer.completion.ids]
        logprobs = lm.logits([ids[:-1]], source=[lm.tokenizer.source("the cat")]).log_softmax(-1)[0]
        wanted = [float(logprobs[at, id]) for at, id in enumerate(ids[1:])]
        assert answer.completion.logprobs == pytest.approx(wanted, abs=1e-4)


# --- rules and drafts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"contrast": 0.5}], ids=str)
def test_phrases_are_obeyed(lm: LM, options: GenerationOptions) -> None:
    free = lm.generate("ab", max_tokens=20, **options)
    letter = next(c for c in free if c.isascii())
    assert letter not in lm.generate("ab", max_tokens=20, rules=make_constraints(forbid=[letter]), **options)
    assert "so be it" in lm.generate("ab", max_tokens=30, rules=make_constraints(require=["so be it"]), **options)
    assert lm.generate("ab", max_tokens=20, rules=TextConstraints(), **options) == free


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"beams": 3}], ids=str)
def test_an_expression_is_obeyed_by_every_text(lm: LM, options: GenerationOptions) -> None:
    pytest.importorskip("llguidance")
    rules = make_constraints(regex="[a-z]{3}-[0-9]{2}")
    for text in lm.generate(["x", "", "a longer one"], max_tokens=20, rules=rules, **options):
        assert re.fullmatch("[a-z]{3}-[0-9]{2}", text)


def test_a_draft_changes_nothing_but_the_speed(lm: LM) -> None:
    prompts = ["Once", "aaaa aaaa aaaa"]
    small = LM(loud_model(config(width=8)).eval(), TOKENIZER)
    for options in ({}, {"temperature": 1.0}):
        plain = lm.generate(prompts, max_tokens=12, **options)  # type: ignore[misc]
        assert lm.generate(prompts, max_tokens=12, draft=LookupDraft(), **options) == plain  # type: ignore[misc]
    assert lm.generate(prompts, max_tokens=12, draft=small) == lm.generate(prompts, max_tokens=12)


def test_a_draft_of_another_tokenizer_is_refused(lm: LM) -> None:
    other: Tokenizer = CharacterTokenizer().train(["abc"])
    with pytest.raises(UsageError, match="draft: want a model with the same tokenizer"):
        lm.generate("a", draft=LM(lm.model, other))


def test_an_encoder_is_no_writer() -> None:
    from laws.cases import every

    from heddle.models.networks import Encoder

    made = next(c for c in every() if "bert" in c.name).config.build()
    assert isinstance(made, Encoder)
    with pytest.raises(UsageError, match="want an autoregressive model"):
        text_generator(made, TOKENIZER)
