"""`heddle translate`: lines in, lines out, in order; the score with its signature; faults in one line."""

import io
import json
from pathlib import Path

import pytest
from cli.runs import config, save_run
from tasks.pair_runs import CONTEXT, TOKENIZER, loud_pair, small_pair

import heddle
from heddle.checkpoints.store import Snapshot, Store
from heddle.cli.main import main
from heddle.core import encode
from heddle.tasks.rescoring import parse_nbest

LINES = ["the cat", "", "a big dog", "dog"]
WORDS = ["--device", "cpu", "--max-tokens", "9", "--beams", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Save a run of an encoder-decoder, and lines to translate."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "pairs"
    folder.mkdir(parents=True)
    TOKENIZER.save(folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps({"model": encode(small_pair())}))
    texts = {name: (folder / name).read_text() for name in ("config.json", "tokenizer.json")}
    Store(folder / "checkpoints").save(Snapshot(1, {"model": loud_pair().weights()}, {"step": 1}, texts))
    Path("lines.txt").write_text("".join(line + "\n" for line in LINES))
    return tmp_path


def run_translate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["translate", *words, *WORDS])
    out, err = capsys.readouterr()
    return code, out, err


def test_lines_come_out_in_order_and_blank_ones_stay(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_translate(capsys, "lines.txt")
    lm = heddle.load("pairs", device="cpu")
    wanted = [
        " ".join(lm.generate(line, max_tokens=9, beams=2, length_penalty=1.0, max_length_ratio=2.0).split())
        if line
        else ""
        for line in LINES
    ]
    assert (code, err) == (0, "") and out.splitlines() == wanted
    assert run_translate(capsys, "lines.txt", "--batch", "1")[1] == out


def test_weights_may_be_kept_in_fewer_bits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lines.txt", "--json", "--n-best", "2"]
    plain, packed = (run_translate(capsys, *words, "--weights", kind)[1].splitlines() for kind in ("float32", "int8"))
    assert len(plain) == len(packed) and plain != packed, "other scores, if not other words"


def test_standard_input_is_the_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run_translate(capsys, "lines.txt")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(Path("lines.txt").read_text()))
    assert run_translate(capsys)[:2] == (0, wanted)


def test_the_score_follows_with_its_signature(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_translate(capsys, "lines.txt")
    Path("gold.txt").write_text(out.upper())
    code, again, err = run_translate(capsys, "lines.txt", "--reference", "gold.txt", "--lowercase")
    assert code == 0 and again == out and err.startswith("BLEU") and "case:lc" in err
    _, plain, err = run_translate(capsys, "lines.txt", "--reference", "gold.txt", "--lowercase", "--json")
    *lines, last = map(json.loads, plain.splitlines())
    assert [line["text"] for line in lines] == out.splitlines() and "case:lc" in last["signature"]


def test_the_best_few_come_as_lists_that_rescore_reads(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_translate(capsys, "lines.txt")
    Path("gold.txt").write_text(out)
    code, listed, err = run_translate(capsys, "lines.txt", "--n-best", "2", "--json", "--reference", "gold.txt")
    *records, last = map(json.loads, listed.splitlines())
    assert (code, err) == (0, "") and "bleu" in last
    assert [record["text"] for record in records] == out.splitlines()
    for line, record in zip(LINES, records, strict=True):
        found = parse_nbest(record)
        assert len(found.candidates) == (2 if line else 1) and found.candidates[0].text == record["text"]
        assert (found.source, found.reference) == (line, record["text"])


def test_samples_choose_by_least_risk(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["translate", "lines.txt", "--choose", "mbr", "--samples", "5", "--device", "cpu", "--max-tokens", "9"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert main([*words, "--batch", "1"]) == 0 and capsys.readouterr().out == out
    assert [bool(text) for text in out.splitlines()] == [bool(line) for line in LINES]
    assert main([*words, "--seed", "1", "--temperature", "3", "--utility", "words"]) == 0
    assert capsys.readouterr().out != out


def test_coverage_and_groups_are_words_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--coverage", "0.2"], ["--groups", "2", "--diversity", "0.5"], ["--length-penalty", "0"]):
        code, out, err = run_translate(capsys, "lines.txt", *words)
        assert (code, err) == (0, "") and len(out.splitlines()) == len(LINES), words


def test_a_bad_line_is_told_and_left_blank_and_the_rest_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    good = run_translate(capsys, "lines.txt")[1].splitlines()
    bad = [b"the cat", b"x" * 1_000_000, b"", b"\xff\xfe", b"x" * CONTEXT, b"dog"]
    Path("bad.txt").write_bytes(b"\n".join(bad) + b"\n")
    code, out, err = run_translate(capsys, "bad.txt")
    assert code == 1 and out.splitlines() == [good[0], "", "", "", "", good[3]]
    told = err.splitlines()
    assert {line.split(":")[2] for line in told} == {"2", "4", "5"} and len(told) == 3
    assert "want at most 100,000 characters" in err and "want UTF-8" in err and "context of 40" in err
    code, listed, _ = run_translate(capsys, "bad.txt", "--json")
    assert code == 1 and [json.loads(line)["line"] for line in listed.splitlines()] == [1, 3, 6]


def test_a_last_line_that_is_bad_is_left_blank_too(capsys: pytest.CaptureFixture[str]) -> None:
    good = run_translate(capsys, "lines.txt")[1].splitlines()
    Path("bad.txt").write_bytes(b"the cat\n\xff\n\xfe\n")
    Path("right.txt").write_text("a\nb\nc\n")
    code, out, err = run_translate(capsys, "bad.txt", "--reference", "right.txt")
    assert code == 1 and out.splitlines() == [good[0], "", ""] and "BLEU" in err


def test_faults_are_one_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    save_run(here / "runs" / "plain")
    save_run(here / "runs" / "bert", config("bert-base-masked"))
    Path("short.txt").write_text("cat\n")
    for words, told in (
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["lines.txt", "-m", "pairs", "--lowercase"], "--lowercase requires --reference"),
        (
            ["lines.txt", "-m", "plain"],
            "want an encoder-decoder, trained on pairs; this model is a language",
        ),
        (["lines.txt", "-m", "bert"], "this model is an encoder"),
        (["lines.txt", "-m", "pairs", "--reference", "nowhere.txt"], "nowhere.txt: no such file"),
        (
            ["lines.txt", "-m", "pairs", "--reference", "short.txt"],
            "short.txt: want 4 lines, one for each",
        ),
        (["lines.txt", "-m", "pairs", "--batch", "0"], "batch: want at least 1"),
        (["lines.txt", "-m", "pairs", "--n-best", "3", "--json"], "--n-best: want 1 to the 2 beams"),
        (["lines.txt", "-m", "pairs", "--n-best", "2"], "--n-best above 1 requires --json"),
        (["lines.txt", "-m", "pairs", "--samples", "2"], "--samples is only used with --choose mbr"),
        (["lines.txt", "-m", "pairs", "--choose", "mbr"], "--beams is only used with --choose beams"),
        (["lines.txt", "-m", "pairs", "--groups", "2"], "diversity: want above 0"),
    ):
        code, _, err = run_translate(capsys, *words)
        assert code == 2 and told in err and len(err.splitlines()) == 1, words


def test_other_verbs_say_what_they_cannot_do_with_an_encoder_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "-m", "pairs", "--data", "lines.txt", "--device", "cpu"]) == 2
    assert "translate --reference" in capsys.readouterr().err
    Path("pairs.csv").write_text("text,target\nthe cat,die Katze\na dog,ein Hund\n")
    assert main(["evaluate", "-m", "pairs", "--data", "pairs.csv", "--device", "cpu"]) == 0
    assert "of the targets, their ends counted (teacher-forced)" in capsys.readouterr().out
    assert main(["score", "lines.txt", "-m", "pairs", "--device", "cpu"]) == 2
    assert "source" in capsys.readouterr().err
    assert main(["show", "pairs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0


def test_generate_answers_a_source_with_beams_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "the cat", "-m", "pairs", "--beams", "2", "--max-tokens", "9", "--device", "cpu"]) == 0
    wanted = heddle.load("pairs", device="cpu").generate("the cat", beams=2, max_tokens=9)
    assert capsys.readouterr().out == wanted + "\n"
