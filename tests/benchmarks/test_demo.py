"""`make demo` from its first command to its last line, with a model too small to beat gzip."""

import sys
from pathlib import Path

import pytest
from scripts import script


def test_the_demo_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains, generates, compares with gzip and xz, and says by its exit code that it lost."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"line {number} of a short text" for number in range(400)))
    monkeypatch.chdir(tmp_path)
    small = ["model.layers=1", "model.width=32", "model.heads=2", "training.steps=2", "tokenizer.vocab=300"]
    monkeypatch.setattr(sys, "argv", ["demo.py", f"data={text}", *small])
    with pytest.raises(SystemExit) as ended:
        script("demo").main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "gzip -9" in said and "bits per byte" in said and "It does not beat both." in said
