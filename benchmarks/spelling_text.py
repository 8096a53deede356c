"""Gather everyday English for a language model that corrects spelling, as short documents in JSON lines.

    python benchmarks/spelling_text.py DATA OUT.jsonl.xz [--megabytes 110]

DATA holds the folders named below. Lines wrapped by hand are joined, paragraphs are cut after sentences into
documents of a few hundred characters, so that every one begins where a sentence does. No text of the spelling sets is
read. What speaks to the reader (reviews, talk) is taken whole; encyclopedia and books fill the rest by equal shares.
"""

import argparse
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from entry_point import run_main

SPOKEN = ("cls-imdb/train.jsonl.xz", "dialogue-dailydialog/*.jsonl.xz", "qa-subjqa/*.train.csv.xz")
STORIES = ("lm-tinystories-sample/tiny_stories.txt.gz", "spelling/norvig-big.txt.gz")
WRITTEN = ("lm-wikipedia-sample/train-*.jsonl.xz", "lm-gutenberg/train-*.jsonl.xz")
LONGEST = 400  # characters after which a document ends with its sentence
SHORTEST = 20
SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’)]))\s+(?=[\"'“‘(]?[A-Z])")
BREAKS = re.compile(r"\n\s*\n|<br\s*/?>")


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a file."""
    opener = lzma.open if path.suffix == ".xz" else gzip.open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        if ".csv" in path.name:
            seen: set[str] = set()
            for row in csv.DictReader(file):
                if row["review_id"] not in seen:
                    seen.add(row["review_id"])
                    yield row["review"].removesuffix("ANSWERNOTFOUND").strip()
        elif ".jsonl" in path.name:
            for line in file:
                row = json.loads(line)
                yield row["text"] if "text" in row else talk(row)
        else:
            yield file.read()


def talk(row: dict[str, list[str]]) -> str:
    """Join the context and each answer to it."""
    context = row["context"]
    return "\n\n".join([*context, *row["positive_responses"]]).replace("__eou__", "\n\n")


def documents(text: str, lines_are_paragraphs: bool) -> Iterator[str]:
    """Cut a text into short documents, each of whole sentences of one paragraph."""
    paragraphs = text.split("\n") if lines_are_paragraphs else BREAKS.split(text)
    for paragraph in paragraphs:
        held = ""
        for sentence in SENTENCE.split(" ".join(paragraph.split())):
            held = f"{held} {sentence}".strip()
            if len(held) >= LONGEST:
                yield held
                held = ""
        if held:
            yield held


def worthy(document: str) -> bool:
    """Tell whether a document reads as prose: long enough, and mostly small letters."""
    small = sum(c.islower() or c == " " for c in document)
    return len(document) >= SHORTEST and small > 0.8 * len(document)


def read(data: Path, patterns: Iterable[str]) -> Iterator[str]:
    """Yield the documents of files in order of their names."""
    for pattern in patterns:
        for path in sorted(data.glob(pattern)):
            for text in texts_of(path):
                yield from filter(worthy, documents(text, "wikipedia" in pattern))


def share(documents: Iterator[str], space: int) -> Iterator[str]:
    """Yield documents evenly until a number of characters is reached: every other one of what is read."""
    for document in islice(documents, 0, None, 2):
        if space <= 0:
            return
        space -= len(document)
        yield document


def gather(data: Path, letters: int) -> Iterator[str]:
    """Yield all documents: what is taken whole, then equal shares of the rest."""
    taken = 0
    for document in read(data, SPOKEN + STORIES):
        taken += len(document)
        yield document
    for pattern in WRITTEN:
        yield from share(read(data, [pattern]), (letters - taken) // len(WRITTEN))


def main() -> None:
    """Write the documents, compressed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=110)
    given = parser.parse_args()
    count = letters = 0
    with lzma.open(given.out, "wb", preset=6) as packed, io.TextIOWrapper(packed, encoding="utf-8") as file:
        for document in gather(given.data, int(given.megabytes * 1e6)):
            count, letters = count + 1, letters + len(document)
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    print(f"{given.out}: {count:,} documents, {letters:,} characters, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    run_main(main)
