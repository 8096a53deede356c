"""The loader's benchmark reads every case, of this checkout and beside another."""

from pathlib import Path

import loader
import pytest


def test_every_case_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "TOKENS", 40_000)
    loader.write_shards(tmp_path / "shards")
    own = loader.measured_by(Path(loader.__file__).parents[1], tmp_path / "shards", 0.01)
    assert set(own) == set(loader.CASES) and min(own.values()) > 0
