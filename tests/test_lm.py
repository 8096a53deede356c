"""The public API: text in, text, probabilities and vectors out."""

import math
import subprocess
import sys
from collections.abc import Callable
from inspect import unwrap
from pathlib import Path

import pytest
import torch
from cli.runs import CONTEXT, TOKENIZER, config, loud_model, save_run

import heddle
from heddle.core import UsageError
from heddle.lm import LM
from heddle.models.networks import LanguageModel


@pytest.fixture(scope="module")
def lm() -> LM:
    model = loud_model(config()).eval()
    assert isinstance(model, LanguageModel)
    return LM(model, TOKENIZER)


def test_import_is_cheap() -> None:
    code = "import heddle, sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; print(dir(heddle))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_front_door_has_the_names_of_the_contract(tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    loaded = heddle.load(tmp_path / "run")
    assert isinstance(loaded, heddle.LM)
    assert set(dir(heddle)) >= {"LM", "load", "build", "presets", "rules", "LookupDraft", "HeddleError"}
    assert all(getattr(heddle, name) is not None for name in heddle.__all__)
    assert "gpt2" in heddle.presets()
    built = heddle.build("gpt2", layers=2, width=64, heads=4, vocab=512)
    assert isinstance(built, torch.nn.Module)
    with pytest.raises(AttributeError, match="lod"):
        _ = heddle.lod  # type: ignore[attr-defined]


def test_one_text_gives_one_and_a_list_gives_a_list(lm: LM) -> None:
    texts = lm.generate(["Once", "a"], max_tokens=9)
    assert texts == [lm.generate("Once", max_tokens=9), lm.generate("a", max_tokens=9)]
    assert lm.generate([], max_tokens=9) == []


def test_generated_text_is_that_of_the_ids(lm: LM) -> None:
    for temperature in (0.0, 1.0):
        text = lm.generate("Once", max_tokens=30, temperature=temperature, seed=4)
        ids = lm.generate_ids([lm.tokenizer.encode_prompt("Once")], max_tokens=30, temperature=temperature, seed=4)[0]
        assert text == TOKENIZER.decode(ids)


def test_streamed_text_is_the_generated_text(lm: LM) -> None:
    for stop in ((), ("e",), "o"):
        whole = lm.generate("Once", max_tokens=30, temperature=1.0, stop=stop)
        assert "".join(lm.stream("Once", max_tokens=30, temperature=1.0, stop=stop)) == whole


def test_text_ends_before_a_stop_and_no_token_is_wasted(lm: LM) -> None:
    free = lm.generate("Once", max_tokens=30, temperature=1.0)
    stop = next(letter for letter in free[4:] if letter.isascii())
    cut = lm.generate("Once", max_tokens=30, temperature=1.0, stop=stop)
    assert cut == free[: free.index(stop)]


def test_an_empty_prompt_is_a_new_document(lm: LM) -> None:
    assert lm.generate_ids([[]], max_tokens=5) == lm.generate_ids([[TOKENIZER.end]], max_tokens=5)
    assert lm.generate("", max_tokens=5) == TOKENIZER.decode(lm.generate_ids([[]], max_tokens=5)[0])


def test_a_prompt_longer_than_the_context_is_refused(lm: LM) -> None:
    with pytest.raises(UsageError, match=f"context of {CONTEXT}"):
        lm.generate("x" * CONTEXT)  # the beginning of the document is one more


def test_scores_add_up_and_agree_with_the_logits(lm: LM) -> None:
    text = "two words, naïve"
    (scored,) = lm.score([text])
    row = lm.tokenizer.encode_prompt(text)
    probs = lm.logits([row[:-1]]).log_softmax(-1)[0]
    wanted = probs[torch.arange(len(row) - 1), torch.tensor(row[1:])]
    assert [t.logprob for t in scored.tokens] == pytest.approx(wanted.tolist(), abs=1e-4)
    assert scored.logprob == pytest.approx(wanted.sum().item(), abs=1e-3)
    assert math.fsum(w.logprob for w in scored.words) == pytest.approx(scored.logprob)
    assert [w.text for w in scored.words] == text.split()
    assert scored.bits_per_byte == pytest.approx(-scored.logprob / math.log(2) / len(text.encode()))
    assert scored.perplexity == pytest.approx(math.exp(-scored.logprob / len(scored.tokens)))


def test_scoring_together_is_scoring_alone_at_any_length(lm: LM) -> None:
    texts = ["a", "", "a longer text " * 20, "b c"]
    together = lm.score(texts)
    for text, scored in zip(texts, together, strict=True):
        assert scored.logprob == pytest.approx(lm.score([text])[0].logprob, abs=1e-4)
    assert together[1].tokens == () and together[1].words == () and together[1].bits_per_byte == 0


def test_logits_are_those_of_the_model(lm: LM) -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    assert torch.equal(lm.logits(rows), lm.model.logits(torch.tensor(rows)))
    for wrong in ([], [[1], [1, 2]], [[TOKENIZER.vocab]]):
        with pytest.raises(UsageError):
            lm.logits(wrong)


def test_embeddings_do_not_depend_on_their_neighbours(lm: LM) -> None:
    texts = ["a", "a longer text"]
    together = lm.embed(texts)
    assert together.shape == (2, 16)
    for text, vector in zip(texts, together, strict=True):
        alone = lm.model(torch.tensor([lm.tokenizer.encode_prompt(text)]))[0].mean(0)
        assert torch.allclose(vector, alone, atol=1e-5)


def test_many_texts_are_read_by_length_a_few_at_a_time(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "a longer text" * 2, "bb", "c", "another text"]
    alone = [lm.embed([text])[0] for text in texts]
    monkeypatch.setattr("heddle.decoding.scoring.scoring.BATCH", 8)
    shapes: list[tuple[int, ...]] = []
    hook = lm.model.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    together = lm.embed(texts)
    hook.remove()
    assert torch.allclose(together, torch.stack(alone), atol=1e-5)
    assert shapes == [(1, 27), (1, 13), (2, 3), (1, 2)], "the longest first, and none beside a much shorter one"


def test_wrong_kinds_of_input_are_named(lm: LM) -> None:
    for call in (lambda: lm.embed(5), lambda: lm.logits([1, 2]), lambda: lm.logits("text")):  # type: ignore
        with pytest.raises(UsageError, match="want"):
            call()
    with pytest.raises(UsageError, match="window"):
        lm.score(["text"], window=CONTEXT + 1)


WRONG: dict[str, tuple[Callable[[LM], object], str]] = {
    "a number for a text": (lambda lm: lm.generate(5), "generate: want a text or a list of texts"),
    "ids for texts": (lambda lm: lm.generate([1, 2]), r"lm.generate_ids takes ids.*got 1 among them"),
    "bytes": (lambda lm: lm.generate(b"x"), "generate: want a text"),
    "nothing among texts": (lambda lm: lm.generate(["a", None]), "got None among them"),
    "a stop": (lambda lm: lm.generate("a", stop=5), "stop: want a text or a list of texts"),
    "an empty stop": (lambda lm: lm.generate("a", stop=["b", ""]), "none of them empty"),
    "rules": (lambda lm: lm.generate("a", rules={"regex": "a"}), r"rules: want the result of heddle.rules"),
    "a rule": (
        lambda lm: lm.generate("a", regex="a"),
        r"regex: pass it as rules=heddle.rules\(regex=...\)",
    ),
    "a draft": (lambda lm: lm.generate("a", draft="lookup"), "draft: want a model, or .* heddle.LookupDraft"),
    "a number": (lambda lm: lm.generate("a", max_tokens="x"), "max_tokens: want a whole number, got 'x'"),
    "a bias": (lambda lm: lm.generate("a", bias=5), "bias: want a dict"),
    "a cache": (lambda lm: lm.generate("a", cache=[]), "cache: want one of full, int8"),
    "a stretch": (
        lambda lm: lm.generate("a", max_length_ratio=2.0),
        "max_length_ratio: not used by a language model",
    ),
    "a streamed list": (lambda lm: lm.stream(["a"]), "stream: want a text"),
    "a followed text": (lambda lm: lm.stream_many("abc"), "stream_many: want a list of texts, got one text"),
    "a row for rows": (lambda lm: lm.generate_ids([1, 2]), "generate_ids: want rows of ids"),
    "fractions": (lambda lm: lm.generate_ids([[1.5]]), "generate_ids: want rows of ids"),
    "texts for ids": (lambda lm: lm.generate_ids("abc"), "generate_ids: want rows of ids"),
    "a stop for ids": (lambda lm: lm.generate_ids([[1]], stop="a"), "stop: not supported by generate_ids"),
    "nothing to score": (lambda lm: lm.score(None), "score: want a list of texts"),
    "a number to score": (lambda lm: lm.score(5), "score: want a list of texts, got 5"),
    "a source": (lambda lm: lm.score(["a"], source=5), "source: want a list of texts"),
    "a context": (lambda lm: lm.score(["a"], context=["a", "b"]), "context: want 1, one for each text, got 2"),
    "a window": (lambda lm: lm.score(["a"], window="x"), "window: want a whole number"),
    "logits of a text": (lambda lm: lm.logits("abc"), "logits: want rows of ids"),
    "logits of fractions": (lambda lm: lm.logits([[1.5]]), "logits: want rows of ids"),
    "logits of a source": (lambda lm: lm.logits([[1]], source=5), "logits: want rows of ids"),
    "vectors of a number": (lambda lm: lm.embed(5), "embed: want a list of texts"),
    "a dial as text": (lambda _: heddle.build("gpt2", layers="2"), "layers: want a whole number, got '2'"),
    "half a layer": (lambda _: heddle.build("gpt2", layers=2.5), "layers: want a whole number, got 2.5"),
    "a true dial": (lambda _: heddle.build("gpt2", layers=True), "layers: want a whole number, got True"),
    "a rate as text": (lambda _: heddle.build("gpt2", dropout="a"), "dropout: want a number, got 'a'"),
    "a seed": (lambda _: unwrap(heddle.build)("first", seed="x"), "seed: want a whole number, got 'x'"),
    "no name": (lambda _: unwrap(heddle.build)(None), "name: want a text, got None"),
    "a long name": (lambda _: heddle.load("a" * 300), "a…: name too long"),
    "a path": (lambda _: heddle.load(5), "path: want a path or a name"),
    "a device": (lambda _: heddle.load("none", device=torch.device("cpu")), "device: want a word"),
    "an expression": (lambda _: heddle.rules(regex=5), "regex: want a text"),
    "a schema": (lambda _: heddle.rules(schema={"a": {1}}), "schema: want a dict that can be written as JSON"),
    "phrases": (lambda _: heddle.rules(require=[5]), "require: want a phrase or a list of phrases"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_of_the_wrong_kind_is_refused_in_one_line(name: str, lm: LM) -> None:
    call, message = WRONG[name]
    with pytest.raises(heddle.HeddleError, match=message) as error:
        call(lm)
    assert "\n" not in str(error.value)


def test_one_phrase_is_a_phrase_and_not_its_letters() -> None:
    assert heddle.rules(require="wolf", forbid="lamb") == heddle.rules(require=["wolf"], forbid=["lamb"])


def test_ids_may_come_as_tensors_and_texts_from_anything(lm: LM) -> None:
    ids = [[1, 2, 3]]
    assert torch.equal(lm.logits(torch.tensor(ids)), lm.logits(ids))
    assert lm.generate_ids(torch.tensor(ids), max_tokens=3) == lm.generate_ids(ids, max_tokens=3)
    assert lm.generate((text for text in "ab"), max_tokens=3) == lm.generate(["a", "b"], max_tokens=3)
    assert lm.generate("a", max_tokens=3, stop=None) == lm.generate("a", max_tokens=3)


def test_a_draft_streams_too(lm: LM) -> None:
    wanted = lm.generate("Once", max_tokens=30)
    assert "".join(lm.stream("Once", max_tokens=30, draft=heddle.LookupDraft())) == wanted
