"""The command line answers quickly, and says what is wrong in one line."""

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli.runs import damage, save_run

from heddle.cli.main import main


def fault(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was said on stderr, sure that it is one line of ours."""
    message = capsys.readouterr().err
    assert message.startswith("heddle: ") and message.endswith("\n")
    assert message.count("\n") == 1, message
    return message


def cpu_of_children() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_within_half_a_second() -> None:
    best = 9.0
    for module in ("heddle", "heddle", "heddle.cli.main"):  # the quickest, in CPU time: other work is not ours
        start = cpu_of_children()
        done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True)
        best = min(best, cpu_of_children() - start)
        assert done.returncode == 0
    for verb in ("train", "generate", "score", "evaluate", "show", "tokenizer", "data", "list"):
        assert f"\n  {verb} " in done.stdout
    assert best < 0.5


def test_help_imports_nothing_heavy() -> None:
    code = "import heddle.cli.main, sys; sys.exit(bool({'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["data"], ["tokenizer"], ["generate", "--help"], ["train", "--help"]]
)
def test_help_is_no_fault(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert "Usage: heddle" in capsys.readouterr().out


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("heddle 0.")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "'train'"),
        (["show", "gpt2", "--jsn"], "--json"),
        (["show"], "MODEL"),
        (["generate", "x", "--max-tokens", "many"], "--max-tokens"),
        (["score", "--by", "wrod"], "word"),
        (["tokenizer", "trian"], "'train'"),
        (["data", "perpare"], "'prepare'"),
    ],
)
def test_wrong_words_are_named_with_the_nearest(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert hint in fault(capsys)


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heddle.cli.list.everything", interrupt)
    assert main(["list"]) == 130


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "somewhere"), 3, "somewhere: no space left"),
        (PermissionError(errno.EACCES, "Permission denied", "there"), 3, "there: permission denied"),
        (MemoryError(), 3, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 3, "out of memory"),
    ],
)
def test_the_machines_faults_are_one_line(
    error: Exception, code: int, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("heddle.cli.list.everything", fail)
    assert main(["list"]) == code
    assert hint in fault(capsys)


def test_a_bug_of_ours_is_not_hidden_and_debug_shows_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from heddle.core import UsageError

    def bug() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("heddle.cli.list.everything", bug)
        with pytest.raises(ZeroDivisionError):
            main(["list"])
    monkeypatch.setenv("HEDDLE_DEBUG", "1")
    with pytest.raises(UsageError):
        main(["show", "nothing"])


def test_a_damaged_checkpoint_is_a_warning_and_no_good_one_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(Path("runs/one"), steps=(10, 20))
    damage(Path("runs/one/checkpoints/step-00000020"))
    assert main(["generate", "a", "--max-tokens", "2"]) == 0
    assert "step-00000020" in fault(capsys)
    damage(Path("runs/one/checkpoints/step-00000010"))
    assert main(["generate", "a"]) == 3
    assert "no good checkpoint is left" in fault(capsys)
