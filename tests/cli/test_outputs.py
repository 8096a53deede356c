"""Files that verbs write are checked before the work, and names that no file can have are one line everywhere."""

import json
from pathlib import Path

import pytest
from cli.runs import save_run

from heddle.cli.main import main

LONG = "n" * 300


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one two three\n" * 50)
    Path("pairs.txt").write_text("right: wrigt rihgt\n" * 3)
    Path("lists.jsonl").write_text(json.dumps({"candidates": ["a b", "a c"]}) + "\n")
    Path("folder").mkdir()
    Path("folder/kept").write_text("")
    return tmp_path


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    message = capsys.readouterr()
    assert message.out == "" and message.err.startswith("heddle: ") and message.err.count("\n") == 1, message
    return message.err


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "a", "-m", LONG],
        ["generate", "-m", "run", "--file", LONG],
        ["show", LONG],
        ["train", LONG],
        ["train", f"data={LONG}"],
        ["data", "prepare", LONG],
        ["data", "prepare", "text.txt", "-o", LONG],
        ["tokenizer", "train", LONG],
        ["tokenizer", "train", "text.txt", "-o", LONG],
        ["score", LONG],
        ["correct", LONG, "--no-model"],
        ["convert", LONG, "out"],
        ["convert", "run", LONG],
        ["rescore", LONG, "--no-model"],
        ["rescore", "lists.jsonl", "--no-model", "--scored", LONG],
        ["correct", "--pairs", "pairs.txt", "--learn", LONG],
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    save_run(Path("run"))
    assert "too long" in told(words, capsys)


WRITERS = {
    "tokenizer": (["tokenizer", "train", "text.txt", "-o"], "heddle.data.sources.CorpusConfig.sample"),
    "explain": (["explain", "a", "-m", "run", "--what", "lens", "--json"], "heddle.cli.explain.open_model"),
    "page": (["explain", "a", "-m", "run", "--what", "lens", "--html"], "heddle.cli.explain.open_model"),
    "learn": (["correct", "--pairs", "pairs.txt", "--learn"], "heddle.cli.correct._errors"),
    "scored": (["rescore", "lists.jsonl", "--no-model", "--scored"], "heddle.cli.rescore._choose"),
    "prepare": (["data", "prepare", "text.txt", "-o"], "heddle.cli.data._tokenizer"),
    "convert": (["convert", "run"], "heddle.checkpoints.source.RunSource.model"),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("target", ["folder", "text.txt/x"])
def test_an_output_that_cannot_be_is_told_before_the_work(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(Path("run"))
    words, work = WRITERS[name]
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("worked before it was told"))
    assert told([*words, target], capsys).startswith(f"heddle: {target}: ")
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("name", ["tokenizer", "learn", "scored", "explain", "page"])
def test_a_file_in_a_folder_that_is_not_there_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none: no such folder" in told([*WRITERS[name][0], "none/x.json"], capsys)


@pytest.mark.parametrize("name", ["tokenizer", "learn", "scored", "explain", "page"])
def test_what_heddle_did_not_write_is_never_overwritten(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(Path("run"))
    words = WRITERS[name][0]
    for file in ("text.txt", "pairs.txt", "lists.jsonl", "foreign.json"):
        Path("foreign.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
        before = Path(file).read_bytes()
        assert f"{file}: exists, and heddle did not write it" in told([*words, file], capsys)
        assert Path(file).read_bytes() == before
    assert main([*words, "own.out"]) == 0
    assert main([*words, "own.out"]) == 0  # an earlier result gives way
    Path("empty.out").touch()
    assert main([*words, "empty.out"]) == 0
    assert main([*words, "foreign.json", "--force"]) == 0
    assert Path("foreign.json").read_bytes() == Path("own.out").read_bytes()


@pytest.mark.parametrize("name", ["prepare", "convert"])
def test_a_folder_that_heddle_did_not_write_is_left_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(Path("run"))
    assert "folder: exists" in told([*WRITERS[name][0], "folder"], capsys)
    assert "text.txt: exists" in told([*WRITERS[name][0], "text.txt"], capsys)
    assert Path("text.txt").read_text().startswith("one two three") and Path("folder/kept").exists()
