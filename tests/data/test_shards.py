"""Token shards: what was written comes back, damage is refused, a failed write leaves nothing."""

import errno
import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest

from heddle.core import ConfigError, DamageError, DataError, EnvironmentFault
from heddle.data.shards import Shards, ShardWriter

END = 9


def write(folder: Path, documents: list[list[int]], vocab: int = 10, shard_tokens: int = 1 << 27) -> Path:
    with ShardWriter(folder, vocab=vocab, end=END, fingerprint="f", shard_tokens=shard_tokens) as writer:
        for document in documents:
            writer.add(document, bytes=2 * len(document), words=1)
    return folder


@pytest.mark.parametrize("shard_tokens", [1, 7, 1 << 27])
def test_documents_come_back_with_their_end(tmp_path: Path, shard_tokens: int) -> None:
    documents = [[1, 2, 3], [], [4], [5, 6, 7, 8, 0, 1, 2, 3], [2]]
    shards = Shards.open(write(tmp_path / "s", documents, shard_tokens=shard_tokens))
    assert [shards.document(i).tolist() for i in range(shards.count)] == [[*d, END] for d in documents]
    assert (shards.count, shards.tokens, shards.bytes, shards.words) == (5, 18, 26, 5)
    assert shards.lengths.tolist() == [len(d) + 1 for d in documents]
    assert (shards.vocab, shards.end, shards.fingerprint) == (10, END, "f")


@pytest.mark.parametrize("shard_tokens", [1, 7, 1 << 27])
def test_any_span_is_preceded_by_the_token_before_it(tmp_path: Path, shard_tokens: int) -> None:
    documents = [[1, 2, 3], [4], [5, 6, 7, 8], [2]]
    shards = Shards.open(write(tmp_path / "s", documents, shard_tokens=shard_tokens))
    joined = [END] + [t for d in documents for t in [*d, END]]
    for start in range(shards.tokens):
        for stop in range(start + 1, shards.tokens + 1):
            out = np.empty(stop - start + 1, shards.dtype)
            shards.fill(out, start)
            assert out.tolist() == joined[start : stop + 1]


@pytest.mark.parametrize(("vocab", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_tokens_take_two_bytes_when_they_fit(tmp_path: Path, vocab: int, dtype: type) -> None:
    shards = Shards.open(write(tmp_path / "s", [[0, vocab - 1]], vocab=vocab))
    assert shards.dtype == dtype
    assert shards.document(0).tolist() == [0, vocab - 1, END]


def test_arrays_and_lists_are_the_same_document(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s", vocab=10, end=END, fingerprint="") as writer:
        writer.add([1, 2], bytes=2, words=1)
        writer.add(np.array([1, 2], np.uint32), bytes=2, words=1)
    shards = Shards.open(tmp_path / "s")
    assert shards.document(0).tolist() == shards.document(1).tolist()


@pytest.mark.parametrize("ids", [[10], [-1], [1.5], [[1]], ["a"]])
def test_ids_outside_the_vocabulary_are_refused_and_nothing_is_left(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(DataError), ShardWriter(tmp_path / "s", vocab=10, end=END, fingerprint="") as writer:
        writer.add([1], bytes=1, words=1)
        writer.add(ids, bytes=1, words=1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "s", vocab=10, end=END, fingerprint="") as writer:
        writer.add([1], bytes=1, words=1)
        assert not (tmp_path / "s").exists()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        write(tmp_path / "s", [[1]])
    assert list(tmp_path.iterdir()) == []


def test_shards_are_as_open_to_others_as_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert write(tmp_path / "s", [[1]]).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_shards_are_written_once(tmp_path: Path) -> None:
    write(tmp_path / "s", [[1]])
    with pytest.raises(DataError, match="exists already"):
        write(tmp_path / "s", [[2]])
    assert Shards.open(tmp_path / "s").document(0).tolist() == [1, END]


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="end"):
        ShardWriter(tmp_path, vocab=5, end=5, fingerprint="")
    with pytest.raises(ConfigError, match="vocab"):
        ShardWriter(tmp_path, vocab=0, end=0, fingerprint="")


def test_no_documents_make_empty_shards(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path / "s", []))
    assert (shards.count, shards.tokens, len(shards.lengths)) == (0, 0, 0)


def test_a_folder_without_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no manifest\.json"):
        Shards.open(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"no manifest\.json"):
        Shards.open(tmp_path / "file")


def test_another_format_is_named(tmp_path: Path) -> None:
    from heddle.data.shards.shard_manifest import manifest_text

    folder = write(tmp_path / "s", [[1]])
    plain = json.loads((folder / "manifest.json").read_text())
    del plain["checksum"]
    (folder / "manifest.json").write_text(manifest_text(plain | {"format": 2}))
    with pytest.raises(DamageError, match="want format 1, found 2"):
        Shards.open(folder)


def test_cut_and_missing_files_are_refused_even_unverified(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [[1, 2, 3]])
    os.truncate(folder / "tokens-00000.bin", 6)
    with pytest.raises(DamageError, match=r"tokens-00000\.bin: want 10 bytes, found 6"):
        Shards.open(folder, verify=False)
    (folder / "tokens-00000.bin").unlink()
    with pytest.raises(DamageError, match="no such file"):
        Shards.open(folder, verify=False)


def test_a_file_that_shrinks_while_open_is_damage(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [[1, 2, 3], [4, 5]])
    shards = Shards.open(folder)
    os.truncate(folder / "tokens-00000.bin", 6)
    assert shards.lengths.tolist() == [4, 3]
    with pytest.raises(DamageError, match="shrunk"):
        shards.document(1)


def test_a_replaced_file_does_not_reach_open_shards(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path / "s", [[1, 2, 3]]))
    (tmp_path / "new").write_bytes(bytes(10))
    (tmp_path / "new").replace(tmp_path / "s" / "tokens-00000.bin")
    assert shards.document(0).tolist() == [1, 2, 3, END]


def test_closed_shards_refuse_to_read(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path / "s", [[1]]))
    shards.close()
    with pytest.raises(DataError, match="closed"):
        shards.document(0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_descriptors_go_back_with_the_shards(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [[i % 9] * 5 for i in range(20)], shard_tokens=6)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    shards = Shards.open(folder)
    assert len(os.listdir("/proc/self/fd")) == before + 20
    del shards
    assert len(os.listdir("/proc/self/fd")) == before
    os.truncate(folder / "ends-00019.bin", 0)
    with pytest.raises(DamageError):
        Shards.open(folder)
    assert len(os.listdir("/proc/self/fd")) == before


def test_reads_outside_the_corpus_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path / "s", [[1]]))
    with pytest.raises(IndexError):
        shards.document(1)
    with pytest.raises(IndexError):
        shards.fill(np.empty(9, shards.dtype), 0)
    with pytest.raises(IndexError):
        shards.fill(np.empty(2, np.int64), 0)
