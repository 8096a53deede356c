"""The wrong inputs of acceptance 6: each gives one clear line and exit code 2 or 3, never a traceback."""

import errno
from pathlib import Path
from typing import Any

import pytest
from cli.runs import CONTEXT, damage, save_run

from heddle.checkpoints.store import disk
from heddle.cli.main import main

TEXT = "".join(f"{i} green bottles hanging on the wall, and if one should fall\n" for i in range(400))
SMALL = [
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "rows.length=32",
    "training.steps=2",
    "training.batch=2",
    "tokenizer={kind: byte}",
    "hardware.device=cpu",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    Path("empty.txt").write_text("")
    Path("binary.txt").write_bytes(bytes(range(256)) * 40)
    Path("tiny.txt").write_text("one two\n\nthree")
    return tmp_path


def train(
    *words: str, data: str = "data={sources: [{kind: text, path: corpus.txt}], split: {kind: tail}}"
) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    return ["train", "first", data, *(word for word in SMALL if word.partition("=")[0] not in given), *words]


def plain(path: str) -> str:
    return f"data={{sources: [{{kind: text, path: {path}}}], split: {{kind: tail}}}}"


WRONG: dict[str, tuple[list[str], int, str]] = {
    "misspelt recipe": (["train", "frist"], 2, "'first'"),
    "misspelt key": (train("training.setps=3"), 2, "'steps'"),
    "misspelt file": (["train", "first", "data=corpsu.txt"], 2, "corpus.txt"),
    "wrong type": (train("training.steps=many"), 2, "training.steps: want a whole number, got 'many'"),
    "empty corpus": (train(data=plain("empty.txt")), 2, "empty"),
    "binary file": (train(data=plain("binary.txt")), 2, "binary"),
    "corpus smaller than one row": (train("rows.length=4096", data=plain("tiny.txt")), 2, "4096"),
    "vocabulary too large": (train("tokenizer={kind: bpe, vocab: 50000}"), 2, "all that this text allows"),
    "unknown device": (train("hardware.device=gpu9"), 2, "device: want one of auto, cpu"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_training_input_is_one_clear_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, code, hint = WRONG[name]
    expect(words, code, hint, capsys)


def expect(words: list[str], code: int, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    message = capsys.readouterr().err
    assert message.startswith("heddle: ") and message.count("\n") == 1, message
    assert hint in message, message


def test_a_run_with_no_good_checkpoint_left_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train()) == 0
    capsys.readouterr()
    for path in Path("runs/first/checkpoints").iterdir():
        damage(path)
    expect(["train", "runs/first", "training.steps=4"], 3, "no good checkpoint left", capsys)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.LocalDisk, "write", full)
    expect(train(), 3, "No space left on device", capsys)


def test_a_prompt_longer_than_the_context_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    save_run(Path("runs/one"))
    hint = f"{CONTEXT + 1} tokens are more than the model's context of {CONTEXT}"
    expect(["generate", "x" * CONTEXT], 2, hint, capsys)
