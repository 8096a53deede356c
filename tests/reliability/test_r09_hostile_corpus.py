"""R9: hostile corpus files. No crash, every document accounted for, bounded memory, all exact copies found."""

import bz2
import gzip
import json
import lzma
import os
import random
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.data.shards import Shards, prepare
from heddle.data.sources import CorpusConfig, DocumentCounter, HashSplit, JsonlSource, TextSource
from heddle.data.sources.readers import CsvSource, TsvSource
from heddle.data.sources.records import RecordUnit
from heddle.text.tokenizers import ByteTokenizer

KEPT = "kept"
PROSE = "A plain sentence, long enough to be a document of its own.\n"
RANDOM = random.Random(9)
NOISE = RANDOM.randbytes(5000)
COPIES = 40


def own(name: str) -> bytes:
    """Return a text that no other file holds."""
    return f"{name}: {PROSE}".encode()


ZSTD = b"\x28\xb5\x2f\xfd\x04\x00" + b"\x01\x02"  # a cut frame
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "blank": (b" \n\t\r\n  ", "empty"),
    "wide blanks": ("\u3000\u2003\u00a0".encode(), "empty"),
    "newline": (b"\n", "empty"),
    "bom only": (b"\xef\xbb\xbf", "empty"),
    "bom": (b"\xef\xbb\xbf" + own("bom"), KEPT),
    "utf16 mark only": (b"\xff\xfe", "empty"),
    "utf16 le": ("\ufeffutf16 le 日本 🙂".encode("utf-16-le"), KEPT),
    "utf16 be": ("\ufeffutf16 be 日本 🙂".encode("utf-16-be"), KEPT),
    "utf32 le": ("\ufeffutf32 le 日本 🙂".encode("utf-32-le"), KEPT),
    "utf32 be": ("\ufeffutf32 be 日本 🙂".encode("utf-32-be"), KEPT),
    "utf16 unmarked": ("no mark at all".encode("utf-16-le"), "binary"),
    "utf16 cut": ("\ufeffcut here".encode("utf-16-le")[:-1], "not_utf8"),
    "utf16 lone surrogate": (b"\xff\xfea\x00\x00\xd8b\x00", "not_utf8"),
    "utf32 beyond": (b"\xff\xfe\x00\x00\xff\xff\xff\x7f", "not_utf8"),
    "nul": (b"a\0b", "binary"),
    "nul only": (b"\0" * 100, "binary"),
    "nul late": (b"text " * 5000 + b"\0", "binary"),
    "overlong two": (b"ab\xc0\xafcd", "not_utf8"),
    "overlong three": (b"ab\xe0\x80\xafcd", "not_utf8"),
    "overlong four": (b"ab\xf0\x80\x80\xafcd", "not_utf8"),
    "five bytes": (b"ab\xf8\x88\x80\x80\x80cd", "not_utf8"),
    "surrogate in utf8": (b"ab\xed\xa0\x80cd", "not_utf8"),
    "beyond unicode": (b"ab\xf4\x90\x80\x80cd", "not_utf8"),
    "cut utf8": ("ab日".encode()[:-1], "not_utf8"),
    "stray continuation": (b"ab\x80cd", "not_utf8"),
    "latin1": ("café crème".encode("latin-1"), "not_utf8"),
    "shift jis": ("日本語".encode("shift-jis"), "not_utf8"),
    "noise": (NOISE, "binary"),
    "controls": (bytes(range(1, 32)) * 20, "binary"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + NOISE, "binary"),
    "elf": (b"\x7fELF\x02\x01\x01\0" + NOISE, "binary"),
    "zip": (b"PK\x03\x04\x14\0\0\0" + NOISE, "binary"),
    "pickle": (b"\x80\x04\x95\x0c\0\0\0\0\0\0\0\x8c\x08builtins\x94.", "binary"),
    "gzip as text": (gzip.compress(own("gzip as text")), KEPT),
    "gzip twice": (gzip.compress(own("gzip")) + gzip.compress(own("twice")), KEPT),
    "gzip empty": (gzip.compress(b""), "empty"),
    "gzip of noise": (gzip.compress(NOISE), "binary"),
    "gzip cut": (gzip.compress(NOISE.hex().encode())[:-300], "unreadable"),
    "gzip crc": (gzip.compress(own("crc"))[:-8] + b"\1\2\3\4\5\6\7\x08", "unreadable"),
    "gzip head only": (b"\x1f\x8b", "unreadable"),
    "gzip zeros": (gzip.compress(b"\0" * (1 << 24)), "binary"),
    "gzip tail": (gzip.compress(own("tail")) + b"garbage", "unreadable"),
    "xz as text": (lzma.compress(own("xz as text")), KEPT),
    "xz cut": (lzma.compress(NOISE.hex().encode())[:-300], "unreadable"),
    "bz2 as text": (bz2.compress(own("bz2 as text")), KEPT),
    "bz2 cut": (bz2.compress(NOISE.hex().encode())[:-300], "unreadable"),
    "bz2 posing": (b"BZhello, this is text", "unreadable"),
    "zstd cut": (ZSTD, "unreadable"),
    "text as.gz": (own("text as gz"), KEPT),
    "carriage returns": (b"one\rtwo\rthree\r", KEPT),
    "crlf": (b"one\r\ntwo\r\n", KEPT),
    "escapes": (b"\x1b[31mred text in a terminal\x1b[0m and more of it", KEPT),
    "form feed": (b"page\x0cpage", KEPT),
    "noncharacters": ("a \ufffe \uffff \U0010ffff z".encode(), KEPT),
    "replacement": ("already \ufffd broken".encode(), KEPT),
    "marks": (("e" + "\u0301" * 5000).encode(), KEPT),
    "right to left": ("\u202eשלום עולם\u202c".encode(), KEPT),
    "line separators": ("a\u2028b\u2029c\x85d".encode(), KEPT),
    "control name": (b"<|end|> is text here <|unknown|>", KEPT),
    "copy one": (PROSE.encode(), KEPT),
    "copy two": (PROSE.encode(), "duplicate"),
    "new\nline": (own("newline"), KEPT),
    "-rf": (own("dash"), KEPT),
    "naïve 🙂": (own("emoji"), KEPT),
    "n" * 250: (own("long name"), KEPT),
    "z vanishing": (own("vanishing"), "unreadable"),
}
LINKS = {"link to itself": "link to itself", "dangling": "nowhere", "device": "/dev/zero", "memory": "/proc/self/mem"}


def build(folder: Path, long_line: int) -> int:
    """Write the hostile files and return how many there are."""
    inner = folder / "inner.txt"  # a folder in the place of a file
    inner.mkdir(parents=True)
    (inner / "loop").symlink_to(folder)
    for name, (data, _) in FILES.items():
        (folder / name).write_bytes(data)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    (folder / os.fsdecode(b"not unicode \xff")).write_bytes(own("not unicode"))
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:  # the name of a socket must be short
        here = os.getcwd()
        os.chdir(folder)
        server.bind("socket")
        os.chdir(here)
    with (inner / "one line").open("wb") as file:
        for start in range(0, long_line, 1 << 20):
            file.write(b"".join(b"%015d " % i for i in range(start, start + (1 << 20), 16)))
    (inner / "copies").write_text("".join(f"copied line {i % 10}\n" for i in range(COPIES + 10)))
    return len(FILES) + len(LINKS) + 6


def read(folder: Path, split: RecordUnit) -> dict[str, object]:
    """Read the folder, one file vanishing on the way, and return the ledger with the fate of each file."""
    (folder / "z vanishing").write_bytes(own("vanishing"))
    counter, kept = DocumentCounter(), set[str]()
    skips: dict[str, str] = {}
    skip = counter.skip
    counter.skip = lambda reason, origin: (skip(reason, origin), skips.setdefault(origin, str(reason)))  # type: ignore
    corpus = CorpusConfig(sources=(TextSource(path=str(folder), split=split),), split=HashSplit(fraction=0.5))
    for _, document in corpus.split_documents(counter):
        (folder / "z vanishing").unlink(missing_ok=True)
        kept.add(document.origin)
    assert counter.balanced, str(counter)
    fates = {name: KEPT for name in FILES if f"{folder / name}:1" in kept}
    fates |= {name: skips[o] for name in FILES for o in (str(folder / name), f"{folder / name}:1") if o in skips}
    return counter.plain() | {"fates": fates}


def peak() -> float:
    """Return the most memory this program has held, in MB; getrusage would count its parent's before the exec too."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    marks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return (marks[0] if marks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024


def child(folder: Path) -> None:
    """Read the folder in every way, prepare it, and print what happened and the peak of memory."""
    every = str(folder / "*")
    for source in (JsonlSource(path=every), TsvSource(path=every), CsvSource(path=every, text=0)):
        counter = DocumentCounter()
        for _ in source.documents(counter):
            counter.keep()
        assert counter.balanced, str(counter)
    found: dict[str, object] = {split: read(folder, split) for split in ("file", "paragraph", "line")}
    corpus = CorpusConfig(sources=(TextSource(path=str(folder)),), split=HashSplit(fraction=0.5))
    made = prepare(corpus, ByteTokenizer().train([]), folder.parent / "prepared")
    counts = [Shards.open(side).count for side in (made.train, made.valid)]
    found["prepared"] = [made.counter.kept, sum(counts)]
    found["peak"] = peak()
    print(json.dumps(found))


def check(tmp_path: Path, long_line: int) -> None:
    """Run the child on the files and check its numbers."""
    folder = tmp_path / "corpus"
    number = build(folder, long_line)
    done = subprocess.run([sys.executable, __file__, str(folder)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    by_file = found["file"]
    assert number >= 60
    assert by_file["fates"] == {name: fate for name, (_, fate) in FILES.items()}
    assert found["line"]["skipped"]["duplicate"] >= COPIES
    assert found["prepared"][0] == found["prepared"][1]
    skipped = sum(by_file["skipped"].values())
    assert by_file["seen"] == by_file["kept"] + skipped
    assert found["peak"] < 700
    print(
        f"R9: {number} files and a line of {long_line >> 20} MB, 0 crashes; {by_file['seen']} documents in"
        f" = {by_file['kept']} kept + {skipped} skipped; copies {COPIES}/{COPIES} found; peak {found['peak']:.0f} MB"
    )


def test_hostile_files_are_accounted_for(tmp_path: Path) -> None:
    check(tmp_path, 24 << 20)


@pytest.mark.full
def test_hostile_files_and_a_line_of_500_mb(tmp_path: Path) -> None:
    check(tmp_path, 500 << 20)


if __name__ == "__main__":
    child(Path(sys.argv[1]))
