"""heddle explain: on the terminal, as a file, as JSON; the same numbers as score and generate; refusals in one line."""

import json
import math
from pathlib import Path

import pytest
import torch
from cli.runs import TOKENIZER, config, loud_model, save_run
from tasks.pair_runs import TOKENIZER as PAIRS
from tasks.pair_runs import small_pair

import heddle
from heddle.cli.main import main
from heddle.lm import LM


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs" / "one")
    return tmp_path


@pytest.fixture
def lm() -> LM:
    return heddle.load("one", device="cpu")


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["explain", *words, "--device", "cpu"]) == code
    out, err = capsys.readouterr()
    if code:
        assert out == "" and err.count("\n") == 1
    return err if code else out


def test_the_terminal_shows_what_the_model_has(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "Once upon")
    for line in ("probabilities: the next token", "attention: the attention weights", "lens: the logit lens"):
        assert line in shown
    assert "not shown: gates: want a recurrent model, got one without cells" in shown
    assert "residual" not in shown


def test_surprisal_is_that_of_score(lm: LM) -> None:
    shown = lm.explain("Once upon", what="probabilities")["probabilities"]
    scored = lm.score("Once upon")
    assert shown.logprobs[0] is None
    assert list(shown.logprobs[1:]) == pytest.approx([one.logprob for one in scored.tokens], abs=1e-5)
    ids = [*lm.tokenizer.special_tokens.document_start, *lm.tokenizer.encode("Once upon")]
    wanted = lm.logits([ids])[0].softmax(-1)
    for place, own in zip(shown.places, wanted, strict=True):
        best = own.topk(10)
        assert [one.id for one in place.best] == best.indices.tolist()
        assert [one.probability for one in place.best] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_an_encoder_decoders_surprisal_is_that_of_score() -> None:
    lm = LM(loud_model(small_pair()).eval(), PAIRS)
    shown = lm.explain("a b", output="b a", what="probabilities,attention")
    assert [one for one in shown["probabilities"].logprobs if one is not None] == pytest.approx(
        [one.logprob for one in lm.score("b a", source="a b").tokens], abs=1e-5
    )
    assert {one.kind for one in shown["attention"].maps} == {"self", "cross"}
    free = lm.explain("a b", what="probabilities", max_tokens=5)
    assert "".join(free.sequences[1].texts[1:]).startswith(lm.generate("a b", max_tokens=5)[:1])


def test_the_leaves_of_the_tree_are_what_beam_search_returns(lm: LM) -> None:
    tree = lm.explain("Once", what="beams", beams=3, max_tokens=6)["beams"]
    best = tree.path(tree.finished[0])
    prompt = lm.tokenizer.encode_prompt("Once")
    found = lm.generate_ids([prompt], beams=3, max_tokens=6, samples=3)
    leaves = [[tree.nodes[at].id for at in tree.path(end)] for end in tree.finished]
    assert leaves == found and [tree.nodes[at].id for at in best] == found[0]
    assert not all(at in tree.kept() for at in range(len(tree.nodes)))
    for node in tree.nodes:
        before = 0.0 if node.parent is None else tree.nodes[node.parent].total
        assert node.total == pytest.approx(before + node.logprob, abs=1e-9)


def test_json_has_every_number(here: Path, lm: LM, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "Once", "--what", "attention,lens,residual,trace", "--json", "out.json")
    data = json.loads((here / "out.json").read_text())
    assert data["sequences"][0]["tokens"][1:] == list("Once")
    own = lm.explain("Once", what=["attention", "trace"])
    for one, kept in zip(own["attention"].maps, data["attention"], strict=True):
        assert torch.equal(torch.tensor(kept["weights"]), one.weights)
    assert [step["name"] for step in data["trace"]] == [step.name for step in own["trace"].steps]
    names = [step["name"] for step in data["trace"]]
    assert len(set(names)) == len(names) and names[0] == "embedding" and names[-1] == "probabilities"
    assert torch.tensor(data["trace"][-2]["values"]).shape == tuple(data["trace"][-2]["shape"])
    said(capsys, "Once", "--what", "attention", "--json", "out.json")  # ours: overwritten
    assert json.loads(said(capsys, "Once", "--what", "probabilities", "--json", "-"))["probabilities"]["places"]


def test_control_characters_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "a\x1b[31m\x07\u202eb", "--what", "probabilities,attention,lens,attribution,beams")
    assert not set(shown) & set("\x1b\x07\u202e")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x", "--what", "gate"), "what: want one of probabilities, "),
        (("x", "--what", "gates"), "gates: want a recurrent model"),
        (("x", "--what", "experts"), "experts: want a mixture of experts"),
        (("x", "--what", "patching"), "patching: want a second text"),
        (("x", "--instead", "y"), "instead: want it with attribution or patching"),
        (("x", "--output", "y"), "output: want none"),
        (("x", "--what", "patching", "--corrupted", "xyz"), "corrupted: want a text of 2 tokens"),
        (("x", "--what", "attribution", "--target", ""), "target: want one token or more, got ''"),
        (("x", "--top", "0"), "top: want at least 1, got 0"),
        (("x" * 100,), "prompt: 101 tokens are more than the model's context of 48"),
        (("x", "--html", "nowhere/out.html"), "nowhere: no such folder"),
        (("x", "--html", "mine.html"), "mine.html: exists, and heddle did not write it"),
        (("x", "--json", "mine.html"), "mine.html: exists, and heddle did not write it"),
    ],
)
def test_wrong_input_is_refused_in_one_line(
    words: tuple[str, ...], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.html").write_text("<p>mine</p>")
    assert message in said(capsys, *words, code=2)
    assert (here / "mine.html").read_text() == "<p>mine</p>"


def test_a_target_of_several_tokens_and_its_rival_are_explained(lm: LM) -> None:
    found = lm.explain("Once", what="attribution", target="ab", instead="cd")["attribution"]
    own, other = (lm.score(text, context="Once").logprob for text in ("ab", "cd"))
    assert found.score == pytest.approx(own - other, abs=1e-4)
    assert (found.target, found.instead) == ("ab", "cd") and math.isfinite(found.completeness)


def test_a_model_without_a_tokenizer_takes_ids() -> None:
    lm = LM(loud_model(config()).eval(), None)
    assert len(lm.explain([1, 2, 3])["probabilities"].places) == 3
    with pytest.raises(heddle.HeddleError, match="takes ids only"):
        lm.explain("text")
    assert TOKENIZER.vocab
