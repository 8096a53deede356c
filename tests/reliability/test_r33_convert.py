"""R33: `convert` killed at every file that it opens, renames or syncs, and out of room there: whole or absent."""

import errno
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from cli.runs import save_run
from safetensors.torch import load_file

from heddle.checkpoints import find_source, to_adapter, to_hugging_face, to_run
from heddle.checkpoints.formats import unpickle_folder
from heddle.checkpoints.hf import folder as hf_folder
from heddle.core import DamageError, UsageError
from heddle.models.presets import PresetConfig
from heddle.models.surgery import add_adapters
from heddle.nn.adapters import LoraConfig
from heddle.text.tokenizers import ByteTokenizer

Way = Literal["kill", "full"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
COUNTED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
KINDS = ("hf", "run", "peft", "unpickle")


class Faults:
    """Counts what is done to the disk, as seen by Python's audit, and strikes at one count."""

    def __init__(self, at: int, way: Way) -> None:
        self.at, self.way, self.count, self.armed = at, way, 0, False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed or event not in COUNTED:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        self.strike(room=event in ("open", "os.mkdir"))

    def strike(self, room: bool = True) -> None:
        """Count once; at the count, die, or have no room from now on."""
        self.count += 1
        if self.way == "kill" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way == "full" and self.count >= self.at > 0 and room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def struck(work: Callable[[], object], at: int, way: Way) -> tuple[int, int]:
    """Do some work in a child that is struck at a count; return its exit status and how far it counted."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 9
        try:
            faults, real = Faults(at, way), hf_folder.serialize

            def halves(*arguments: Any) -> Any:
                for chunk in real(*arguments):
                    yield chunk[: len(chunk) // 2]
                    faults.strike()
                    yield chunk[len(chunk) // 2 :]

            hf_folder.serialize = halves  # type: ignore[assignment]
            sys.addaudithook(faults)
            faults.armed = True
            try:
                work()
                status = 0
            except (OSError, DamageError, UsageError):
                status = 3
            faults.armed = False
            os.write(writing, str(faults.count).encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, code = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(code), int(told or b"0")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Path], object]]:
    """Return every way to convert, ready but for the target."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("sources")
    tokenizer = ByteTokenizer().train([])
    small = PresetConfig(name="llama", layers=1, width=16, heads=2, hidden=24, vocab=tokenizer.vocab, context=16)
    save_run(place / "run", small, tokenizer=tokenizer)
    (place / "run" / "chat_template.jinja").write_text(TEMPLATE)
    run = find_source(place / "run")
    model = run.model()
    to_hugging_face(run, model, place / "hf")
    theirs = find_source(place / "hf")
    adapted = add_adapters(run.model(), LoraConfig(rank=2))
    shutil.copytree(place / "hf", place / "bin")
    weights = load_file(place / "bin" / "model.safetensors")
    torch.save(weights, place / "bin" / "pytorch_model.bin", pickle_module=pickle)
    for name in ("model.safetensors", "checksums.json"):
        (place / "bin" / name).unlink()
    return {
        "hf": lambda target: to_hugging_face(run, model, target),
        "run": lambda target: to_run(theirs, model, target),
        "peft": lambda target: to_adapter(run, adapted, target),
        "unpickle": lambda target: unpickle_folder(place / "bin", target),
    }


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def hold(job: Callable[[Path], object], whole: dict[str, bytes], at: int, way: Way, tmp_path: Path) -> int:
    """Strike at one count; the target is whole or absent, and doing it again makes it whole. Return the count."""
    target = tmp_path / f"{way}{at}" / "made"
    target.parent.mkdir()
    status, count = struck(lambda: job(target), at, way)
    if target.exists():
        assert files_of(target) == whole, (way, at)
    else:
        assert status != 0
        if way == "full":
            assert list(target.parent.iterdir()) == []
        job(target)
    if status != 0 and way == "kill":
        assert status == -signal.SIGKILL
    assert files_of(target) == whole
    beside = [path for path in target.parent.iterdir() if path != target]
    if status == 0 or way == "full":
        assert beside == []
    # killed between the rename and the end: an empty folder is left, which the next conversion there removes
    assert all(path.name.endswith(".tmp") and not any(path.iterdir()) for path in beside), (way, at)
    return count


def check(kind: str, jobs: dict[str, Callable[[Path], object]], tmp_path: Path, step: int) -> None:
    job, whole = jobs[kind], tmp_path / "whole" / "made"
    job(whole)
    want = files_of(whole)
    counts = hold(job, want, 0, "kill", tmp_path)
    assert counts > 8
    for way in ("kill", "full"):
        for at in range(1, counts + 1, step):
            hold(job, want, at, way, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_broken_off_leaves_all_or_nothing(
    kind: str, jobs: dict[str, Callable[[Path], object]], tmp_path: Path
) -> None:
    check(kind, jobs, tmp_path, 5)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_broken_off_anywhere_leaves_all_or_nothing(
    kind: str, jobs: dict[str, Callable[[Path], object]], tmp_path: Path
) -> None:
    check(kind, jobs, tmp_path, 1)
