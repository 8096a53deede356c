"""Weights: a model is loaded with its matrices in fewer bits, by the library and by the command line."""

import json
from pathlib import Path

import pytest
from cli.runs import save_run

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, UsageError
from heddle.nn.quantization import is_quantized

TEXTS = ["the quick brown fox", "one line more and so it goes"]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs" / "one")


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_packed_model_scores_nearly_as_the_float_one(weights: str) -> None:
    plain, packed = heddle.load("one", device="cpu"), heddle.load("one", device="cpu", weights=weights)
    assert is_quantized(packed.model)
    assert not is_quantized(plain.model)
    for want, got in zip(plain.score(TEXTS), packed.score(TEXTS), strict=True):
        assert got.logprob != want.logprob
        assert got.logprob == pytest.approx(want.logprob, rel=0.1)


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_floats_by_name_are_a_dtype(weights: str) -> None:
    lm = heddle.load("one", device="cpu", weights=weights)
    assert {str(p.dtype) for p in lm.model.parameters()} == {f"torch.{weights}"}


@pytest.mark.parametrize("compile", ["on", "off"])
def test_packed_model_writes_as_it_reads(compile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from heddle.decoding.runtime import cuda_graphs

    monkeypatch.setattr(cuda_graphs, "compile_step", lambda act, device: act)  # a compiler cannot follow checked shapes
    lm = heddle.load("one", device="cpu", weights="int8")
    ids = lm.tokenizer.encode(TEXTS[0])
    (new,) = lm.generate_ids([ids], max_tokens=6, temperature=0.0, compile=compile)
    scores = lm.logits([[*ids, *new]])[0]
    for at, id in enumerate(new, len(ids) - 1):
        assert scores[at, id] >= scores[at].max() - 0.05 * scores[at].abs().max()


def test_packed_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be saved"):
        heddle.load("one", weights="int8", device="cpu").model.weights()


def test_unknown_weights_are_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"weights: want one of auto, float32, bfloat16, int8, int4.*int8"):
        heddle.load("one", weights="int9")


def test_two_words_for_one_dtype_must_agree() -> None:
    for weights, dtype in (("float32", "bfloat16"), ("bfloat16", "float32")):
        with pytest.raises(ConfigError, match=f"dtype: want {weights} or nothing, beside weights='{weights}', got"):
            heddle.load("one", device="cpu", weights=weights, dtype=dtype)
    for agreed in ("bfloat16", "auto"):
        lm = heddle.load("one", device="cpu", weights="bfloat16", dtype=agreed)
        assert {str(p.dtype) for p in lm.model.parameters()} == {"torch.bfloat16"}


@pytest.mark.parametrize("verb", ["rescore", "correct"])
def test_weights_of_no_model_are_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("")
    assert main([verb, "text", "--no-model", "--weights", "int8"]) == 2
    assert "--weights has no effect with --no-model" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["generate", "score", "evaluate", "rescore", "correct"])
def test_verbs_take_weights(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.txt").write_text("\n".join(TEXTS))
    Path("lists.jsonl").write_text(json.dumps({"candidates": TEXTS}) + "\n")
    Path("words").write_text("the 9\nquick 5\nbrown 5\n")
    words = {
        "generate": ["generate", "the", "--max-tokens", "3", "--json"],
        "score": ["score", "text.txt"],
        "evaluate": ["evaluate", "--data", "text.txt", "--json"],
        "rescore": ["rescore", "lists.jsonl"],
        "correct": ["correct", "text.txt", "--words", "words", "--json"],
    }[verb]
    found = []
    for weights in ("auto", "int8"):
        assert main([*words, "-m", "one", "--device", "cpu", "--weights", weights]) == 0
        found.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert found[0][0].keys() == found[1][0].keys()
    if verb == "evaluate":
        assert found[0][0]["loss"] != found[1][0]["loss"]
    if verb == "rescore":
        assert found[0][0]["total"] != found[1][0]["total"]
    assert main([*words, "-m", "one", "--weights", "int2"]) == 2
