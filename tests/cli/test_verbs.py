"""Each verb does what it says, on a run, a preset or a text."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli.runs import CONTEXT, TOKENIZER, config, save_run

import heddle
from heddle.cli.main import main
from heddle.core import encode
from heddle.data.shards import Shards
from heddle.data.sources import HashSplit, TextSource
from heddle.models.presets import presets
from heddle.text.tokenizers import load_tokenizer

LINES = [f"line {i}: the quick brown fox jumps over the lazy dog, again and again\n" for i in range(60)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here: Path) -> str:
    (here / "held.txt").write_text("".join(LINES))
    source = encode(TextSource(path=str(here / "held.txt"), split="line"))
    split = encode(HashSplit(fraction=0.5))
    save_run(here / "runs" / "one", data={"sources": [source], "split": split})
    return "one"


def say(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- show and list ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"), [("gpt2", 124_439_808), ("gpt2-xl", 1_557_611_200), ("llama2-7b", 6_738_415_616)]
)
def test_show_counts_published_models(name: str, parameters: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(say(capsys, "show", name, "--json"))
    assert found["parameters"] == parameters
    assert {"parameters", "flops_per_token", "kv_bytes_per_token", "config"} <= found.keys()


def test_show_prints_a_tree_with_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = say(capsys, "show", "gpt2")
    for words in ("50257×768", "× 12", "124,439,808", "FLOPs per token", "KV bytes per token"):
        assert words in shown


def test_show_knows_runs_and_config_files(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = heddle.load(run).model
    found = [json.loads(say(capsys, "show", name, "--json")) for name in (run, f"runs/{run}")]
    (here / "run.yaml").write_text("model: {kind: preset, name: first, layers: 1}\nname: other\n")
    (here / "model.yaml").write_text("kind: preset\nname: first\nlayers: 1\n")
    files = [json.loads(say(capsys, "show", name, "--json")) for name in ("run.yaml", "model.yaml")]
    assert [f["parameters"] for f in found] == [sum(p.numel() for p in wanted.parameters())] * 2
    assert files[0] == files[1]


@pytest.mark.parametrize(("name", "hint"), [("gpt-2", "'gpt2'"), ("oen", "'one'"), ("x.yaml", "no such file")])
def test_show_offers_the_nearest_name(name: str, hint: str, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in say(capsys, "show", name, code=2)


def test_list_names_everything(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(say(capsys, "list", "--json"))
    assert list(found["presets"]) == presets()
    assert "first" in found["recipes"]
    assert list(found["runs"]) == [run]
    assert {"byte", "bpe"} <= found["tokenizers"].keys()
    assert {"text", "jsonl", "builtin"} <= found["sources"].keys()
    shown = say(capsys, "list")
    assert all(f"  {name} " in shown for group in found.values() for name in group if not name.startswith("narang/"))
    assert shown.startswith(f"runs\n  {run} ") and shown.count("narang/") == 1
    assert say(capsys, "list", "narang").count("narang/") == sum(name.startswith("narang/") for name in presets())
    assert "'presets'" in say(capsys, "list", "preset", code=2)


# --- generate ---------------------------------------------------------------------------------------------------------


def test_generate_writes_the_text_of_the_library(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    lm = heddle.load(run)
    words = ["--max-tokens", "12", "--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"]
    wanted = lm.generate("ab", max_tokens=12, temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=5)
    assert say(capsys, "generate", "ab", *words, "--seed", "5") == wanted + "\n"
    assert say(capsys, "generate", "ab", "-m", f"runs/{run}", *words, "--seed", "5") == wanted + "\n"


def test_generate_writes_json(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = records(say(capsys, "generate", "ab", "--max-tokens", "7", "--json"))
    assert found["prompt"] == "ab"
    assert found["text"] == heddle.load(run).generate("ab", max_tokens=7)
    assert found["ids"] == heddle.load(run).generate_ids([[TOKENIZER.end, *b"ab"]], max_tokens=7)[0]
    assert found["reason"] == "length"


def test_generate_ends_before_each_stop(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "", "--max-tokens", "30", "--temperature", "1.2"]
    free = say(capsys, *words)[:-1]
    stops = [c for c in free if c.isascii() and c.isprintable()][3:5]
    cut = say(capsys, *words, "--stop", stops[0], "--stop", stops[1])[:-1]
    assert cut == free[: min(free.index(stop) for stop in stops)]


def test_generate_says_when_the_context_ended_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(here / "runs" / "learned", config("gpt2"))
    assert main(["generate", "a", "--max-tokens", str(3 * CONTEXT), "--temperature", "1"]) == 0
    assert f"context of {CONTEXT}" in capsys.readouterr().err


# --- evaluate ---------------------------------------------------------------------------------------------------------


def test_evaluate_measures_what_the_run_held_out(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(say(capsys, "evaluate", "--json"))
    assert 0 < found["documents"] < len(LINES)
    assert found["bits_per_byte"] == pytest.approx(found["nats"] / math.log(2) / found["bytes"])
    shown = say(capsys, "evaluate", "--window", "20", "--stride", "5")
    assert "bits per byte" in shown and "20 tokens, stride 5" in shown


def test_evaluate_lets_a_recurrent_model_read_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(here / "runs" / "lstm", config("lstm_lm"))
    (here / "held.txt").write_text("".join(LINES))
    carried = json.loads(say(capsys, "evaluate", "--data", "held.txt", "--carry", "--json"))
    forgetting = json.loads(say(capsys, "evaluate", "--data", "held.txt", "--json"))
    assert carried["tokens"] == forgetting["tokens"] and carried["nats"] != forgetting["nats"]
    assert carried["window"] is None
    assert "the state carried" in say(capsys, "evaluate", "--data", "held.txt", "--carry")
    assert "--carry: cannot be combined with --window or --stride" in say(
        capsys, "evaluate", "--data", "held.txt", "--carry", "--window", "9", code=2
    )


def test_evaluate_tells_a_transformer_that_it_cannot_carry(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "carry: want a recurrent model" in say(capsys, "evaluate", "--carry", code=2)


def test_evaluate_carries_nothing_from_conversation_to_conversation(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(here / "runs" / "lstm", config("lstm_lm"))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (here / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    for more in ([], ["--window", "5"]):
        told = say(capsys, "evaluate", "--data", "chats.jsonl", "--carry", *more, code=2)
        assert "carry: not supported for conversations" in told


def test_evaluate_tells_what_is_no_text_of_the_runs_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "docs").mkdir()
    for number, line in enumerate([*LINES[:20], LINES[0], ""]):
        (here / "docs" / f"{number}.txt").write_text(line)
    data = {"sources": [encode(TextSource(path=str(here / "docs")))], "split": encode(HashSplit(fraction=0.5))}
    save_run(here / "runs" / "one", data=data)
    assert main(["evaluate", "--json"]) == 0
    before = capsys.readouterr()
    assert before.err == "", "neither copies nor empty files are faults"
    (here / "docs" / "bad.txt").write_bytes(b"caf\xe9 au lait\n")
    assert main(["evaluate", "--json"]) == 1
    after = capsys.readouterr()
    assert after.out == before.out and after.err.count("\n") == 1
    assert "bad.txt:1: left out, not utf8" in after.err


def test_evaluate_reads_texts_and_prepared_data(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "data").mkdir()
    (here / "data" / "one.txt").write_text("".join(LINES))
    words = ["data", "prepare", "data", "--tokenizer", run, "-o", "prepared", "split.kind=tail"]
    say(capsys, *words)
    valid = Shards.open(here / "prepared" / "valid")
    found = json.loads(say(capsys, "evaluate", "--data", "prepared", "--json"))
    assert found["tokens"] == valid.tokens
    whole = json.loads(say(capsys, "evaluate", "--data", "data", "--json"))
    assert whole["bytes"] == len("".join(LINES))


def test_evaluate_refuses_data_of_another_tokenizer(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "text.txt").write_text("".join(LINES))
    say(capsys, "tokenizer", "train", "text.txt", "--kind", "character", "-o", "other.json")
    say(capsys, "data", "prepare", "text.txt", "--tokenizer", "other.json", "-o", "prepared", "split.kind=tail")
    assert "another tokenizer" in say(capsys, "evaluate", "--data", "prepared", code=2)


# --- tokenizer and data -----------------------------------------------------------------------------------------------


def test_tokenizer_train_writes_a_tokenizer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "text.txt").write_text("".join(LINES))
    assert "300 tokens" in say(capsys, "tokenizer", "train", "text.txt", "vocab=300", "-o", "t.json")
    made = load_tokenizer(here / "t.json")
    assert made.vocab == 300
    assert made.decode(made.encode("any text")) == "any text"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["nothing.txt"], "nothing.txt"),
        (["text.txt", "vocb=300"], "'vocab'"),
        (["text.txt", "vocab=many"], "whole number"),
        (["text.txt", "vocab=90000"], "all that this text allows"),
        (["text.txt", "vocab"], "key=value"),
        (["text.txt", "--kind", "bep"], "'bpe'"),
        (["text.txt", "-o", "nowhere/t.json"], "no such folder"),
    ],
)
def test_tokenizer_train_says_what_is_wrong(
    words: list[str], hint: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "text.txt").write_text("".join(LINES))
    assert hint in say(capsys, "tokenizer", "train", *words, code=2)
    assert not (here / "tokenizer.json").exists()


def test_tokenizer_train_learns_from_any_one_small_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40):  # a split by hash would hold out one in twenty
        (here / "text.txt").write_text(f"{number} " * 20)
        assert ": character, " in say(capsys, "tokenizer", "train", "text.txt", "--kind", "character", "-o", "t.json")
        made = load_tokenizer(here / "t.json")
        assert made.decode(made.encode(str(number))) == str(number)
    (here / "text.txt").write_text(" ")
    assert "no documents to learn from: 1 seen" in say(capsys, "tokenizer", "train", "text.txt", code=2)


def test_data_prepare_writes_shards_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "text.txt").write_text("".join(LINES))
    TOKENIZER.save(here / "t.json")
    words = [
        "data",
        "prepare",
        "text.txt",
        "--tokenizer",
        "t.json",
        "-o",
        "out",
        "split.kind=tail",
        "split.fraction=0.25",
    ]
    assert "train: " in say(capsys, *words)
    train, valid = (Shards.open(here / "out" / side) for side in ("train", "valid"))
    assert train.bytes + valid.bytes == len("".join(LINES))
    assert valid.bytes == pytest.approx(0.25 * len("".join(LINES)), abs=2)
    assert "up to date" in say(capsys, *words)
    assert "split" in say(capsys, *words[:7], "splt.kind=tail", code=2)


# --- kindness ---------------------------------------------------------------------------------------------------------


def test_a_prompt_can_come_from_standard_input(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("line 1\n"))
    found = json.loads(say(capsys, "generate", "-", "--json", "--max-tokens", "3"))
    assert found["prompt"] == "line 1"


def test_a_filter_alone_means_that_tokens_are_drawn(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {say(capsys, "generate", "line", "--top-k", "50", "--seed", str(seed)) for seed in range(4)}
    assert len(texts) > 1


def test_a_text_in_place_of_a_recipe_is_told_how_to_be_given(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my.txt").write_text("text")
    assert "data=my.txt" in say(capsys, "train", "my.txt", code=2)
