"""heddle generate: several prompts, files and standard input; a bad prompt is told and the rest is written."""

import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.runs import CONTEXT, TOKENIZER, config, save_run

import heddle
from heddle.cli import generate as verb
from heddle.cli.generation_options import UNUSED_SEED
from heddle.cli.main import main
from heddle.tasks.generation import TextGenerator

PROMPTS = ["the quick", "a", "one line more", "b b", "c", "so it goes", "zz"]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs" / "one")
    return "one"


def say(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[list[str], list[str]]:
    device = [] if "--device" in words else ["--device", "cpu"]
    assert main(["generate", *words, *device]) == code
    captured = capsys.readouterr()
    out = captured.out.removesuffix("\n").split("\n") if captured.out else []
    return out, captured.err.splitlines()


def records(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def flat(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def test_several_prompts_give_a_line_each_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = heddle.load("one", device="cpu").generate(PROMPTS, max_tokens=9, temperature=1.0)
    out, err = say(capsys, *PROMPTS, "--max-tokens", "9", "--temperature", "1")
    assert "\n".join(out) == "\n".join(flat(text) for text in wanted) and not err


@pytest.mark.parametrize("batch", ["1", "2", "16"])
def test_a_file_gives_the_same_in_any_batch(
    batch: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "AHEAD", 2)
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    words = ["--file", "prompts.txt", "--batch", batch, "--max-tokens", "6", "--top-k", "20", "--json"]
    found = records(say(capsys, *words)[0])
    assert [r["line"] for r in found] == list(range(1, 8))
    assert [r["prompt"] for r in found] == PROMPTS
    lm = heddle.load("one", device="cpu")
    assert [r["text"] for r in found] == lm.generate(PROMPTS, max_tokens=6, top_k=20)
    assert {r["reason"] for r in found} <= {"length", "stop"}


def test_prompts_come_from_records_and_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps({"prompt": prompt, "id": 7}) + "\n" for prompt in ["a\nb", ""])
    Path("prompts.jsonl").write_text(lines)
    wanted = heddle.load("one", device="cpu").generate(["a\nb", ""], max_tokens=5)
    assert [
        r["text"] for r in records(say(capsys, "--file", "prompts.jsonl", "--max-tokens", "5", "--json")[0])
    ] == wanted
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    found = records(say(capsys, "--file", "-", "--records", "--max-tokens", "5", "--json")[0])
    assert [r["text"] for r in found] == wanted


def test_bad_lines_are_told_and_the_rest_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    raw = [b"good one", b" \t", b"x" * CONTEXT, b"y" * 1_000_000, b"\xff\xfe", b"good two"]
    Path("prompts.txt").write_bytes(b"\n".join(raw) + b"\n")
    out, err = say(capsys, "--file", "prompts.txt", "--max-tokens", "4", "--json", code=1)
    assert [(r["line"], r["prompt"]) for r in records(out)] == [(1, "good one"), (6, "good two")]
    assert sorted(line.split(": ")[1] for line in err) == [f"prompts.txt:{n}" for n in (3, 4, 5)]
    assert all(len(line) < 200 for line in err)
    told = "\n".join(err)
    assert f"context of {CONTEXT}" in told and "UTF-8" in told


def test_bad_records_are_told_and_the_rest_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ['{"prompt": "good"}', '{"prompt": ', '{"text": "x"}', '{"prompt": 3}', '["a"]', '{"prompt": "\\ud800"}']
    Path("prompts.jsonl").write_text("\n".join(lines))
    out, err = say(capsys, "--file", "prompts.jsonl", "--max-tokens", "4", "--json", code=1)
    assert [r["prompt"] for r in records(out)] == ["good"]
    assert sorted(line.split(": ")[1] for line in err) == [f"prompts.jsonl:{n}" for n in range(2, 7)]


def test_a_bad_prompt_among_words_is_told_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = say(capsys, "good", "x" * CONTEXT, "--max-tokens", "4", code=1)
    assert len(out) == 2 and not out[1] and len(err) == 1 and "prompt:2: " in err[0]


@pytest.mark.parametrize("batch", ["1", "16"])
def test_answers_keep_the_places_of_their_lines(
    batch: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "AHEAD", 2)
    raw = [b"", b"one", b"x" * CONTEXT, b"two", b"  ", b"\xff", b"three", b"", b"\xfe"]
    Path("prompts.txt").write_bytes(b"\n".join(raw) + b"\n")
    words = ["--file", "prompts.txt", "--batch", batch, "--max-tokens", "4", "--temperature", "1", "--samples", "2"]
    out, _ = say(capsys, *words, code=1)
    lm = heddle.load("one", device="cpu")
    one, two, three = (
        lm.generate([text], max_tokens=4, temperature=1.0, samples=2) for text in ("one", "two", "three")
    )
    none = ["", ""]
    wanted = [*none, *one, *none, *two, *none, *none, *three, *none, *none]
    assert "\n".join(out) == "\n".join(map(flat, wanted))


def test_blank_lines_alone_are_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    Path("prompts.txt").write_text("a\n\n")
    assert main(["generate", "--file", "prompts.txt", "--max-tokens", "4", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n\n") and not captured.err
    Path("prompts.jsonl").write_text('\n{"prompt": "a"}\n\n')
    found = records(say(capsys, "--file", "prompts.jsonl", "--max-tokens", "4", "--json")[0])
    assert [r["line"] for r in found] == [2]


def test_a_pipe_is_one_prompt(run: str) -> None:
    wanted = heddle.load("one", device="cpu").generate("two\nlines", max_tokens=5)
    command = [sys.executable, "-m", "heddle", "generate", "--max-tokens", "5", "--device", "cpu", "--json"]
    found = subprocess.run(command, input="two\nlines\n", text=True, capture_output=True, check=True)
    (record,) = records(found.stdout.splitlines())
    assert (record["prompt"], record["text"]) == ("two\nlines", wanted)


def test_a_dash_is_standard_input_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    (found,) = records(say(capsys, "-", "--max-tokens", "5", "--json")[0])
    assert found["prompt"] == "two\nlines"


def test_no_prompt_and_nothing_sent_is_a_new_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    (found,) = records(say(capsys, "--max-tokens", "5", "--json")[0])
    assert (found["prompt"], found["text"]) == ("", heddle.load("one", device="cpu").generate("", max_tokens=5))


def test_a_stop_cuts_the_text_and_not_the_ids(capsys: pytest.CaptureFixture[str]) -> None:
    (whole,) = records(say(capsys, "ab", "--max-tokens", "12", "--json", "--logprobs", "0")[0])
    at = next(i for i in range(2, 10) if whole["text"][i] not in whole["text"][:i])
    words = ["--max-tokens", "12", "--json", "--logprobs", "0", "--stop", whole["text"][at]]
    (cut,) = records(say(capsys, "ab", *words)[0])
    assert cut["reason"] == "stop" and cut["text"] == whole["text"][:at]
    assert cut["ids"] == whole["ids"][: len(cut["ids"])] and len(cut["tokens"]) == len(cut["ids"])
    assert TOKENIZER.decode(cut["ids"]) == whole["text"][: at + 1]


def test_a_seed_where_nothing_is_drawn_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = say(capsys, "a", "--max-tokens", "3")
    out, err = say(capsys, "a", "--max-tokens", "3", "--seed", "4")
    assert out == plain and err == [f"heddle: {UNUSED_SEED}"]
    for words in (["--temperature", "0"], ["--temperature", "1"], ["--top-k", "3"]):
        assert not say(capsys, "a", "--max-tokens", "3", "--seed", "4", *words)[1]


def test_samples_are_lines_and_records(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "3", "--temperature", "1.3", "--max-tokens", "5"]
    wanted = heddle.load("one", device="cpu").generate(["ab"], samples=3, temperature=1.3, max_tokens=5)
    assert "\n".join(say(capsys, "ab", *words)[0]) == "\n".join(map(flat, wanted))
    found = records(say(capsys, "ab", *words, "--json")[0])
    assert [(r["sample"], r["text"]) for r in found] == list(enumerate(wanted))


@pytest.mark.parametrize("words", [[], ["--temperature", "1"], ["--beams", "3"]])
def test_log_probabilities_are_shown_with_texts(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = records(say(capsys, "ab", "--max-tokens", "6", "--json", "--logprobs", "2", *words)[0])
    tokens = found["tokens"]
    assert [t["id"] for t in tokens] == found["ids"]
    assert all(len(t["alternatives"]) == 2 and math.isfinite(t["logprob"]) for t in tokens)
    for token in tokens:
        best = token["alternatives"][0]
        assert best["logprob"] >= token["logprob"] - 1e-9
        assert (best["text"] == token["text"]) == (best["id"] == token["id"])
    lm = heddle.load("one", device="cpu")
    ids = [*lm.tokenizer.encode_prompt("ab"), *found["ids"]]
    odds = lm.logits([ids[:-1]]).log_softmax(-1)[0]
    wanted = sum(float(odds[at, ids[at + 1]]) for at in range(len(lm.tokenizer.encode_prompt("ab")) - 1, len(ids) - 1))
    assert sum(t["logprob"] for t in tokens) == pytest.approx(wanted, abs=1e-4)


def test_rules_are_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    out, _ = say(capsys, "a", "b", "--temperature", "1", "--regex", "[a-f]{4}", "--forbid", "aa", "--forbid", "bb")
    assert len(out) == 2 and all(re.fullmatch("[a-f]{4}", line) and not re.search("aa|bb", line) for line in out)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    Path("schema.json").write_text(json.dumps(schema))
    for given in ("schema.json", json.dumps(schema)):
        out, _ = say(capsys, "a", "--schema", given, "--max-tokens", "40")
        assert json.loads("\n".join(out))["n"] in (1, 2)
    Path("rules.lark").write_text('start: "yes" | "no"\n')
    assert say(capsys, "a", "--grammar", "rules.lark")[0][0] in ("yes", "no")


def test_other_words_reach_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    lm = heddle.load("one", device="cpu")
    for words, options in (
        (["--contrast", "0.6", "--top-k", "3"], {"contrast": 0.6, "top_k": 3}),
        (["--typical", "0.5", "--seed", "4"], {"typical": 0.5, "seed": 4}),
        (
            ["--repetition", "1.5", "--presence", "0.2", "--frequency", "0.1"],
            {"repetition": 1.5, "presence": 0.2, "frequency": 0.1},
        ),
        (["--bias", "q=50", "--bias", "z=-inf"], {"bias": {"q": 50.0, "z": -math.inf}}),
        (["--beams", "4", "--groups", "2", "--diversity", "0.5"], {"beams": 4, "groups": 2, "diversity": 0.5}),
        (["--min-tokens", "5"], {"min_tokens": 5}),
        (["--draft", "lookup"], {}),
        (["--draft", "one"], {}),
    ):
        wanted = lm.generate("ab", max_tokens=8, **options)  # type: ignore[arg-type]
        assert "\n".join(say(capsys, "ab", "--max-tokens", "8", *words)[0]) == wanted, words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--file", "none.txt"], "none.txt: no such file"),
        (["a", "--file", "none.txt"], "--file: give prompts as arguments or in a file"),
        (["a", "--logprobs", "2"], "--logprobs requires --json"),
        (["a", "--beams", "2", "--temperature", "1"], "--temperature: not used by beam search"),
        (["a", "--length-penalty", "1"], "--length-penalty: only used by beam search; set --beams to 2 or more"),
        (["a", "--contrast", "2"], "contrast: want 0 to 1"),
        (["a", "--bias", "x"], "bias: want a token and a number"),
        (["a", "--bias", "x=y"], "bias: want a token and a number"),
        (["a", "--bias", "word=1"], "bias: want texts of one token, not 4"),
        (["a", "--regex", "a", "--schema", "{}"], "--schema: cannot be combined with --regex"),
        (["a", "--schema", "none.json"], "none.json: no such file"),
        (["a", "--grammar", "none.lark"], "none.lark: no such file"),
        (["a", "--batch", "0"], "batch"),
        (["a", "--require", ""], "require: want phrases"),
        (["a", "--records"], "--records requires --file"),
        (["a", "-"], "prompt: want - alone"),
        (["a", "--stop", ""], "stop: want a text"),
        (["a", "--samples", "2"], "--samples: greedy decoding gives one text; set --temperature to 1"),
        (["a", "--temperature", "0", "--top-k", "3"], "--top-k: has no effect with temperature 0"),
        (["a", "b", "--beams", "2", "--coverage", "0.2"], "coverage: want 0, since a language model"),
        (["a", "b", "--beams", "2", "--draft", "lookup"], "draft: want sampling or greedy decoding"),
        (["a", "-m", "lstm", "--cache", "int8"], "cache: want full, since this model has no KV cache"),
        (["a", "--device", "cuda:9"], "device: want one of auto, cpu"),
        (["a", "--draft", "none"], "none"),
    ],
)
def test_wrong_words_are_one_clear_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(Path("runs/lstm"), config("lstm_lm"))
    os.utime("runs/one")  # the newest
    out, err = say(capsys, *words, code=2)
    assert not out and len(err) == 1 and err[0].startswith("heddle: ") and told in err[0], err


def test_a_wrong_expression_or_schema_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    for words in (["--regex", "[a"], ["--schema", '{"type": "objekt"}'], ["--schema", "{not json"]):
        for prompts in (["a"], ["a", "b"]):
            out, err = say(capsys, *prompts, *words, code=2)
            assert not out and len(err) == 1, err


def test_an_interruption_keeps_what_was_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    calls, real = [], TextGenerator.generate

    def generate(self: TextGenerator, *rest: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, *rest)

    monkeypatch.setattr(verb, "AHEAD", 2)
    monkeypatch.setattr(TextGenerator, "generate", generate)
    words = ["--file", "prompts.txt", "--batch", "1", "--max-tokens", "3", "--json"]
    assert [r["line"] for r in records(say(capsys, *words, code=130)[0])] == [1, 2, 4]  # 4 is shorter than 3


def test_time_and_a_dead_end_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = say(capsys, "a", "--seconds", "0.000001")
    assert err == ["heddle: stopped at the time limit"]
    banned = [word for id in range(32, 127) for word in ("--bias", f"{chr(id)}=-inf")]
    assert say(capsys, "a", "--max-tokens", "3", *banned)[0]


def test_a_tokenizer_that_is_too_small_for_its_model_still_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "runs" / "wide", config(vocab=TOKENIZER.vocab + 300))
    (found,) = records(say(capsys, "a", "-m", "wide", "--temperature", "5", "--max-tokens", "40", "--json")[0])
    assert len(found["ids"]) <= 40 and all(id < TOKENIZER.vocab for id in found["ids"])
