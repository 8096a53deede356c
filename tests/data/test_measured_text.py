"""Measured text: the bytes of the rows that are measured, not of all that is held out; bytes that are lost."""

from pathlib import Path

import numpy as np
import pytest

from heddle.data.rows import PackedRows, PairRows, StreamRows, measured_text
from heddle.data.rows.plan import RowsConfig
from heddle.data.shards import Prepared, Shards, prepare
from heddle.data.sources import CorpusConfig, FileSplit, JsonlSource, TextSource
from heddle.data.sources.readers import TsvSource
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, Tokenizer, WordTokenizer

# What comes first takes few tokens for its bytes, what comes last many.
TEXTS = ["the cat sat on the mat and the cat sat on the mat " * 12, *(f"{i} {i * i} q{i}z" for i in range(120))]
BYTES = ByteTokenizer().train([])
BPE = BpeTokenizer().train(TEXTS[:1] * 3)


def made(tmp_path: Path, tokenizer: Tokenizer) -> Prepared:
    """Prepare the texts as held-out lines."""
    (tmp_path / "held.txt").write_text("\n".join(TEXTS))
    (tmp_path / "train.txt").write_text("something else")
    held = TextSource(path=str(tmp_path / "held.txt"), split="line")
    corpus = CorpusConfig(sources=(TextSource(path=str(tmp_path / "train.txt")),), split=FileSplit(source=held))
    return prepare(corpus, tokenizer, tmp_path / "out")


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("rows", [PackedRows(length=32, shuffle=False), StreamRows(length=16, lanes=4)])
def test_bytes_are_those_of_the_rows_that_are_measured(tmp_path: Path, tokenizer: Tokenizer, rows: RowsConfig) -> None:
    shards = Shards.open(made(tmp_path, tokenizer).valid)
    plan = rows.build(shards, 0)
    for count in (4, 8, plan.rows_per_epoch):
        ids = [id for n in range(count) for id in plan.row(n).tokens[1:][plan.row(n).weights > 0].tolist()]
        found = measured_text(plan, range(count), shards, lambda: tokenizer)
        assert found.bytes_per_token == pytest.approx(len(tokenizer.decode(ids).encode()) / len(ids))
        assert found.lost_per_token == 0
    whole = shards.bytes / shards.tokens
    first = measured_text(plan, range(4), shards, lambda: tokenizer)
    assert tokenizer is BYTES or abs(first.bytes_per_token / whole - 1) > 0.2


def test_pairs_that_are_too_long_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "held.tsv").write_text("".join(f"s\t{text}\n" for text in TEXTS))
    (tmp_path / "train.tsv").write_text("a\tb\n")
    held = TsvSource(path=str(tmp_path / "held.tsv"), target=1)
    train = TsvSource(path=str(tmp_path / "train.tsv"), target=1)
    ready = prepare(CorpusConfig(sources=(train,), split=FileSplit(source=held)), BPE, tmp_path / "out")
    target, source = (Shards.open(ready.valid / side) for side in ("target", "source"))
    plan = PairRows(length=64, source_length=64, batch=4, jitter=0).build(target, 0, source)
    assert sum(plan.skipped.values()) == 1
    kept = sum(len(text.encode()) for text in TEXTS[1:])
    tokens = sum(len(BPE.encode(text)) + 1 for text in TEXTS[1:])
    found = measured_text(plan, range(plan.rows_per_epoch), target, lambda: BPE)
    assert found.bytes_per_token == pytest.approx(kept / tokens)


def test_bytes_that_unknown_tokens_hide_are_counted(tmp_path: Path) -> None:
    words = WordTokenizer(least=5).train(TEXTS)
    shards = Shards.open(made(tmp_path, words).valid)
    lost = sum(len(word.encode()) for text in TEXTS for word in text.split() if words.encode(word) == [words.unknown])
    assert shards.lost == lost > 0
    plan = PackedRows(length=32, shuffle=False).build(shards, 0)
    whole = measured_text(plan, range(plan.rows_per_epoch), shards, lambda: words)
    assert whole.lost_per_token * shards.tokens == pytest.approx(lost)
    first = measured_text(plan, range(2), shards, lambda: words)
    assert first.lost_per_token == 0 and first.bytes_per_token > whole.bytes_per_token
    assert np.isclose(first.bytes_per_token, 50 / 12, rtol=0.2)
    rest = measured_text(plan, range(2, plan.rows_per_epoch), shards, lambda: words)
    assert rest.lost_per_token > whole.lost_per_token, "all words that it does not know are in the later rows"


def test_a_source_of_json_has_them_too(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text('{"text": "known words"}\n{"text": "known things, ünknown"}\n')
    (tmp_path / "train.txt").write_text("x")
    words = WordTokenizer().train(["known words things ,"])
    held = JsonlSource(path=str(tmp_path / "held.jsonl"))
    corpus = CorpusConfig(sources=(TextSource(path=str(tmp_path / "train.txt")),), split=FileSplit(source=held))
    assert Shards.open(prepare(corpus, words, tmp_path / "out").valid).lost == len("ünknown".encode())
