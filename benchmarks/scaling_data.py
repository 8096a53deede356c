"""Pack the text of the scaling record: the books of Project Gutenberg, small enough to be carried to another machine.

The files that are learned from are copied as they are (compressed); what is held out is cut into pieces and shuffled:
validation books first, as many bytes as a validation measures, then the test books.

    python benchmarks/scaling_data.py DATA/lm-gutenberg -o scaling_data
    python benchmarks/scaling_data.py scaling_data --prepare scaling_tokens      on the other machine: bytes as shards
"""

import argparse
import json
import lzma
import random
import shutil
from pathlib import Path

from narang_data import pieces

from heddle.data.shards import Shards, prepare
from heddle.data.sources import CorpusConfig, FileSplit, JsonlSource
from heddle.text.tokenizers import ByteTokenizer

HELD_OUT = "held_out.jsonl.xz"
VALIDATION = 4096 * 256  # bytes of validation rows; the test rows are as many again
MOST = 60 * 2**20  # bytes that a call to the other machine may carry


def pack(data: Path, out: Path, files: int) -> None:
    """Write the packed text; refuse what is too large to be carried."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(data.glob("train-*.jsonl.xz"))[:files]:
        shutil.copyfile(path, out / path.name)
    draw, chosen, count = random.Random(0), list[str](), 0
    for piece in pieces(data / "valid.jsonl.xz", draw):
        if count >= VALIDATION:
            break
        chosen.append(piece)
        count += len(piece.encode()) + 1
    chosen += pieces(data / "test.jsonl.xz", draw)
    with lzma.open(out / HELD_OUT, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": piece}) + "\n" for piece in chosen)
    size = sum(path.stat().st_size for path in out.iterdir())
    print(f"{out}: {size:,} bytes, {len(chosen):,} held-out pieces")
    if size > MOST:
        raise SystemExit(f"{out}: want at most {MOST:,} bytes, to be carried, got {size:,}; give fewer --files")


def prepare_bytes(packed: Path, out: Path) -> None:
    """Write bytes of the packed text as token shards."""
    train = tuple(JsonlSource(path=str(path)) for path in sorted(packed.glob("train-*.jsonl.xz")))
    corpus = CorpusConfig(sources=train, split=FileSplit(source=JsonlSource(path=str(packed / HELD_OUT))))
    made = prepare(corpus, ByteTokenizer().train(iter([])), out)
    for side in (made.train, made.valid):
        shards = Shards.open(side, verify=False)
        print(f"{side}: {shards.count:,} documents, {shards.tokens:,} bytes")


def main() -> None:
    """Pack, or prepare what was packed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder lm-gutenberg, or one that was packed")
    parser.add_argument("-o", "--out", type=Path, default=Path("scaling_data"))
    parser.add_argument("--files", type=int, default=6, help="how many of the files that are learned from")
    parser.add_argument("--prepare", type=Path, help="write token shards of packed text to this folder")
    given = parser.parse_args()
    if given.prepare is None:
        pack(given.data, given.out, given.files)
    else:
        prepare_bytes(given.data, given.prepare)


if __name__ == "__main__":
    main()
