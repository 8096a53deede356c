"""Shared test set-up: one thread, a cache apart, and shapes checked at run time in the rooms that carry tensors."""

import gc
import os
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HEDDLE_CACHE", os.path.join(tempfile.gettempdir(), "heddle-tests"))  # not the user's
os.environ["HEDDLE_CONFIG"] = tempfile.mkdtemp(prefix="heddle-tests-config-")  # what this user trusts: nothing

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import shapes
from hypothesis import settings

# The same examples in every run, so that a change is not blamed for another's bug; `make reliability` draws new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def checked() -> list[str]:
    """Name the modules whose shapes are checked: all but kernels, which Triton compiles from their own source."""
    house = find_spec("heddle")
    assert house is not None and house.origin is not None
    folder = Path(house.origin).parent
    files = [file for file in (folder / "nn").rglob("[!_]*.py") if "@triton.jit" not in file.read_text()]
    return ["heddle.models", *(".".join(("heddle", *file.relative_to(folder).with_suffix("").parts)) for file in files)]


shapes.check(checked())
pytest_plugins = ["report"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have shapes checked anew."""
    shapes.begin()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the one test that takes a minute, so that no process is left alone with it at the end."""
    items.sort(key=lambda item: "test_r29_gradients" not in item.nodeid)


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Keep what earlier tests have left out of garbage collection, which would count in measured CPU time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fresh_user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Begin as a process does that has loaded no code of a user's, of a user who trusts none; return their folder."""
    from heddle.core import user_code
    from heddle.models.presets import PRESETS
    from heddle.recipes import RECIPES

    for name in ("_loaded", "_named", "_plugins"):
        monkeypatch.setattr(user_code, name, {})
    user_code._warn_of_other_code.cache_clear()
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "settings"))
    before = [(registry, dict(registry)) for registry in (RECIPES, PRESETS)]
    yield tmp_path / "settings"
    for registry, entries in before:
        registry.clear()
        registry.update(entries)
