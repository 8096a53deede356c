"""heddle score: JSON lines of every form of model; a bad line is told and the rest is done."""

import io
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from cli.runs import CONTEXT, config, save_run
from tasks.pair_runs import TOKENIZER as PAIRS
from tasks.pair_runs import small_pair

import heddle
from heddle.cli.main import main
from heddle.text.tokenizers import MASK, ByteTokenizer, WordTokenizer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here: Path) -> str:
    save_run(here / "runs" / "one")
    return "one"


@pytest.fixture
def pairs(here: Path) -> str:
    save_run(here / "runs" / "pairs", small_pair(), tokenizer=PAIRS)  # type: ignore[arg-type]
    return "pairs"


def scored(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Return the records that `score` writes, and what it tells on standard error."""
    assert main(["score", *words, "--device", "cpu"]) == code
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_each_line_has_a_record(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lines.txt").write_text("a b\nnaïve\r\n")
    found, err = scored(capsys, "lines.txt")
    assert [(f["line"], f["text"]) for f in found] == [(1, "a b"), (2, "naïve")] and err == ""
    for record, wanted in zip(found, heddle.load(run).score(["a b", "naïve"]), strict=True):
        assert record["logprob"] == pytest.approx(wanted.logprob)
        assert record["surprisal"] == pytest.approx(-wanted.logprob / math.log(2))
        assert record["perplexity"] == pytest.approx(wanted.perplexity)
        assert record["bits_per_byte"] == pytest.approx(wanted.bits_per_byte)
        assert (record["tokens"], record["unknown"]) == (len(wanted.tokens), 0)


@pytest.mark.parametrize(("by", "units"), [("word", ["two", "words", "more"]), ("token", list("two wordsmore"))])
def test_score_goes_into_words_and_tokens(
    by: str, units: list[str], run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    total = sum(s.logprob for s in heddle.load(run).score(["two words", "more"]))
    for spaces in ("before", "after") if by == "word" else ("before",):
        monkeypatch.setattr("sys.stdin", io.StringIO("two words\nmore\n"))
        found, _ = scored(capsys, "-", "--by", by, "--spaces", spaces)
        assert [f["text"] for f in found] == units
        assert sum(f["logprob"] for f in found) == pytest.approx(total, abs=1e-4)


BAD = b"good one\n\n   \ncaf\xe9\n\0 nul\nlast\n"


def test_bad_lines_are_told_and_the_rest_is_scored(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "bad.txt").write_bytes(BAD)
    found, err = scored(capsys, "bad.txt", code=1)
    assert [f["line"] for f in found] == [1, 5, 6]
    assert err.splitlines() == ["heddle: bad.txt:4: want UTF-8 text, found byte 0xe9 at 3"]


def test_blank_lines_are_passed_over(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "some.txt").write_text("\none\n\n \t\ntwo\n\n")
    found, err = scored(capsys, "some.txt")
    assert [f["line"] for f in found] == [2, 5] and err == ""
    (here / "some.jsonl").write_text('\n{"text": "one"}\n\n')
    found, err = scored(capsys, "some.jsonl")
    assert [f["line"] for f in found] == [2] and err == ""


def test_spaces_are_a_word_of_words(run: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "some.txt").write_text("one\n")
    for by in ("token", "sentence"):
        assert main(["score", "some.txt", "--by", by, "--spaces", "after"]) == 2
        assert "--spaces after requires --by word" in capsys.readouterr().err


def test_a_line_of_a_megabyte_is_scored_through_windows(
    run: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "long.txt").write_text("a\n" + "the cat sat " * 87_382 + "\nb\n")
    begun = time.monotonic()
    found, err = scored(capsys, "long.txt", "--window", "48", "--stride", "48")
    assert [f["line"] for f in found] == [1, 2, 3] and err == ""
    assert found[1]["tokens"] == 12 * 87_382 and time.monotonic() - begun < 120


def test_broken_records_are_told_and_the_rest_is_scored(
    run: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"text": "two", "context": "one "}', '{"text": ', '{"txt": "a"}', '{"text": 3}', '{"text": " "}', ""]
    (here / "some.jsonl").write_text("\n".join([*lines, '{"text": "a", "source": "b"}', '{"text": "four"}', ""]))
    found, err = scored(capsys, "some.jsonl", code=1)
    assert [f["line"] for f in found] == [1, 8]
    assert found[0]["logprob"] == pytest.approx(heddle.load(run).score(["two"], context=["one "])[0].logprob)
    told = err.splitlines()
    assert [line.split(": ")[1] for line in told] == [f"some.jsonl:{n}" for n in (2, 3, 4, 5, 7)]
    for line, hint in zip(told, ("JSON", "text: want", "got 3", "more than blanks", "no source"), strict=True):
        assert hint in line
    (here / "some.txt").write_text('{"text": "two"}\n')
    assert scored(capsys, "some.txt", "--records")[0][0]["text"] == "two"


def test_an_encoder_decoder_is_given_sources_line_by_line(
    pairs: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "texts").write_bytes(b"das\n\nein Hund\nKatze\n" + b"x" * 90 + b"\nund\n")
    (here / "sources").write_bytes(b"the\nbad\na dog\n\xff\nlong\nand\n")
    found, err = scored(capsys, "texts", "--source", "sources", code=1)
    assert [f["line"] for f in found] == [1, 3, 6]
    wanted = heddle.load(pairs).score(["das", "ein Hund", "und"], source=["the", "a dog", "and"])
    assert [f["logprob"] for f in found] == pytest.approx([w.logprob for w in wanted], abs=1e-4)
    told = {line.split(": ")[1]: line for line in err.splitlines()}
    assert set(told) == {"sources:4", "texts:4", "texts:5"} and "context of 40" in told["texts:5"]
    (here / "pairs.jsonl").write_text('{"text": "das", "source": "the"}\n{"text": "das"}\n')
    found, err = scored(capsys, "pairs.jsonl", code=1)
    assert found[0]["logprob"] == pytest.approx(wanted[0].logprob, abs=1e-4)
    assert "pairs.jsonl:2: score: an encoder-decoder needs source" in err


def test_files_of_unequal_length_are_told(pairs: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "two").write_text("a\nb\n")
    (here / "three").write_text("a\nb\nc\n")
    found, err = scored(capsys, "two", "--source", "three", code=1)
    assert len(found) == 2 and "two:3: want a text for each source" in err
    found, err = scored(capsys, "three", "--source", "two", code=1)
    assert len(found) == 2 and "three:3: want a source" in err


def test_a_masked_model_hides_each_token(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = ByteTokenizer(special=(MASK,)).train([])
    save_run(here / "runs" / "masked", config("bert-base-masked", vocab=tokenizer.vocab), tokenizer=tokenizer)
    (here / "lines.txt").write_text("a cat\n" + "x" * CONTEXT + "\nb\n")
    for hide in ("token", "rest", "word"):
        found, err = scored(capsys, "lines.txt", "--hide", hide, code=1)
        wanted = heddle.load("masked").score(["a cat", "b"], hide=hide)  # type: ignore[arg-type]
        assert [f["logprob"] for f in found] == pytest.approx([w.logprob for w in wanted], abs=1e-4)
        assert err.startswith("heddle: lines.txt:2: text: 49 tokens") and err.count("\n") == 1
    assert main(["generate", "a", "--device", "cpu"]) == 2
    assert "want an autoregressive model" in capsys.readouterr().err


def test_unknown_tokens_are_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = WordTokenizer().train(["the cat sat on the mat\n"])
    save_run(here / "runs" / "words", config(vocab=words.vocab), tokenizer=words)
    (here / "lines.txt").write_text("the zebra sat\nthe cat\n")
    assert [f["unknown"] for f in scored(capsys, "lines.txt")[0]] == [1, 0]
    assert [f["text"] for f in scored(capsys, "lines.txt", "--by", "word")[0]] == ["the", "zebra", "sat", "the", "cat"]
    assert main(["evaluate", "--data", "lines.txt", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == 1
    assert main(["evaluate", "--data", "lines.txt", "--device", "cpu"]) == 0
    assert "unknown          1 tokens" in capsys.readouterr().out


def test_wrong_wishes_end_the_command(run: str, pairs: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lines.txt").write_text("a\nb\n")
    (here / "some.jsonl").write_text('{"text": "a"}\n')
    for words, hint in (
        (["nothing.txt"], "nothing.txt: no such file"),
        (["."], "found a folder"),
        (["lines.txt", "-m", "one", "--window", "99"], "window: want at most"),
        (["lines.txt", "-m", "one", "--stride", "0"], "stride: want"),
        (["lines.txt", "-m", "one", "--source", "some.jsonl"], "--source some.jsonl: the model is no encoder-decoder"),
        (["lines.txt", "-m", "one", "--source", "lines.txt"], "--source lines.txt: want another file"),
        (["lines.txt", "-m", "one", "--hide", "word"], "hide: want token"),
        (["lines.txt", "-m", "pairs"], "--source is required: the model is an encoder-decoder"),
        (["lines.txt", "-m", "pairs", "--source", "nothing"], "nothing: no such file"),
        (["some.jsonl", "-m", "pairs", "--source", "lines.txt"], "--source: JSON lines have their own sources"),
    ):
        found, err = scored(capsys, *words, code=2)
        assert found == [] and hint in err and err.count("\n") == 1, words


def test_long_files_are_scored_as_they_are_read(
    run: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from heddle.cli import score

    monkeypatch.setattr(score, "LINES", 10)
    lines = [f"line {i} " + "x" * (i % 7) for i in range(95)]
    (here / "lines.txt").write_text("\n".join(lines))
    found, _ = scored(capsys, "lines.txt")
    assert [f["text"] for f in found] == lines
    together = heddle.load(run).score(lines)
    assert [f["logprob"] for f in found] == pytest.approx([s.logprob for s in together], abs=1e-4)


# --- evaluate ---------------------------------------------------------------------------------------------------------


def test_evaluate_leaves_out_what_is_no_text_and_says_so(
    run: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "some.jsonl").write_text('{"text": "good one"}\n\n{"text":\n{"x": 1}\n{"text":\n{"text": "last"}\n')
    assert main(["evaluate", "--data", "some.jsonl", "--json", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["documents"] == 2
    told = {line.split(": left out, ")[1]: line for line in err.splitlines()}
    assert set(told) == {"empty", "bad json, the first of 2", "missing field"}
    assert "some.jsonl:3:" in told["bad json, the first of 2"] and "some.jsonl:4:" in told["missing field"]
    (here / "blank.jsonl").write_text('{"text": "good one"}\n\n{"text": "last"}\n')
    assert main(["evaluate", "--data", "blank.jsonl", "--json", "--device", "cpu"]) == 0
    (here / "long.txt").write_text("xy z" * 25_000)
    assert main(["evaluate", "--data", "long.txt", "--json", "--device", "cpu", "--stride", "48"]) == 0
