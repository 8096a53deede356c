"""heddle correct: text in, text out."""

import io
import json
import re
from pathlib import Path

import pytest
from cli.runs import save_run

from heddle.cli.main import main

WORDS = "the 900\npeople 100\nweather 50\nis 500\ncold 40\nlike 70\nthey 90\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(WORDS)
    return tmp_path


def say(capfdbinary: pytest.CaptureFixture[bytes], *words: str, code: int = 0) -> tuple[bytes, str]:
    assert main(["correct", *words]) == code
    captured = capfdbinary.readouterr()
    return captured.out, captured.err.decode()


def test_a_file_is_corrected_and_its_layout_kept(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (here / "text.txt").write_bytes(b"The peopel  like\tis\r\n\r\n\nthe WETHER is cold")
    out, _ = say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model")
    assert out == b"The people  like\tis\r\n\r\n\nthe WEATHER is cold"


def test_a_model_may_choose(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    save_run(here / "runs" / "one")
    (here / "text.txt").write_text("the people like\n\nunchanged 42\n")
    out, _ = say(capfdbinary, "text.txt", "--words", "words.txt", "--threshold", "1e12")
    assert out == b"the people like\n\nunchanged 42\n"
    again, _ = say(capfdbinary, "text.txt", "--words", "words.txt", "--threshold", "1e12", "--normal", "numbers=keep")
    assert again == out


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"peopel\n")))
    assert say(capfdbinary, "--words", "words.txt", "--no-model")[0] == b"people\n"


def test_json_tells_of_each_change(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (here / "text.txt").write_text("the peopel\nis cold\n")
    out, _ = say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model", "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["line"] == 1 and first["text"] == "the people"
    (change,) = first["changes"]
    assert (change["start"], change["end"], change["before"], change["after"]) == (4, 10, "peopel", "people")
    assert change["odds"] > 1 and {a["text"] for a in change["alternatives"]} >= {"people", "peopel"}
    assert second == {"line": 2, "text": "is cold", "changes": []}


def test_a_bad_line_is_told_and_the_rest_done(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (here / "text.txt").write_bytes(b"peopel\n\xff\xfe wether\nwether\n")
    out, err = say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model", code=1)
    assert out == b"people\n\xff\xfe wether\nweather\n"
    assert err == "heddle: text.txt:2: want UTF-8 text, found byte 0xff at 0\n"


def test_a_line_of_a_megabyte_is_done(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    line = (b"the peopel like " + b"1234567890 " * 20) * 4_500
    (here / "text.txt").write_bytes(line + b"\n" + b"y" * 200_000 + "é".encode() * 50_000 + b"\npeopel\n")
    out, _ = say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model")
    assert out.splitlines()[0] == line.replace(b"peopel", b"people")
    assert out.splitlines()[2] == b"people"


def test_errors_are_learnt_once_and_used_again(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (here / "pairs.txt").write_text("people: peopel peple\nweather: wether\n")
    out, err = say(capfdbinary, "--pairs", "pairs.txt", "--learn", "errors.json")
    assert out == b"" and re.fullmatch(r"errors.json: \d+ edits for \d+ letter sequences\n", err)
    (here / "text.txt").write_text("wether\n")
    for pairs in ("pairs.txt", "errors.json"):
        assert say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model", "--pairs", pairs)[0] == b"weather\n"


def test_a_corpus_gives_the_words(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (here / "corpus.txt").write_text("zebras graze. Zebras sleep, sleep and graze.\n")
    (here / "text.txt").write_text("zebrsa graez\n")
    assert say(capfdbinary, "text.txt", "--corpus", "corpus.txt", "--no-model")[0] == b"zebras graze\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["nothing.txt"], "no such file"),
        (["text.txt", "--words", "none.txt"], "no such file"),
        (["text.txt", "--words", "words.txt", "--no-model", "--threshold", "0"], "threshold"),
        (["text.txt", "--words", "words.txt", "--no-model", "--rate", "2"], "rate"),
        (["text.txt", "--words", "words.txt", "--corpus", "words.txt", "--no-model"], "got both"),
        (["--learn", "x.json"], "--pairs"),
        (["text.txt", "--learn", "x.json", "--pairs", "words.txt"], "text.txt: --learn reads no text, only --pairs"),
        (["--learn", "x.json", "--pairs", "words.txt", "--words", "words.txt"], "--words has no effect with --learn"),
        (["--learn", "x.json", "--pairs", "words.txt", "--json"], "--json has no effect with --learn"),
        (["--learn", "x.json", "--pairs", "words.txt", "--rate", "0.1"], "--rate has no effect with --learn"),
        (["--learn", "x.json", "--pairs", "swaps.txt"], "swaps.txt: want more pairs"),
        (["text.txt", "--words", "words.txt", "--no-model", "--pairs", "swaps.txt"], "swaps.txt: want more pairs"),
        (
            ["text.txt", "--words", "words.txt", "--no-model", "--normal", "case=lower"],
            "--normal has no effect with --no-model",
        ),
        (["text.txt", "--no-model", "-m", "one"], "no-model"),
    ],
)
def test_wrong_wishes_are_told_in_one_line(
    words: list[str], hint: str, here: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (here / "text.txt").write_text("the\n")
    (here / "swaps.txt").write_text("the: teh\nfriend: freind\n")  # each once
    _, err = say(capfdbinary, *words, code=2)
    assert hint in err and err.count("\n") == 1


def test_runs_without_whitespace_pass_unchanged(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    solid = ("é" * 70_000 + "peopel").encode()
    (here / "text.txt").write_bytes(b"peopel " + solid + b" peopel " + b"x" * 65_536 + b"peopel\npeopel")
    out, err = say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model")
    assert out == b"people " + solid + b" people " + b"x" * 65_536 + b"peopel\npeople" and not err


def test_places_in_a_long_line_count_from_its_beginning(here: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    line = "é1 " * 30_000 + "x" * 70_000 + " the peopel"
    (here / "text.txt").write_text(line + "\npeopel\n", encoding="utf-8")
    out, _ = say(capfdbinary, "text.txt", "--words", "words.txt", "--no-model", "--json")
    changes = [(r["line"], c) for r in map(json.loads, out.splitlines()) for c in r["changes"]]
    assert [(number, c["start"], c["end"]) for number, c in changes] == [(1, len(line) - 6, len(line)), (2, 0, 6)]
