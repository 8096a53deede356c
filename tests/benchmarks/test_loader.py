"""The loader's benchmark measures every case in a process of its own."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_case_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import loader

    monkeypatch.setattr(loader, "TOKENS", 40_000)
    loader.write_shards(tmp_path / "shards")
    found = loader.measured_by(BENCHMARKS.parent, tmp_path / "shards", 0.01)
    assert set(found) == set(loader.CASES) and min(found.values()) > 0
