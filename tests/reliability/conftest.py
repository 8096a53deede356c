"""Shared by the reliability rows: one nursery of trainers for all of a session's tests."""

from collections.abc import Iterator

import pytest
from reliability.harness import Nursery, nursery


@pytest.fixture(scope="session")
def nest() -> Iterator[Nursery]:
    """Fork trainers from one warm process."""
    with nursery() as process:
        yield process
