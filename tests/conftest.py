"""Shared test set-up: one thread, and shapes checked at run time in the rooms that carry tensors."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from jaxtyping import install_import_hook

install_import_hook(["heddle.nn", "heddle.models"], "beartype.beartype")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the one test that takes a minute, so that no process is left alone with it at the end."""
    items.sort(key=lambda item: "test_r29_gradients" not in item.nodeid)
