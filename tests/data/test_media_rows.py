"""Media rows: folders and manifests to batches; padded, keyed, resumed by one integer, damage and bad files counted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from data.sounds import RATE, tones, write_folder, write_wav

from heddle.core import ConfigError, DamageError, DataError, replace
from heddle.data.media import (
    BrightnessConfig,
    CropConfig,
    FlipConfig,
    GivenFeaturesConfig,
    LogMelConfig,
    PixelsConfig,
    SpecAugmentConfig,
    SpeedConfig,
)
from heddle.data.rows import Loader, MediaRows, PackedRows, PairRows
from heddle.data.shards import Prepared, open_split, prepare
from heddle.data.sources import ArraySource, CorpusConfig, DocumentCounter, HashSplit, SoundSource, Split, corpus_for
from heddle.text.tokenizers import CharacterTokenizer

FEATURES = LogMelConfig(mels=12, sample_rate=RATE)
ROWS = MediaRows(length=8, source_length=80, batch=4, features=FEATURES)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Path]:
    root = tmp_path_factory.mktemp("media")
    texts = write_folder(root / "sounds", 30)
    source = SoundSource(path=str(root / "sounds"), sample_rate=RATE)
    corpus = CorpusConfig(sources=(source,), split=HashSplit(fraction=0.2))
    return prepare(corpus, CharacterTokenizer().train(iter(texts)), root / "tokens"), root


def texts_in(folder: Path) -> list[str]:
    """Return the texts beside the sounds of a folder."""
    return [path.read_text().strip() for path in sorted(folder.glob("*.txt"))]


def test_a_folder_becomes_rows_of_features_and_texts(prepared: tuple[Prepared, Path]) -> None:
    made, root = prepared
    shards, _ = open_split(made, Split.TRAIN)
    assert shards.media is not None and shards.media.format.sample_rate == RATE
    tokenizer, seen = made.load_tokenizer(), list[str]()
    plan = replace(ROWS, jitter=0.0).build(shards, seed=1)
    for batch in Loader(plan, 4).once():
        assert batch.source is not None and batch.source_lengths is not None
        assert batch.source.dtype is torch.float32 and batch.source.shape[1] % 8 == 0
        for row in range(len(batch)):
            count = int(batch.weights[row].sum())
            if not count:
                continue
            text = tokenizer.decode(batch.targets[row, : count - 1].tolist())
            seen.append(text)
            frames = int(batch.source_lengths[row])
            assert not batch.source[row, frames:].any()
            assert batch.source[row, :frames].mean(0).abs().max() < 1e-4
    stored = [tokenizer.decode(shards.document(number)[:-1].tolist()) for number in range(shards.count)]
    assert sorted(seen) == sorted(stored) and set(stored) <= set(texts_in(root / "sounds"))


def test_resumed_and_divided_loading_gives_the_same_bits(prepared: tuple[Prepared, Path]) -> None:
    shards, _ = open_split(prepared[0], Split.TRAIN)
    augment = (SpeedConfig(), SpecAugmentConfig())
    rows = replace(ROWS, augment=augment, source_length=90)
    plan = rows.build(shards, seed=5)
    whole = [batch for batch, _ in zip(Loader(plan, 4), range(20), strict=False)]
    again = rows.build(shards, seed=5)
    for start in (0, 7, 19):
        batch = next(iter(Loader(again, 4, start=4 * start, workers=2)))
        assert torch.equal(batch.source, whole[start].source) and torch.equal(batch.targets, whole[start].targets)
    halves = [next(iter(Loader(again, 4, start=12, rank=rank, world=2))) for rank in range(2)]
    assert torch.equal(torch.cat([half.source for half in halves]), whole[3].source)
    other = next(iter(Loader(rows.build(shards, seed=6), 4)))
    assert other.source.shape != whole[0].source.shape or not torch.equal(other.source, whole[0].source)
    assert max(batch.source.shape[1] for batch in whole) <= rows.most_frames


def test_validation_has_each_document_once_and_unchanged(prepared: tuple[Prepared, Path]) -> None:
    shards, _ = open_split(prepared[0], Split.VALID)
    rows = replace(ROWS, augment=(SpecAugmentConfig(),)).for_validation(shards, 2)
    batches = list(Loader(rows.build(shards, seed=0), 2).once())
    assert sum(int((batch.weights.sum(1) > 0).sum()) for batch in batches) == shards.count
    again = list(Loader(rows.build(shards, seed=9), 2).once())
    key = [round(float(batch.source.sum()), 3) for batch in batches]
    assert sorted(key) == sorted(round(float(batch.source.sum()), 3) for batch in again)


def test_rows_that_do_not_fit_the_data_are_refused(prepared: tuple[Prepared, Path]) -> None:
    shards, _ = open_split(prepared[0], Split.TRAIN)
    with pytest.raises(ConfigError, match=r"rows\.kind: want media"):
        PackedRows(length=8).build(shards, 0)
    with pytest.raises(ConfigError, match=r"rows\.kind: want media"):
        PairRows().build(shards, 0)
    with pytest.raises(ConfigError, match=r"rows\.features\.sample_rate: want 8000"):
        replace(ROWS, features=LogMelConfig()).build(shards, 0)
    for one in (FlipConfig(), CropConfig(), BrightnessConfig()):
        want = r"rows\.augment\.1\.kind: want one for rows of numbers \(spec_augment, speed\), .* got '" + str(one.kind)
        with pytest.raises(ConfigError, match=want):
            replace(ROWS, augment=(SpeedConfig(), one)).build(shards, 0)
    with pytest.raises(DataError, match="at most 3 frames"):
        replace(ROWS, source_length=3).build(shards, 0)
    skipped = replace(ROWS, source_length=45).build(shards, 0).skipped
    assert 0 < skipped["source_too_long"] < shards.count


def test_augmentations_of_time_are_refused_for_pictures() -> None:
    for one in (SpecAugmentConfig(), SpeedConfig()):
        with pytest.raises(ConfigError, match=r"augment\.0\.kind: want one for pictures"):
            one.check(0, PixelsConfig().shape)
    FlipConfig().check(0, PixelsConfig().shape)


def test_a_changed_byte_of_the_sounds_is_found(prepared: tuple[Prepared, Path]) -> None:
    made, _ = prepared
    path = made.train / "source" / "tokens-00000.bin"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    kept = path.read_bytes()
    path.write_bytes(raw)
    with pytest.raises(DamageError, match="damaged"):
        open_split(made, Split.TRAIN)
    path.write_bytes(kept)
    open_split(made, Split.TRAIN)


def test_manifests_name_files_speakers_parts_and_splits(tmp_path: Path) -> None:
    write_wav(tmp_path / "long.wav", tones("abcdabcd"))
    rows = [
        {"path": "long.wav", "text": "ab", "speaker": "x", "split": "train", "start": 0, "length": 0.3},
        {"path": "long.wav", "text": "cd", "speaker": "y", "split": "train", "start": 0.3, "length": 0.2},
        {"path": "long.wav", "text": "all of it", "split": "dev"},
        {"path": "gone.wav", "text": "none", "split": "train"},
        {"path": "long.wav", "text": " ", "split": "train"},
        {"text": "no path", "split": "train"},
        {"path": "long.wav", "text": "beyond", "split": "train", "start": 100},
    ]
    lines = tmp_path / "list.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no json\n")
    corpus = corpus_for(str(lines))
    assert corpus.sources == (SoundSource(path=str(lines)),) and corpus.medium == "sound"
    counter = DocumentCounter()
    found = list(replace(corpus.sources[0], split="train").documents(counter))
    assert [(one.text, one.group) for one in found] == [
        ("ab", "x"),
        ("cd", "y"),
        ("none", "gone.wav 0 None"),
        ("beyond", "long.wav 100 None"),
    ]
    assert {str(k): v for k, v in counter.skipped.items()} == {"no_text": 1, "missing_field": 1, "bad_json": 1}
    assert len({one.digest for one in found}) == 4
    assert [len(one.media.decode()) for one in found[:2]] == [4800, 3200]
    columns = sorted({name for row in rows for name in row})
    cells = ["\t".join(str(row.get(name, "")) for name in columns) for row in rows]
    tsv = tmp_path / "list.tsv"
    tsv.write_text("\n".join(["\t".join(columns), *cells]))
    again = list(SoundSource(path=str(tsv), split="train").documents(DocumentCounter()))
    assert [one.digest for one in again] == [one.digest for one in found]


def test_bad_files_are_skipped_under_a_counted_reason(tmp_path: Path) -> None:
    texts = write_folder(tmp_path / "sounds", 12)
    folder = tmp_path / "sounds"
    (folder / "000.wav").write_bytes(b"")
    (folder / "001.wav").write_bytes((folder / "001.wav").read_bytes()[:200])
    (folder / "002.txt").unlink()
    (folder / "003.txt").write_text(" \n")
    (folder / "004.txt").write_bytes(b"\x80abc")
    (folder / "005.txt").write_bytes(b"a\0b")
    (folder / "012.wav").write_bytes((folder / "011.wav").read_bytes())
    (folder / "012.txt").write_text(texts[11])
    (folder / "notes.md").write_text("no sound")
    corpus = CorpusConfig(sources=(SoundSource(path=str(folder), sample_rate=RATE),), split=HashSplit(fraction=0.3))
    made = prepare(corpus, CharacterTokenizer().train(iter(texts)), tmp_path / "tokens")
    skipped = {str(reason): count for reason, count in made.counter.skipped.items()}
    bad = skipped.pop("not_utf8", 0) + skipped.pop("binary", 0) + skipped.pop("unreadable", 0)
    assert bad == 2 and skipped == {"empty": 1, "bad_media": 1, "no_text": 2, "duplicate": 1}
    assert made.counter.kept == 6 and made.counter.balanced


def test_arrays_of_another_program_are_sources_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.save(tmp_path / "all.npy", draw.normal(size=(400, 5)).astype(np.float16))
    rows = [f"all.npy\t{20 * n}\t20\ttext {n}\tspeaker {n % 4}" for n in range(20)]
    (tmp_path / "list.tsv").write_text("\n".join(["path\tstart\tlength\ttext\tspeaker", *rows]))
    corpus = replace(corpus_for(str(tmp_path / "list.tsv")), split=HashSplit(fraction=0.3, seed=3))
    assert isinstance(corpus.sources[0], ArraySource)
    tokenizer = CharacterTokenizer().train(corpus.sample())
    made = prepare(corpus, tokenizer, tmp_path / "tokens")
    sides = [open_split(made, split)[0] for split in Split]
    assert all(side.count % 5 == 0 for side in sides)  # speakers stay together
    plan = MediaRows(length=16, batch=2, features=GivenFeaturesConfig(width=5, deltas=1)).build(sides[0], 0)
    batch = next(iter(Loader(plan, 2)))
    assert batch.source.shape == (2, 24, 10) and batch.source_lengths.tolist() == [20, 20]
