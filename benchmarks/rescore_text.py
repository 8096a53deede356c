"""Text to train a rescorer on: books as lines like utterances, without those that hold what the lists are made of.

    python benchmarks/rescore_text.py DATA OUT [--workers N] [--books N] [--wikipedia FILES] [--context WORDS]

DATA holds the folders speech-librispeech-nbest, lm-gutenberg and lm-wikipedia-sample. LibriSpeech is read from
Gutenberg books: a book that shares three distinct 8-grams or one 13-gram with the references of a dev or test set is
dropped whole. References are joined by chapter first, so that n-grams across their ends count too. OUT gets
train.jsonl (documents of some lines, each line a sentence or so, all in normal form), valid.jsonl (the references of
the dev sets, by chapter), the lists {dev,test}_{clean,other}.jsonl with what was recognized before as context, and
prepare.json, which says what went.
"""

import argparse
import json
import lzma
import os
import random
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from entry_point import run_main
from numpy.typing import NDArray

from heddle.text.normalize import NormalizerConfig, normalize_text

SETS = ("dev_clean", "dev_other", "test_clean", "test_other")
CORPORA = {"lm-gutenberg": "\n\n", "lm-wikipedia-sample": "\n"}  # and what parts their paragraphs
FEW, ONE = 8, 13  # words: three distinct n-grams of the first length, or one of the second, and a document goes
NORMAL = NormalizerConfig(accents="drop")
SENTENCE = re.compile(r"""(?<=[.!?])["')\]”’]*\s+(?=["'(\[“‘_]*[A-Z0-9])""")
CLAUSE = re.compile(r"(?<=[;:])\s+|\s*--+\s*|\s*—\s*")
COMMA = re.compile(r"(?<=,)\s+")
TITLES = re.compile("mr|mrs|dr|st|messrs|capt|col|gen|lieut|lt|rev|hon|prof|esq|vol|no|viz|pp|etc|[^i\\W]")
LONG = 45  # words of a line at most, where marks allow
SHORT = 6  # words under which a line often takes the next sentence in
LINES = 8  # lines of a document, on average
MOST = 24


# --- what must not be learnt ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class References:
    """The n-grams of the references: as words, and of the shorter ones as hashes that find them fast."""

    few: frozenset[tuple[str, ...]]
    one: frozenset[tuple[str, ...]]
    codes: dict[str, int]  # a random number for each word
    factors: NDArray[np.uint64]
    hashes: NDArray[np.uint64]  # sorted

    def shared(self, words: list[str]) -> tuple[int, int]:
        """Count the distinct 8-grams and 13-grams that a text shares with the references."""
        sums = self._sums(words)
        places = np.searchsorted(self.hashes, sums)
        places[places == len(self.hashes)] = 0
        hits = np.flatnonzero(self.hashes[places] == sums)
        few = {tuple(words[i : i + FEW]) for i in hits} & self.few
        one = {tuple(words[i : i + ONE]) for i in hits} & self.one
        return len(few), len(one)

    def _sums(self, words: list[str]) -> NDArray[np.uint64]:
        codes = np.array([self.codes.get(word, 0) for word in words], dtype=np.uint64)
        count = max(0, len(codes) - FEW + 1)
        sums = np.zeros(count, dtype=np.uint64)
        for i, factor in enumerate(self.factors):
            sums += codes[i : i + count] * factor
        return sums


@cache
def references(data: Path) -> References:
    """Read the references of all sets."""
    chapters = [words for name in SETS for words in by_chapter(lists_of(data, name)).values()]
    few = frozenset(gram for words in chapters for gram in grams(words, FEW))
    one = frozenset(gram for words in chapters for gram in grams(words, ONE))
    rng = np.random.default_rng(0)
    known = sorted({word for words in chapters for word in words})
    numbers = rng.integers(1, 1 << 63, size=len(known), dtype=np.uint64).tolist()
    factors = rng.integers(1, 1 << 62, size=FEW, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    bare = References(few, one, dict(zip(known, numbers, strict=True)), factors, np.zeros(1, np.uint64))
    hashes = np.unique(np.concatenate([bare._sums(words) for words in chapters]))
    return References(few, one, bare.codes, factors, hashes)


def grams(words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    """Yield the n-grams of a text."""
    return (tuple(words[i : i + length]) for i in range(len(words) - length + 1))


def lists_of(data: Path, name: str) -> list[dict[str, Any]]:
    """Read the lists of a set."""
    with lzma.open(data / "speech-librispeech-nbest" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def by_chapter(records: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Join the references of each chapter."""
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(chapter_of(record), []).extend(normalize_text(record["ref"], NORMAL).split())
    return found


def chapter_of(record: dict[str, Any]) -> str:
    """Return the speaker and chapter of an utterance."""
    return str(record["id"]).rpartition("-")[0]


# --- books as lines ---------------------------------------------------------------------------------------------------


def sentences(paragraph: str) -> Iterator[str]:
    """Cut a paragraph where a sentence ends; long sentences at their clauses, and at commas if need be."""
    start = 0
    for found in SENTENCE.finditer(paragraph):
        last = paragraph[start : found.start()].rsplit(None, 1)[-1:]
        word = last[0].strip("\"'([“‘_.").lower() if last else ""
        if TITLES.fullmatch(word):
            continue
        yield from _clauses(paragraph[start : found.end()], [CLAUSE, COMMA])
        start = found.end()
    yield from _clauses(paragraph[start:], [CLAUSE, COMMA])


def _clauses(sentence: str, marks: list[re.Pattern[str]]) -> Iterator[str]:
    """Cut what is too long at the first kind of mark, joining the pieces again as far as they fit."""
    if sentence.count(" ") < LONG or not marks:
        yield sentence
        return
    held = ""
    for piece in marks[0].split(sentence):
        if held and held.count(" ") + piece.count(" ") >= LONG:
            yield from _clauses(held, marks[1:])
            held = piece
        else:
            held = f"{held} {piece}"
    yield from _clauses(held, marks[1:])


def is_prose(paragraph: str) -> bool:
    """Tell prose from headings, tables and lists of contents."""
    letters = sum(map(str.isalpha, paragraph))
    return letters > 0.7 * len(paragraph) and not paragraph.isupper() and len(paragraph) > 20


def lines_of(text: str, parting: str, rng: random.Random) -> Iterator[str]:
    """Yield a book's lines in normal form."""
    for raw in text.split(parting):
        paragraph = " ".join(raw.split())
        if not is_prose(paragraph):
            continue
        held: list[str] = []
        for sentence in sentences(paragraph):
            held += normalize_text(sentence, NORMAL).split()
            if len(held) >= SHORT or rng.random() < 0.5:
                yield " ".join(held)
                held = []
        if held:
            yield " ".join(held)


def documents(lines: list[str], rng: random.Random) -> Iterator[str]:
    """Cut a book into documents of some lines, so that a model often sees how a line begins without a past."""
    start = 0
    while start < len(lines):
        count = min(MOST, 1 + int(rng.expovariate(1 / (LINES - 1))))
        yield "".join(f"{line}\n" for line in lines[start : start + count])
        start += count


@dataclass
class Count:
    """What was kept and what went."""

    documents: int = 0
    words: int = 0
    dropped: int = 0
    dropped_words: int = 0
    pieces: int = 0
    gone: list[dict[str, Any]] = field(default_factory=list)


def read_file(path: Path, data: Path, out: Path, books: int | None) -> Count:
    """Write the documents of one file, and count."""
    known, count = references(data), Count()
    parting = CORPORA[path.parent.name]
    with lzma.open(path, "rt", encoding="utf-8") as file, out.open("w", encoding="utf-8") as kept:
        for number, line in enumerate(file):
            if books is not None and number >= books:
                break
            book = json.loads(line)
            words = normalize_text(book["text"], NORMAL).split()
            few, one = known.shared(words)
            if few >= 3 or one:
                count.dropped, count.dropped_words = count.dropped + 1, count.dropped_words + len(words)
                name = {key: book[key] for key in ("author", "title") if key in book}
                count.gone.append(name | {"words": len(words), f"{FEW}-grams": few, f"{ONE}-grams": one})
                continue
            count.documents, count.words = count.documents + 1, count.words + len(words)
            rng = random.Random(f"{path.name}:{number}")
            for text in documents(list(lines_of(book["text"], parting, rng)), rng):
                count.pieces += 1
                kept.write(json.dumps({"text": text}) + "\n")
    return count


# --- lists ------------------------------------------------------------------------------------------------------------


def with_context(records: list[dict[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    """Yield lists as `heddle rescore` reads them, each with the recognizer's best of the utterances before."""
    past: dict[str, list[str]] = {}
    for record in records:
        before = past.setdefault(chapter_of(record), [])
        context: list[str] = []
        for line in reversed(before):
            if sum(len(c.split()) for c in context) + len(line.split()) > most:
                break
            context.insert(0, line)
        before.append(normalize_text(record["hyps"][0]["text"], NORMAL))
        yield {
            "id": record["id"],
            "reference": record["ref"],
            "context": "".join(f"{line}\n" for line in context),
            "candidates": record["hyps"],
        }


def write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def held_out(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the references of the dev sets, a chapter a document."""
    for name in SETS[:2]:
        chapters: dict[str, list[str]] = {}
        for record in lists_of(data, name):
            chapters.setdefault(chapter_of(record), []).append(normalize_text(record["ref"], NORMAL) + "\n")
        yield from ({"text": "".join(lines)} for lines in chapters.values())


def prepare(data: Path, out: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Write everything, and return what was kept and dropped."""
    out.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        write_lines(out / f"{name}.jsonl", with_context(lists_of(data, name), given.context))
    write_lines(out / "valid.jsonl", held_out(data))
    files = [path for folder in CORPORA for path in sorted((data / folder).glob("train-*.jsonl.xz"))]
    wikipedia = [path for path in files if path.parent.name == "lm-wikipedia-sample"]
    files = [path for path in files if path not in wikipedia[given.wikipedia :]]
    folders = list(dict.fromkeys(path.parent.name for path in files))
    parts = [out / f"part-{number:02d}" for number in range(len(files))]
    read = partial(read_file, data=data, books=given.books)
    jobs = [(read, path, part) for path, part in zip(files, parts, strict=True)]
    if given.workers == 1:
        counts = list(map(_starred, jobs))
    else:
        with ProcessPoolExecutor(given.workers) as pool:
            counts = list(pool.map(_starred, jobs))
    with (out / "train.jsonl").open("wb") as train:
        for part in parts:
            train.write(part.read_bytes())
            part.unlink()
    report: dict[str, Any] = {"rule": f"3 distinct {FEW}-grams or one {ONE}-gram shared with references by chapter"}
    for folder in folders:
        own = [count for path, count in zip(files, counts, strict=True) if path.parent.name == folder]
        sums = {key: sum(getattr(count, key) for count in own) for key in vars(Count()) if key != "gone"}
        report[folder] = sums | {"gone": [gone for count in own for gone in count.gone]}
    (out / "prepare.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def _starred(job: tuple[Any, Path, Path]) -> Count:
    read, path, part = job
    count: Count = read(path, out=part)
    return count


def main() -> None:
    """Prepare, and print what went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--books", type=int, help="of each file, for a trial")
    parser.add_argument("--wikipedia", type=int, default=0, help="files of the Wikipedia sample to learn from too")
    parser.add_argument("--context", type=int, default=150, help="words before an utterance at most")
    given = parser.parse_args()
    report = prepare(given.data, given.out, given)
    for folder, count in report.items():
        if isinstance(count, dict):
            print(
                f"{folder}: dropped {count['dropped']:,} documents of {count['dropped'] + count['documents']:,} "
                f"({count['dropped_words']:,} words), kept {count['words']:,} words as {count['pieces']:,} pieces"
            )


if __name__ == "__main__":
    run_main(main)
