"""One server for all tests of the HTTP protocol."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import chromium
from serving.server import Running, save_models, serving


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of the served models."""
    return save_models(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server of three models, with a key."""
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="the extra `serve` is not installed")
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(folders, log, "--slots", "8", "--cors-origin", "https://page.example") as running:
        yield running


@pytest.fixture(scope="session")
def lms(folders: dict[str, Path]) -> dict[str, Any]:
    """Load the served models in this process."""
    import heddle

    return {name: heddle.load(folder, device="cpu") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Run Chromium; it ends with the module, because it occupies the thread's event loop."""
    with chromium() as started:
        yield started
