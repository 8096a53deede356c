"""R37: files that fill the memory: parquet cells, rows and dictionaries, and empty frames of zstandard."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reliability.test_r09_hostile_corpus import peak

from heddle.data.sources import DocumentCounter, ParquetSource, TextSource

pytest.importorskip("pyarrow")
MEGABYTE = 1 << 20


def build(folder: Path, size: int) -> dict[str, dict[str, int]]:
    """Write the bombs, each of `size` MB once it is read; return what is to become of their documents."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def write(name: str, texts: object, dictionary: bool = False) -> None:
        parquet.write_table(
            pa.table({"text": texts}),
            folder / f"{name}.parquet",
            compression="zstd",
            use_dictionary=dictionary,
            dictionary_pagesize_limit=64 * MEGABYTE,
            write_statistics=False,
        )

    write("cell", pa.array(["x" * (size * MEGABYTE)]))
    write("cell among others", pa.array([*map(str, range(1000)), "x" * (size * MEGABYTE)]))
    write("many rows", pa.array([f"{i:09d}" + "x" * MEGABYTE for i in range(size)]))
    write("rows", pa.array([f"{i:09d}" + "x" * MEGABYTE for i in range(60)]))
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 2 * size, pa.int32()), pa.array(["x" * MEGABYTE]))
    write("dictionary", shared, dictionary=True)
    write("numbers", pa.array(range(3000)))
    write("honest", pa.array([f"text {i}" for i in range(3000)]), dictionary=True)
    assert all(path.stat().st_size < MEGABYTE for path in folder.iterdir())
    return {
        "cell": {"too_long": 1},
        "cell among others": {"too_long": 1001},
        "many rows": {"too_long": size},
        "rows": {"kept": 60},
        "dictionary": {"kept": 2 * size},
        "numbers": {"missing_field": 3000},
        "honest": {"kept": 3000},
    }


def child(folder: Path) -> None:
    """Read each file, and print what became of its documents and the peak of memory."""
    found: dict[str, object] = {}
    for path in sorted(folder.iterdir()):
        counter = DocumentCounter()
        for _ in ParquetSource(path=str(path)).documents(counter):
            counter.keep()
        assert counter.balanced, str(counter)
        kept = {"kept": counter.kept} if counter.kept else {}
        found[path.stem] = kept | {str(reason): count for reason, count in counter.skipped.items()}
    print(json.dumps({"found": found, "peak": peak()}))


def check(folder: Path, size: int) -> None:
    """Build the bombs, have a child read them, and check its numbers."""
    wanted = build(folder, size)
    words = [sys.executable, "-m", "reliability.test_r37_columnar_bombs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["found"] == wanted
    assert told["peak"] < 700
    print(f"R37: bombs of {size} MB in {len(wanted)} files: all accounted for; peak {told['peak']:.0f} MB")


def test_columnar_bombs_are_read_in_bounded_memory(tmp_path: Path) -> None:
    check(tmp_path, 200)


@pytest.mark.full
def test_columnar_bombs_of_2_gb(tmp_path: Path) -> None:
    check(tmp_path, 1900)


def test_empty_frames_are_refused_at_once(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    empty = zstandard.ZstdCompressor().compress(b"")
    (tmp_path / "bomb.zst").write_bytes(empty * 3_000_000)
    (tmp_path / "few.zst").write_bytes(empty * 1000 + zstandard.ZstdCompressor().compress(b"text") + empty * 1000)
    counter, began = DocumentCounter(), time.perf_counter()
    assert [document.text for document in TextSource(path=str(tmp_path)).documents(counter)] == ["text"]
    assert counter.skipped == {"unreadable": 1}
    assert time.perf_counter() - began < 5


if __name__ == "__main__":
    child(Path(sys.argv[1]))
