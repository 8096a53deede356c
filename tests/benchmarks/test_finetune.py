"""The dialogues that fine-tuning is measured on: turns without the labels behind them, punctuation where it belongs."""

import gzip
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("tokenized", "plain"),
    [
        ("Why not ? See .", "Why not? See."),
        ("Hi Bill , it ’ s Jane .", "Hi Bill, it’s Jane."),
        ("I don ' t know ; they 're 5 % off !", "I don't know; they're 5% off!"),
        ("the dogs ' tails", "the dogs ' tails"),
    ],
)
def test_dialogues_read_like_text(tokenized: str, plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from finetune import dialogues

    rows = [
        f"{tokenized} __eou__ {tokenized} __eou__ 1\t2 1\t0 0",
        "alone __eou__ 1\t1\t0",
        "a __eou__ b __eou__ 3\t1 1\t0 0",
    ]
    (tmp_path / "rows.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    assert list(dialogues(tmp_path / "rows.gz", 9)) == [[plain, plain], ["a", "b"]]
    assert len(list(dialogues(tmp_path / "rows.gz", 1))) == 1
