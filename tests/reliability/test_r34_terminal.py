"""R34: escapes by model, prompt, file name, config and run name, through every verb, on a terminal: none comes raw."""

import json
import re
import shutil
from pathlib import Path

import pytest
from cli.screen import screen
from reliability.harness import tiny, write_config

from heddle.cli.main import main
from heddle.escapes import CONTROL
from heddle.training import RunConfig

TITLE, CLEAR, LINK, CLIPBOARD = "\x1b]0;t\x07", "\x1b[2J", "\x1b]8;;x:y\x1b\\k\x1b]8;;\x1b\\", "\x1b]52;c;aGl5\x07"
EIGHT_BIT, ERASE, DIRECTION = "\x9b2J\x9d0;t\x9c", "\x7f\x08\r\x0c", "\u202e\u2066\u200f\u2028"
HOSTILE = "a" + TITLE + CLEAR + LINK + CLIPBOARD + EIGHT_BIT + ERASE + DIRECTION + "z"
NAME = "n" + HOSTILE.replace("\r", "")
RUN, ABSENT = f"runs/{NAME}", NAME[::-1]
OURS = re.compile(r"\x1b\[(\d+(;\d+)*)?[mKAG]|\x1b\[\?25[lh]|\r")  # colours, the bar's line, the cursor


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model that has learnt nothing but escapes, in a folder full of hostile names."""
    folder = tmp_path_factory.mktemp("r34")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path(f"{NAME}.txt").write_text(f"{HOSTILE}\n" * 200, newline="")
        Path(f"{NAME}.yaml").write_text(f"name: {json.dumps(NAME)}\n{json.dumps(NAME)}: 1\n")
        lists = {"candidates": [{"text": HOSTILE, "scores": {NAME: 1.0}}, {"text": "b", "scores": {NAME: 0.0}}]}
        Path(f"{NAME}.jsonl").write_text(json.dumps({"id": HOSTILE, "reference": HOSTILE} | lists) + "\n")
        Path("pairs.tsv").write_text(f"{HOSTILE.split(chr(13))[0]}\tb\n" * 60)
        with screen(patch) as seen:
            found = main(["train", str(write_config(Path("good.yaml"), config()))])
        check(seen.text)
        assert found == 0, seen.text
        assert "sample at step" in seen.text and "\\x1b" in seen.text
    return folder


def config() -> RunConfig:
    changes = {"model__dropout": 0.0, "training__steps": 60, "every__sample": 60, "every__save": 60, "name": NAME}
    return tiny(Path(f"{NAME}.txt"), rows__length=96, training__optimizer__learning_rate=0.02, **changes)


def check(text: str) -> None:
    """See that a text has no control characters."""
    found = CONTROL.search(text)
    assert found is None, f"{found[0]!r} in {text[max(0, found.start() - 60) : found.end() + 20]!r}"


COMMANDS: dict[str, tuple[list[str], int | None]] = {
    "train, as it was": (["train", RUN], 0),
    "train, unknown key": (["train", f"{NAME}=1"], 2),
    "train, unknown recipe": (["train", ABSENT], 2),
    "train, config": (["train", f"{NAME}.yaml"], 2),
    "train, print": (["train", "good.yaml", "--print"], 0),
    "generate": (["generate", HOSTILE, "-m", RUN, "--max-tokens", "90"], 0),
    "generate, two": (["generate", HOSTILE, "a", "-m", RUN, "--max-tokens", "60"], 0),
    "generate, json": (["generate", HOSTILE, "-m", RUN, "--max-tokens", "60", "--json", "--logprobs", "1"], 0),
    "generate, file": (["generate", "--file", f"{NAME}.jsonl", "-m", RUN], 1),
    "generate, no run": (["generate", "-m", ABSENT], 2),
    "generate, option": (["generate", f"--{NAME}"], 2),
    "generate, bias": (["generate", "--bias", HOSTILE, "-m", RUN], 2),
    "chat": (["chat", "--once", "a", "--template", "plain", "--max-tokens", "60", "-m", RUN], 0),
    "chat, template": (["chat", "--once", HOSTILE, "--template", NAME, "-m", RUN], 2),
    "score": (["score", f"{NAME}.txt", "-m", RUN], 0),
    "score, by token": (["score", "head.txt", "-m", RUN, "--by", "token"], 0),
    "score, no file": (["score", ABSENT, "-m", RUN], 2),
    "rescore": (["rescore", f"{NAME}.jsonl", "-m", RUN], 0),
    "rescore, json": (["rescore", f"{NAME}.jsonl", "--no-model", "--json"], 0),
    "correct": (["correct", f"{NAME}.txt", "--no-model"], 0),
    "correct, bytes": (["correct", "bad.txt", "--no-model"], 1),
    "correct, json": (["correct", f"{NAME}.txt", "--no-model", "--json"], 0),
    "evaluate": (["evaluate", "-m", RUN], 0),
    "evaluate, no data": (["evaluate", "-m", RUN, "--data", ABSENT], 2),
    "translate": (["translate", f"{NAME}.txt", "-m", RUN], 2),
    "show": (["show", RUN], 0),
    "show, json": (["show", RUN, "--json"], 0),
    "show, nothing": (["show", ABSENT], 2),
    "list": (["list"], 0),
    "tokenizer": (["tokenizer", "train", f"{NAME}.txt", "--kind", "character", "-o", f"{NAME}.json"], 0),
    "tokenizer, kind": (["tokenizer", "train", f"{NAME}.txt", "--kind", NAME], 2),
    "data": (["data", "prepare", f"{NAME}.txt", "--tokenizer", RUN, "-o", f"prepared{NAME}"], 0),
    "data, nothing": (["data", "prepare", ABSENT], 2),
    "bench": (["bench", "train", RUN, "--steps", "1", "--warm", "1"], 0),
    "convert": (["convert", RUN, f"out{NAME}"], None),
    "convert, nothing": (["convert", ABSENT, "out"], 2),
    "a verb": ([ABSENT], 2),
}


@pytest.fixture
def here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in the folder of hostile names."""
    monkeypatch.chdir(place)
    monkeypatch.setattr("heddle.cli.list._preset", lambda preset: "", raising=False)  # counting takes seconds
    (place / "head.txt").write_text(f"{HOSTILE.split(chr(13))[0]}\n")
    (place / "bad.txt").write_bytes(HOSTILE.encode() + b"\xff\x9b\n")
    for left in (*place.glob("out*"), *place.glob("prepared*")):
        shutil.rmtree(left)
    return place


@pytest.mark.parametrize("name", COMMANDS)
def test_no_control_character_reaches_the_terminal(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, code = COMMANDS[name]
    with screen(monkeypatch) as seen:
        found = main(words)
    check(seen.text)
    assert seen.text and "Traceback" not in seen.text
    assert code is None or found == code, seen.text


@pytest.mark.parametrize("name", ["train, as it was", "generate", "chat", "score", "show", "list", "bench"])
def test_colours_and_bars_are_the_only_escapes(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, _ = COMMANDS[name]
    with screen(monkeypatch, "xterm-256color") as seen:
        main(words)
    check(OURS.sub("", seen.text))


def test_a_pipe_gets_the_models_text_to_the_byte_and_messages_escaped(
    here: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["generate", "a\x1b]0", "-m", RUN, "--max-tokens", "60"]) == 0
    text = capsysbinary.readouterr().out
    assert b"\x1b[2J" in text and b"\\x1b" not in text
    assert main(["correct", "bad.txt", "--no-model"]) == 1
    assert capsysbinary.readouterr().out == (here / "bad.txt").read_bytes()
    assert main(["generate", "-m", ABSENT]) == 2
    assert main(["list"]) == 0
    said = capsysbinary.readouterr()
    for stream in (said.out, said.err):
        check(stream.decode())
        assert b"\\x1b" in stream
