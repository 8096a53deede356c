"""Long texts: the loss by position, attention sinks in every command, and passkey retrieval."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.runs import TOKENIZER, config, save_run

import heddle
from heddle.cli.main import main
from heddle.core import replace
from heddle.decoding.runtime import StreamingConfig
from heddle.decoding.scoring import Continuation
from heddle.models.networks import LanguageModel
from heddle.nn.positions import LearnedPositionConfig
from heddle.tasks.evaluation import answer_passkeys, passkey_examples, passkey_metrics, passkey_text
from heddle.tasks.scoring import PositionConfig, loss_by_position

TEXT = "".join(f"{i} green bottles hanging on the wall\n" for i in range(30))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    save_run(folder / "run")
    save_run(folder / "learned", replace(config().expand(), position=LearnedPositionConfig()))
    (folder / "text.txt").write_text(TEXT)
    (folder / "line.txt").write_text(TEXT.replace("\n", " ")[:200] + "\n")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0, words
    return capsys.readouterr().out


def test_the_loss_by_position_is_the_mean_of_each_place() -> None:
    lm = heddle.load("run")
    found = loss_by_position(lm.model, lm.tokenizer, [TEXT, TEXT[:70]], PositionConfig(length=100, bucket=10))
    ids = [*lm.tokenizer.encode(TEXT), lm.tokenizer.end], [*lm.tokenizer.encode(TEXT[:70]), lm.tokenizer.end]
    rows = [row[start : start + 100] for row in ids for start in range(0, len(row), 100)]
    places: list[list[float]] = [[] for _ in range(10)]
    wide = replace(config().expand(), context=128).build(0)
    wide.load_weights(lm.model.weights())
    for row in rows:
        given = torch.tensor([[lm.tokenizer.special_tokens.begin, *row]])
        with torch.no_grad():
            losses = wide.head.nll(wide.eval()(given[:, :-1]), given[:, 1:])[0]  # type: ignore[union-attr, operator]
        for at, loss in enumerate(losses.tolist()):
            places[at // 10].append(loss)
    assert [y for _, y in found.points()] == pytest.approx([np.mean(each) for each in places], rel=1e-4)
    assert [x for x, _ in found.points()][:2] == [5.5, 15.5]
    assert found.errors() == pytest.approx([np.std(each) / len(each) ** 0.5 for each in places], rel=1e-3)
    assert found.mean(1, 20) == pytest.approx(np.mean([*places[0], *places[1]]), rel=1e-4)
    few = loss_by_position(lm.model, lm.tokenizer, [TEXT], PositionConfig(length=100, bucket=10, rows=2))
    assert few.counts.tolist() == [20] * 10


def test_evaluate_draws_the_loss_by_position(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "evaluate", "-m", "run", "--data", "text.txt", "--by-position", "figure.svg")
    assert "up to position 48, the trained length" in out and "nats per token up to position 384" in out
    figure, plain = (place / "figure.svg").read_text(), json.loads((place / "figure.json").read_text())
    assert figure.startswith("<svg") and "stroke-dasharray" in figure
    assert plain["length"] == 384 and len(plain["loss"]) == len(plain["position"]) == 64
    words = ("evaluate", "-m", "run", "--data", "text.txt", "--sinks", "2", "--window", "30")
    kept, whole = (
        json.loads(said(capsys, *some, "--by-position", "kept.svg", "--length", "96", "--json"))["loss"]
        for some in (words, words[:-4])
    )
    assert kept[:5] == pytest.approx(whole[:5], rel=1e-4)  # up to 30 and 2 tokens, all are kept
    short = json.loads(said(capsys, *words[:-4], "--by-position", "short.svg", "--length", "24", "--json"))
    assert short["loss_beyond_context"] is None and json.loads((place / "short.json").read_text()) == short | {
        "model": "run",
        "window": None,
        "sinks": None,
    }
    assert all(one != pytest.approx(other, rel=1e-3) for one, other in zip(kept[6:], whole[6:], strict=True))


def test_sinks_serve_evaluate_score_and_generate(capsys: pytest.CaptureFixture[str]) -> None:
    sinks = ("-m", "run", "--sinks", "2", "--window", "30")
    found = json.loads(said(capsys, "evaluate", "--data", "line.txt", *sinks, "--json"))
    assert found["window"] == 30 and found["stride"] is None
    assert "streamed         the latest 30 tokens" in said(capsys, "evaluate", "--data", "line.txt", *sinks)
    scored = json.loads(said(capsys, "score", "line.txt", *sinks))
    lm = heddle.load("run")
    assert scored["logprob"] == pytest.approx(lm.score(scored["text"], window=30, sinks=2).logprob, abs=1e-3)
    assert scored["logprob"] != pytest.approx(lm.score(scored["text"]).logprob, abs=1e-3)
    written = json.loads(said(capsys, "generate", TEXT[:60], *sinks, "--max-tokens", "70", "--json"))
    assert len(written["ids"]) == 70 or written["reason"] != "context"
    assert written["text"] == lm.generate(TEXT[:60], max_tokens=70, sinks=2, window=30)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate -m run --data text.txt --sinks 2", "--sinks and --window: want both"),
        ("evaluate -m run --data text.txt --length 9", "--length requires --by-position"),
        ("evaluate -m run --data text.txt --by-position a.png", "a.png: want a name that ends in .svg"),
        ("evaluate -m run --data text.txt --by-position text.txt", "want a name that ends in .svg"),
        ("evaluate -m run --data text.txt --by-position a.svg --stride 3", "--stride has no effect with --by-position"),
        ("evaluate -m run --data text.txt --sinks 2 --window 9 --carry", "--carry has no effect with --sinks"),
        ("evaluate -m run --data text.txt --by-position a.svg --length 2", "length: want at least 6, got 2"),
        ("evaluate -m learned --data text.txt --by-position a.svg", "exceeds the model's context of 48 learned"),
        (
            "evaluate -m learned --data text.txt --sinks 2 --window 9",
            "sinks: want a model whose positions are distances",
        ),
        ("generate x -m learned --sinks 2 --window 9", "sinks: want a model whose positions are distances"),
        ("generate x -m run --window 9", "window: only used with attention sinks"),
        ("generate x -m run --sinks 2 --window 9 --draft run", "draft: cannot be combined with sinks"),
        ("score line.txt -m run --sinks 2", "window: want a number of tokens beside sinks"),
        ("score line.txt -m run --sinks 2 --window 9 --stride 2", "stride: want none with sinks"),
        ("evaluate -m run --data text.txt --task passkey --sinks 2", "--sinks has no effect with --task"),
    ],
)
def test_a_wrong_request_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(words.split()) == 2, words
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
    assert not Path("a.svg").exists()


# --- passkeys ---------------------------------------------------------------------------------------------------------


def test_examples_have_every_length_and_depth_and_their_number_once() -> None:
    examples = passkey_examples(TEXT, times=(1.0, 2.0), depths=(0.0, 1.0), keys=2)
    assert [(one.times, one.depth) for one in examples] == [
        (t, d) for t in (1.0, 2.0) for d in (0.0, 1.0) for _ in "ab"
    ]
    assert examples == passkey_examples(TEXT, times=(1.0, 2.0), depths=(0.0, 1.0), keys=2)
    assert len({one.key for one in examples}) == 8
    assert passkey_text("12345", "before", "after").count("12345") == 3


def test_a_right_number_is_right_and_a_wrong_one_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = heddle.load("run")
    assert isinstance(lm.model, LanguageModel)
    examples = passkey_examples(TEXT, times=(4.0, 8.0), depths=(0.0, 0.5), keys=1)
    seen: list[list[int]] = []
    answers = {"right": [TOKENIZER.encode(f" {one.key}") for one in examples], "wrong": [TOKENIZER.encode(" 1")] * 4}

    def fake(model: LanguageModel, documents, begin, streaming, token_loss):  # type: ignore[no-untyped-def]
        for number, document in enumerate(documents):
            seen.append([*document.context])
            written = chosen[number][: len(document.ids)]
            yield torch.tensor([float(i >= len(written) or w != written[i]) for i, w in enumerate(document.ids)])

    monkeypatch.setattr("heddle.tasks.evaluation.passkey.nll_long_texts", fake)
    chosen = answers["right"]
    assert answer_passkeys(lm.model, lm.tokenizer, examples) == [True] * 4
    for one, context in zip(examples, seen, strict=True):
        text = TOKENIZER.decode(context)
        assert text.count(one.key) == 2 and text.endswith("The pass key is")
        assert abs(len(context) - one.times * 48) <= 10
        assert (text.index(one.key) < 40) == (one.depth == 0.0)
    chosen = answers["wrong"]
    found = answer_passkeys(lm.model, lm.tokenizer, examples)
    assert passkey_metrics(found, examples) == {"accuracy": 0.0, "accuracy_at_4x": 0.0, "accuracy_at_8x": 0.0}


def test_the_answer_is_what_greedy_decoding_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = heddle.load("run")
    assert isinstance(lm.model, LanguageModel)
    examples = passkey_examples(TEXT, times=(4.0,), depths=(0.5,), keys=1)
    streaming = StreamingConfig(window=20, sinks=2)
    assert answer_passkeys(lm.model, lm.tokenizer, examples, streaming) == [False]
    begin, context = lm.tokenizer.special_tokens.begin, TOKENIZER.encode(TEXT[:150])
    (written,) = lm.generate_ids([[begin, *context]], max_tokens=6, sinks=2, window=20)
    for answer, right in ((written, True), ([*written[:-1], (written[-1] + 1) % 256], False)):
        text = Continuation(answer, context)
        monkeypatch.setattr("heddle.tasks.evaluation.passkey._continuation", lambda *_, text=text: text)
        assert answer_passkeys(lm.model, lm.tokenizer, examples, streaming) == [right]


def test_texts_past_learned_positions_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "evaluate", "-m", "run", "--data", "text.txt", "--task", "passkey", "--json"))
    assert {"accuracy", "accuracy_at_0.5x", "accuracy_at_8x"} <= found.keys() and found["examples"] == 100
    assert main(["evaluate", "-m", "learned", "--data", "text.txt", "--task", "passkey"]) == 2
    assert "passkey: want a model that reads" in capsys.readouterr().err
