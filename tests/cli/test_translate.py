"""`heddle translate`: lines in, lines out, in order; the score with its signature; faults in one line."""

import io
import json
from pathlib import Path

import pytest
from cli.runs import save_run
from tasks.pair_runs import CONTEXT, TOKENIZER, loud_pair, small_pair

import heddle
from heddle.checkpoints import Snapshot, Store
from heddle.cli.main import main
from heddle.core import encode

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


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["translate", *words, *WORDS])
    out, err = capsys.readouterr()
    return code, out, err


def test_lines_come_out_in_order_and_blank_ones_stay(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "lines.txt")
    lm = heddle.load("pairs", device="cpu")
    wanted = [
        " ".join(lm.generate(line, max_tokens=9, beams=2, length_penalty=1.0, stretch=2.0).split()) if line else ""
        for line in LINES
    ]
    assert (code, err) == (0, "") and out.splitlines() == wanted
    assert said(capsys, "lines.txt", "--batch", "1")[1] == out


def test_standard_input_is_the_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = said(capsys, "lines.txt")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(Path("lines.txt").read_text()))
    assert said(capsys)[:2] == (0, wanted)


def test_the_score_follows_with_its_signature(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(capsys, "lines.txt")
    Path("gold.txt").write_text(out.upper())
    code, again, err = said(capsys, "lines.txt", "--reference", "gold.txt", "--lowercase")
    assert code == 0 and again == out and err.startswith("BLEU") and "case:lc" in err
    _, plain, err = said(capsys, "lines.txt", "--reference", "gold.txt", "--lowercase", "--json")
    *lines, last = map(json.loads, plain.splitlines())
    assert [line["text"] for line in lines] == out.splitlines() and "case:lc" in last["signature"]


def test_faults_are_one_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    save_run(here / "runs" / "plain")
    Path("long.txt").write_text("cat\n" + "x" * CONTEXT + "\n")
    Path("short.txt").write_text("cat\n")
    for words, told in (
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["lines.txt", "-m", "plain"], "want an encoder-decoder"),
        (["long.txt", "-m", "pairs"], "line 2: source"),
        (["lines.txt", "-m", "pairs", "--reference", "nowhere.txt"], "nowhere.txt: no such file"),
        (["lines.txt", "-m", "pairs", "--reference", "short.txt"], "references: want 4"),
        (["lines.txt", "-m", "pairs", "--batch", "0"], "batch: want at least 1"),
    ):
        code, _, err = said(capsys, *words)
        assert code == 2 and told in err and len(err.splitlines()) == 1, words


def test_other_verbs_say_what_they_cannot_do_with_an_encoder_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "-m", "pairs", "--data", "lines.txt", "--device", "cpu"]) == 2
    assert "translate --reference" in capsys.readouterr().err
    assert main(["score", "lines.txt", "-m", "pairs", "--device", "cpu"]) == 2
    assert "source" in capsys.readouterr().err
    assert main(["show", "pairs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0


def test_generate_answers_a_source_with_beams_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "the cat", "-m", "pairs", "--beams", "2", "--max-tokens", "9", "--device", "cpu"]) == 0
    wanted = heddle.load("pairs", device="cpu").generate("the cat", beams=2, max_tokens=9)
    assert capsys.readouterr().out == wanted + "\n"
    assert main(["generate", "the cat", "-m", "pairs", "--beams", "2", "--stop", "x", "--device", "cpu"]) == 2
    assert "stop: want none" in capsys.readouterr().err
