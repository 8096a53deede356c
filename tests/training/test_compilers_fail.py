"""Where a compiler fails, a run that did not ask for it goes on without; one that did is told in one line."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import differences, tiny, trainer_for, write_text
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from heddle.cli.main import main
from heddle.core import override, replace
from heddle.core.system import choose_hardware, compiler_fault
from heddle.data.rows import StreamRows
from heddle.models.presets import PresetConfig
from heddle.objectives import Loss
from heddle.training import build_dry_run
from heddle.training import setup as room
from heddle.training.loop import ModelWithLoss, ProcessGroup
from heddle.training.measure import DryRun
from heddle.training.optimizers import Muon


def broken(*_: object) -> None:
    """Fail as a compiler does that lacks its tools."""
    raise RuntimeError("no working C++ compiler\nmore that nobody wants to read")


class BrokenBack(torch.autograd.Function):
    """x, whose way back is made when it is gone, and cannot be made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise BackendCompilerFailed(broken, RuntimeError("no working C++ compiler"), None)


def there(losses: nn.Module, **_: object) -> None:
    """Fail before the way there."""
    nn.Module.compile(losses, backend=broken)


def back(losses: nn.Module, **_: object) -> None:
    """Fail before the way back."""

    def call(*given: Any) -> Loss:
        loss = losses._call_impl(*given)
        return dataclasses.replace(loss, total=BrokenBack.apply(loss.total))  # type: ignore[no-untyped-call]

    losses._compiled_call_impl = call


def rehearsed(tmp_path: Path) -> DryRun:
    """Return a tiny run's step."""
    return build_dry_run(tiny(write_text(tmp_path / "text.txt"), hardware__compile="auto"))


@pytest.mark.parametrize("way", [there, back])
def test_a_run_goes_on_uncompiled_and_says_so_once(
    way: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = rehearsed(tmp_path)
    monkeypatch.setattr(room, "should_compile_run", lambda *_: True)
    monkeypatch.setattr(ModelWithLoss, "compile", way)
    mended = rehearsed(tmp_path)
    with caplog.at_level(logging.WARNING, logger="heddle"):
        for _ in range(2):
            plain.take()
            mended.take()
    ours, theirs = mended.model.weights(), plain.model.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "could not be compiled" in line and "no working C++ compiler" in line and "\n" not in line


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stream_goes_on_from_the_state_that_it_had(
    resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), training__steps=3, training__micro_batch=None)
    model = PresetConfig(name="qrnn_lm", width=16, layers=1)
    config = replace(config, model=model, rows=StreamRows(length=8, lanes=4))
    for name in ("plain", "mended"):
        if resumed:
            trainer_for(config, tmp_path / name).fit()
        if name == "mended":
            monkeypatch.setattr(room, "should_compile_run", lambda *_: True)
            monkeypatch.setattr(ModelWithLoss, "compile", back)
        trainer_for(override(config, "training.steps", 6), tmp_path / name).fit()
    assert not differences(tmp_path / "plain", tmp_path / "mended")


def test_several_processes_do_not_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "should_compile_run", lambda *_: True)
    config = tiny(write_text(tmp_path / "text.txt"), hardware__compile="auto")
    run = build_dry_run(config)
    monkeypatch.setattr(ProcessGroup, "data_parallel", lambda _, losses: losses)
    hardware = choose_hardware("cpu")
    assert room.build_step(run.config, run.model, hardware, ProcessGroup()).recover is not None
    assert room.build_step(run.config, run.model, hardware, ProcessGroup(world=2)).recover is None


def test_whoever_asked_for_it_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ModelWithLoss, "compile", there)
    sizes = ["model.layers=1", "model.width=16", "model.heads=1", "rows.length=16", "training.batch=2"]
    assert main(["bench", "train", "first", *sizes, "hardware.device=cpu", "hardware.compile=on", "--steps", "1"]) == 3
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith("heddle: the compiler failed (RuntimeError: no working C++ compiler)")
    assert "hardware.compile=off" in said


def test_an_error_that_is_no_compilers_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "should_compile_run", lambda *_: True)
    monkeypatch.setattr(ModelWithLoss, "compile", lambda self, **_: None)
    run = rehearsed(tmp_path)
    monkeypatch.setattr(ModelWithLoss, "forward", lambda *_: broken())
    with pytest.raises(RuntimeError, match="no working C"):
        run.take()
    assert compiler_fault(RuntimeError("backend failed")) is None


def test_muon_goes_on_uncompiled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend=broken))
    weights = []
    for compiled in (False, True):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(8, 4))
        muon = Muon([weight], rate=0.1, momentum=0.9, decay=0.0)
        if compiled:
            muon.compile()
        with caplog.at_level(logging.WARNING, logger="heddle"):
            for _ in range(2):
                weight.grad = torch.randn(8, 4)
                muon.step()
        weights.append(weight.detach())
    assert torch.equal(*weights)
    assert len(caplog.records) == 1 and "Muon could not be compiled" in caplog.records[0].getMessage()
