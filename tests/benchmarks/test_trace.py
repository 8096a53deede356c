"""Trace budget: how many files and calls a reader must follow through one attention branch and one training step."""

import importlib.util
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).parents[2] / "benchmarks" / "trace.py"  # by path: the standard library has a module of that name


def trace() -> ModuleType:
    spec = importlib.util.spec_from_file_location("heddle_trace", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mixer_branch_keeps_its_budget() -> None:
    module = trace()
    found = module.mixer_branch()
    assert len(found.files) <= module.MIXER_FILES, found.files
    assert len(found.calls) <= module.MIXER_CALLS, found.calls


def test_a_training_step_keeps_its_budget() -> None:
    module = trace()
    found = module.training_step()
    assert 0 < len(found.files) <= module.TRAINING_FILES, found.files
