"""heddle chat: a turn a line, one question, or a talk at the terminal."""

import builtins
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.runs import config, save_run

from heddle.cli.main import main
from heddle.text.tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer(special=("<|im_start|>", "<|im_end|>")).train([])


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = config(vocab=TOKENIZER.vocab, context=160)
    save_run(tmp_path / "runs" / "one", made, tokenizer=TOKENIZER)
    return tmp_path / "runs" / "one"


class Terminal(io.StringIO):
    """Standard input of somebody who types."""

    def isatty(self) -> bool:
        return True


def chat(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(["chat", "--max-tokens", "6", *words]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_question_is_answered_once(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = chat(capsys, "--template", "chatml", "--once", "Hi!")
    assert out.endswith("\n")
    assert out == chat(capsys, "--template", "chatml", "--once", "Hi!", "-m", "one")[0]
    assert out != chat(capsys, "--template", "chatml", "--once", "Hi!", "--system", "Be kind.")[0]


def test_each_line_is_a_turn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n/reset\none\n/exit\nthree\n"))
    out, err = chat(capsys, "--template", "plain", "--temperature", "0.5", "--top-k", "5")
    answers = out.split("\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
    first, _ = chat(capsys, "--template", "plain", "--temperature", "0.5", "--top-k", "5")
    assert out.startswith(first)
    assert out.endswith(first)  # after the reset the first turn is the first again
    assert len(answers) >= 4
    assert err == ""


def test_a_line_that_is_too_long_is_told_and_the_rest_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n" + "long " * 100 + "\ntwo\n"))
    out, err = chat(capsys, "--template", "plain", code=1)
    assert err.startswith("heddle: standard input:2: prompt: ")
    assert err.count("\n") == 1
    assert out.count("\n") >= 2


def test_the_oldest_turns_go_with_a_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a fairly long question of mine\n" * 5))
    _, err = chat(capsys, "--template", "plain")
    assert "heddle: the context of 160 tokens is full; the 2 oldest turns were dropped\n" in err


def test_the_models_own_template_is_used(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    _, err = chat(capsys, "--once", "Hi!", code=2)
    assert err == "heddle: runs/one: has no chat_template.jinja; choose one, such as --template plain\n"
    (run / "chat_template.jinja").write_text("{{ raise_exception('it was read') }}")
    checkpoint = next((run / "checkpoints").glob("step-*"))
    for name in ("one", str(checkpoint)):
        _, err = chat(capsys, "--once", "Hi!", "-m", name, code=2)
        assert err == "heddle: chat template: line 1: it was read\n"


def test_wrong_templates_are_told_in_one_line(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    (run / "bad.jinja").write_text("{% for %}")
    for name, wrong in {
        "chatm": "did you mean 'chatml'?",
        "llama3": "this tokenizer has no token <|start_header_id|>",
        str(run / "bad.jinja"): "chat template: line 1: Expected an expression, got 'end of statement block'",
    }.items():
        _, err = chat(capsys, "--once", "Hi!", "--template", name, code=2)
        assert wrong in err
        assert err.count("\n") == 1


# --- at the terminal --------------------------------------------------------------------------------------------------


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Let somebody type lines, or press keys."""
    monkeypatch.setattr("sys.stdin", Terminal())
    waiting: Iterator[str | type[BaseException]] = iter(lines)

    def input_(prompt: str) -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr(builtins, "input", input_)


@pytest.mark.parametrize("leave", ["/exit", EOFError, KeyboardInterrupt])
def test_a_talk_goes_on_until_somebody_leaves(
    leave: str | type[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "Hi!", "", "/reset", "long " * 100, "Hi again!", leave)
    out, err = chat(capsys, "--template", "plain")
    assert out.count("\n") >= 2
    assert "/reset starts over" in err
    assert "prompt: " in err


def test_an_interrupt_breaks_the_answer_off_and_the_talk_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import heddle.tasks.generation.chat as room

    real, calls = room.follow, []

    def follow(*given: object) -> Iterator[object]:
        calls.append(given)
        for i, step in enumerate(real(*given)):  # type: ignore[arg-type]
            yield step
            if len(calls) == 1 and i == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(room, "follow", follow)
    typed(monkeypatch, "Hi!", "Again!", "/exit")
    out, _ = chat(capsys, "--template", "plain")
    assert "(interrupted)" in out
    assert len(calls) == 2
