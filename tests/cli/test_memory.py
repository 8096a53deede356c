"""heddle memory: build, tune, and --memory of generate, score and evaluate."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from cli.runs import save_run

import heddle
from heddle.cli.main import main
from heddle.tasks.memory import MemoryGrid, tune_memory

LINES = "".join(f"{i} green bottles hanging on the wall\n" for i in range(60))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    save_run(folder / "run")
    (folder / "text.txt").write_text(LINES)
    (folder / "held.txt").write_text("7 green bottles hanging on the wall, and 8 green bottles")
    heddle.load(folder / "run").build_memory([LINES], folder / "memory", window=32)
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0, words
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) in (2, 3), words
    return capsys.readouterr().err


def test_the_command_builds_what_the_library_builds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "memory", "build", "text.txt", "-m", "run", "-o", "again", "--window", "32")
    assert f"again: {len(LINES) + 1:,} entries of 1 documents" in out
    for name in ("keys.bin", "values.bin"):
        assert (place / "again" / name).read_bytes() == (place / "memory" / name).read_bytes()
    assert "holds a finished datastore" in failed(capsys, "memory", "build", "text.txt", "-m", "run", "-o", "again")


def test_evaluate_score_and_generate_take_a_memory(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(said(capsys, "evaluate", "-m", "run", "--data", "held.txt", "--json"))
    with_memory = ("--memory", "memory", "--memory-weight", "0.8", "--memory-k", "8")
    mixed = json.loads(said(capsys, "evaluate", "-m", "run", "--data", "held.txt", "--json", *with_memory))
    assert mixed["loss"] < 0.5 * plain["loss"] and mixed["tokens"] == plain["tokens"]
    scored = json.loads(said(capsys, "score", "held.txt", "-m", "run", *with_memory))
    lm = heddle.load("run").with_memory("memory", weight=0.8, k=8)
    assert scored["logprob"] == pytest.approx(lm.score(Path("held.txt").read_text()).logprob, abs=1e-4)
    written = said(capsys, "generate", "5 green bottles", "-m", "run", "--max-tokens", "12", *with_memory)
    assert written.strip("\n") == lm.generate("5 green bottles", max_tokens=12)
    assert written.strip("\n") != heddle.load("run").generate("5 green bottles", max_tokens=12)


def test_a_result_with_a_memory_is_kept_beside_that_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [{"sentence_good": f"{i} green bottles", "sentence_bad": f"{i} bottles green"} for i in range(9)]
    Path("blimp.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    words = ("evaluate", "-m", "run", "--task", "blimp", "--data", "blimp.jsonl")
    said(capsys, *words)
    said(capsys, *words, "--memory", "memory", "--memory-k", "8")
    rows = [json.loads(line) for line in said(capsys, "evaluate", "--table", "run", "--json").splitlines()]
    assert [row.get("memory") for row in rows] == [None, {"folder": str(Path("memory").absolute()), "k": 8}]
    assert ", memory k 8" in said(capsys, "evaluate", "--table", "run")


def test_tuning_names_the_best_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("memory", "tune", "memory", "held.txt", "-m", "run")
    found = json.loads(said(capsys, *words, "--json"))
    assert found["loss"] < found["loss_alone"]
    lm = heddle.load("run").with_memory("memory", **{name: found[name] for name in ("weight", "k", "temperature")})
    text = Path("held.txt").read_text()
    evaluated = json.loads(said(capsys, "evaluate", "-m", "run", "--data", "held.txt", "--json"))
    assert found["loss_alone"] == pytest.approx(evaluated["loss"], rel=1e-5)
    options = ("--memory", "memory", "--memory-k", str(found["k"]), "--memory-weight", str(found["weight"]))
    options = (*options, "--memory-temperature", str(found["temperature"]))
    again = json.loads(said(capsys, "evaluate", "-m", "run", "--data", "held.txt", "--json", *options))
    assert found["loss"] == pytest.approx(again["loss"], rel=1e-4)
    assert lm.score(text).logprob < 0
    assert "use              --memory memory --memory-weight" in said(capsys, *words)


def test_no_combination_of_the_grid_is_better() -> None:
    lm = heddle.load("run")
    grid = MemoryGrid(weights=(0.1, 0.8), shares=(0.02, 0.5), counts=(2, 8), tokens=0)
    text = Path("held.txt").read_text()
    best = tune_memory(lm.model, lm.tokenizer, [text], "memory", grid)  # type: ignore[arg-type]
    spread = json.loads(Path("memory/memory.json").read_text())["spread"]
    losses = {}
    for weight in grid.weights:
        for share in grid.shares:
            for k in grid.counts:
                one = lm.with_memory("memory", weight=weight, temperature=share * spread, k=k)
                from heddle.tasks.scoring import evaluate

                losses[k, share, weight] = evaluate(one.model, lm.tokenizer, [text]).loss
    k, share, weight = min(losses, key=lambda each: losses[each])
    assert (best.mix.k, best.mix.weight) == (k, weight)
    assert best.mix.temperature == pytest.approx(share * spread)
    assert best.loss == pytest.approx(min(losses.values()), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score held.txt -m run --memory memory --memory-weight 1", "weight: want at least 0 and below 1, got 1"),
        ("score held.txt -m run --memory memory --memory-k 0", "k: want at least 1, got 0"),
        ("generate x -m run --memory memory --memory-temperature 0", "temperature: want above 0, got 0"),
        ("generate x -m run --memory memory --memory-search fast", "search: want exact or index, got 'fast'"),
        ("generate x -m run --memory memory --memory-search index", "has no index; heddle memory index builds one"),
        ("generate x -m run --memory memory --weights int8", "memory: want weights as floats"),
        ("generate x -m run --memory memory --compile on", "compile: want auto or off with a memory"),
        ("memory tune memory nosuch.txt -m run", "nosuch.txt"),
    ],
)
def test_a_wrong_request_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = failed(capsys, *words.split())
    assert message in error and error.count("\n") == 1, error


def test_another_model_or_tokenizer_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cli.runs import config

    save_run(place / "wide", config(width=32))
    like = heddle.load("run")
    with torch.no_grad():
        next(like.model.parameters()).add_(0.1)
    like.save(place / "like")
    assert "was built by another model" in failed(capsys, "generate", "x", "-m", "wide", "--memory", "memory")
    for name in ("wide", "like"):
        error = failed(capsys, "memory", "tune", "memory", "held.txt", "-m", name)
        assert "was built by another model" in error and error.count("\n") == 1, error
    lm = heddle.load("run")
    other = heddle.LM(lm.model, heddle.load("run").tokenizer)
    assert other.with_memory("memory").generate("x", max_tokens=2)
    with pytest.raises(heddle.HeddleError, match="want one of weight, k"):
        lm.with_memory("memory", neighbours=3)  # type: ignore[call-arg]
    with pytest.raises(heddle.HeddleError, match="want one of precision, window"):
        lm.build_memory(["x"], "new", size=3)  # type: ignore[call-arg]


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss-cpu")
def test_an_index_is_built_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "memory", "build", "text.txt", "-m", "run", "-o", "indexed")
    assert "recall 1.0000" in said(capsys, "memory", "index", "indexed", "--factory", "Flat")
    exact, found = (
        json.loads(said(capsys, "score", "held.txt", "-m", "run", "--memory", "indexed", *more))
        for more in ((), ("--memory-search", "index"))
    )
    assert exact["logprob"] == pytest.approx(found["logprob"], rel=1e-6)
