"""Prepare the text of `heddle compare narang`: token shards of Gutenberg, small enough to be carried elsewhere.

The ids are sorted by frequency, because adaptive embeddings and softmaxes give the frequent ones more; sentinels and
other control tokens come last. What is held out is cut into pieces and shuffled: first those of the validation books,
as many rows as a validation measures, then those of the test books.

    python benchmarks/narang_data.py DATA/lm-gutenberg -o narang_data
"""

import argparse
import json
import lzma
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from heddle.comparison.suites import SUITES
from heddle.data.shards import Shards, prepare
from heddle.data.sources import CorpusConfig, FileSplit, JsonlSource
from heddle.text.tokenizers import Tokenizer, load_tokenizer
from heddle.training import with_control_tokens

PIECE = 4000  # characters of a held-out piece
SAMPLE = 20_000_000  # characters that the tokenizer is trained on, and the frequencies counted in


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def pieces(path: Path, draw: random.Random) -> list[str]:
    """Return the text of a file in pieces that end at paragraphs, shuffled."""
    found: list[str] = []
    for text in texts(path):
        piece = ""
        for paragraph in text.split("\n\n"):
            piece += paragraph + "\n\n"
            if len(piece) >= PIECE:
                found.append(piece)
                piece = ""
    draw.shuffle(found)
    return found


def sort_by_frequency(tokenizer: Tokenizer, sample: list[str], folder: Path) -> Tokenizer:
    """Return the tokenizer with ids that fall in frequency; control tokens keep theirs, which are the highest."""
    counts: Counter[int] = Counter()
    for ids in tokenizer.encode_many(sample):
        counts.update(ids)
    path = folder / "tokenizer.json"
    tokenizer.save(path)
    plain = json.loads(path.read_text())
    controls = {token["id"] for token in plain["added_tokens"]}
    vocab: dict[str, int] = plain["model"]["vocab"]
    free = [id for id in range(tokenizer.vocab) if id not in controls]
    assert free == list(range(len(free))), "control tokens have the highest ids"
    order = sorted(free, key=lambda id: (-counts[id], id))
    new = {old: number for number, old in enumerate(order)}
    plain["model"]["vocab"] = {token: new.get(id, id) for token, id in vocab.items()}
    path.write_text(json.dumps(plain, ensure_ascii=False))
    return load_tokenizer(path)


def write_held_out(data: Path, path: Path, tokenizer: Tokenizer, tokens: int) -> None:
    """Write the held-out pieces: enough of the validation books, then the test books."""
    draw = random.Random(0)
    chosen, count = [], 0
    for piece in pieces(data / "valid.jsonl.xz", draw):
        if count >= tokens:
            break
        chosen.append(piece)
        count += len(tokenizer.encode(piece)) + 1
    chosen += pieces(data / "test.jsonl.xz", draw)
    path.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in chosen), encoding="utf-8")


def main() -> None:
    """Train the tokenizer, write the text that is learned from and held out, and prepare both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder lm-gutenberg")
    parser.add_argument("-o", "--out", type=Path, default=Path("narang_data"))
    parser.add_argument("--files", type=int, default=4, help="how many of the six files of train")
    given = parser.parse_args()
    base = SUITES["narang"]().base
    files = sorted(given.data.glob("train-*.jsonl.xz"))
    work = given.out.with_name(given.out.name + "-work")
    work.mkdir(parents=True, exist_ok=True)
    books = [text for path in files[: given.files] for text in texts(path)]
    random.Random(0).shuffle(books)
    sample = [text[:50_000] for text in books][: SAMPLE // 50_000]
    tokenizer = sort_by_frequency(with_control_tokens(base).train(iter(sample)), sample, work)
    (work / "train.jsonl").write_text("".join(json.dumps({"text": book}) + "\n" for book in books), encoding="utf-8")
    rows = base.validation_rows or 0
    write_held_out(given.data, work / "valid.jsonl", tokenizer, rows * base.rows.max_length)
    corpus = CorpusConfig(
        sources=(JsonlSource(path=str(work / "train.jsonl")),),
        split=FileSplit(source=JsonlSource(path=str(work / "valid.jsonl"))),
    )
    made = prepare(corpus, tokenizer, given.out)
    for side in (made.train, made.valid):
        shards = Shards.open(side)
        print(f"{side}: {shards.count:,} documents, {shards.tokens:,} tokens")


if __name__ == "__main__":
    main()
