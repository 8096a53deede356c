"""Rows of the published text tasks: read, split, and written as JSON lines that Heddle's readers take as they are."""

import gzip
import hashlib
import json
import lzma
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Parts = dict[str, list[Row]]  # train, valid, test
PLAIN = ("imdb", "sst2", "sst5", "trec", "ag", "sick", "ner", "samsum")  # whose training text is pre-trained on too
CORPORA = {"lm-gutenberg": "books", "lm-wikipedia-sample": "articles"}
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def opened(path: Path) -> Iterator[str]:
    """Yield the lines of a compressed file; a line ends with a newline and nothing else."""
    opener = lzma.open if path.suffix == ".xz" else gzip.open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from (line.rstrip("\n") for line in file)


def read_rows(path: Path) -> list[Row]:
    """Read JSON lines."""
    return [json.loads(line) for line in opened(path)]


def write_rows(path: Path, rows: Iterable[Row], preset: int = 4) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8", preset=preset) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _tab(path: Path) -> list[Row]:
    """Read text, tab, label."""
    cells = (line.rpartition("\t") for line in opened(path))
    return [{"text": text, "label": label} for text, _, label in cells if text]


def _label_first(path: Path) -> list[Row]:
    """Read label, space, text; of TREC's labels the coarse one."""
    cells = (line.partition(" ") for line in opened(path))
    return [{"text": text, "label": label.partition(":")[0]} for label, _, text in cells if text]


def _reviews(path: Path) -> list[Row]:
    """Read IMDB's JSON lines; HTML's line breaks become spaces."""
    return [{"text": row["text"].replace("<br />", " "), "label": row["label"]} for row in read_rows(path)]


def carve(rows: list[Row], count: int, by: str = "text") -> tuple[list[Row], list[Row]]:
    """Split off validation rows by a hash of a field, so that rows with equal ones stay on one side."""
    ordered = sorted(rows, key=lambda row: hashlib.sha256(row[by].encode()).digest())
    cut = len(ordered) - count
    while cut and ordered[cut - 1][by] == ordered[cut][by]:
        cut -= 1
    return ordered[:cut], ordered[cut:]


def _parted(rows: list[Row], count: int, test: list[Row], by: str = "text") -> Parts:
    train, valid = carve(rows, count, by)
    return {"train": train, "valid": valid, "test": test}


def _sst(folder: Path, read: Callable[[Path], list[Row]]) -> Parts:
    parts = {"train": "train", "valid": "dev", "test": "test"}
    return {name: read(folder / f"sentiment-{part}.tsv.gz") for name, part in parts.items()}


def _imdb(data: Path) -> Parts:
    return _parted(_reviews(data / "cls-imdb/train.jsonl.xz"), 2500, _reviews(data / "cls-imdb/test.jsonl.xz"))


def _trec(data: Path) -> Parts:
    rows = _label_first(data / "cls-trec/train_5500.label.gz")
    return _parted(rows, 500, _label_first(data / "cls-trec/TREC_10.label.gz"))


def _ag(data: Path) -> Parts:
    folder = data / "cls-agnews-subset"
    return _parted(_tab(folder / "train-subset.tsv.xz"), 1000, _tab(folder / "test.tsv.xz"))


def as_iob2(tags: list[str]) -> list[str]:
    """Turn IOB1 into IOB2: an entity begins with B wherever no like one goes on."""
    before = ["O", *tags]
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
        for last, tag in zip(before, tags, strict=False)
    ]


def sentences(path: Path) -> list[Row]:
    """Read CoNLL-2003: words and their tags, which are in IOB1."""
    rows, words, tags = list[Row](), list[str](), list[str]()
    for line in (*opened(path), ""):
        cells = line.split(" ")
        if line and cells[0] != "-DOCSTART-":
            words.append(cells[0])
            tags.append(cells[-1])
        elif words:
            rows.append({"tokens": words, "tags": as_iob2(tags)})
            words, tags = [], []
    return rows


def _conll(data: Path) -> Parts:
    names = {"train": "train", "valid": "testa", "test": "testb"}
    return {part: sentences(data / f"ner-conll2003/eng.{name}.gz") for part, name in names.items()}


def _sick(data: Path) -> Parts:
    def read(name: str) -> list[Row]:
        lines = opened(data / "nli-sick" / f"SICK_{name}.txt.gz")
        next(lines)
        cells = (line.rstrip("\r").split("\t") for line in lines if line.strip())
        return [{"text": cell[1], "pair": cell[2], "label": cell[4]} for cell in cells]

    return {part: read(name) for part, name in (("train", "train"), ("valid", "trial"), ("test", "test_annotated"))}


def _samsum(data: Path) -> Parts:
    def read(name: str) -> list[Row]:
        rows = read_rows(data / "sum-samsum" / f"{name}.jsonl.xz")
        return [
            {"text": row["dialogue"].replace("\r", ""), "summary": row["summary"]} for row in rows if row["dialogue"]
        ]

    return {part: read(name) for part, name in (("train", "train"), ("valid", "validation"), ("test", "test"))}


def _squad(data: Path) -> Parts:
    """Read 4,000 training questions, of which a tenth of the contexts is held out, and all of the development set."""
    rows = [
        {
            "question": row["question"],
            "context": row["context"],
            "answers": {"text": [row["answer"]], "answer_start": [int(row["answer_start"])]},
        }
        for row in read_rows(data / "qa-squad1.1/train-subset.jsonl.gz")
    ]
    with gzip.open(data / "qa-squad1.1/dev-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    test = [
        {
            "question": question["question"],
            "context": paragraph["context"],
            "answers": {name: [one[name] for one in question["answers"]] for name in ("text", "answer_start")},
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return _parted(rows, 400, test, "context")


def sentence_pairs(articles: list[str], count: int, key: str) -> list[Row]:
    """Return pairs of sentences of articles: half follow each other, half of the second ones are of other articles."""
    draw = random.Random(key)
    split = [[one for one in SENTENCE.split(text.replace("\n", " ")) if 20 <= len(one) <= 300] for text in articles]
    split = [found for found in split if len(found) > 1]
    rows = []
    for number in range(count):
        index = draw.randrange(len(split))
        place = draw.randrange(len(split[index]) - 1)
        other = draw.choice(split[(index + draw.randrange(1, len(split))) % len(split)])
        second = split[index][place + 1] if number % 2 else other
        rows.append({"text": split[index][place], "pair": second, "label": "next" if number % 2 else "other"})
    return rows


def _next_sentence(data: Path) -> Parts:
    """Make pairs of sentences of Wikipedia; each part has articles of its own."""
    sizes = {"train": ("train-00", 40_000), "valid": ("valid", 1000), "test": ("test", 4000)}
    found = {}
    for part, (name, count) in sizes.items():
        articles = [row["text"] for row in read_rows(data / "lm-wikipedia-sample" / f"{name}.jsonl.xz")]
        found[part] = sentence_pairs(articles, count, part)
    return found


READERS: dict[str, Callable[[Path], Parts]] = {
    "imdb": _imdb,
    "sst2": lambda data: _sst(data / "cls-sst2", _tab),
    "sst5": lambda data: _sst(data / "cls-sst5", _label_first),
    "trec": _trec,
    "ag": _ag,
    "ner": _conll,
    "sick": _sick,
    "squad": _squad,
    "next": _next_sentence,
    "samsum": _samsum,
}


def texts_of(task: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the texts of a task's rows, to pre-train on."""
    for row in rows:
        if task == "ner":
            yield {"text": " ".join(row["tokens"])}
        else:
            yield from ({"text": row[field]} for field in ("text", "pair", "summary") if field in row)


def write_tables(data: Path, out: Path, tasks: Iterable[str]) -> None:
    """Write each task's rows; books and articles to pre-train on are copied."""
    for name in tasks:
        parts = READERS[name](data)
        for part, rows in parts.items():
            write_rows(out / name / f"{part}.jsonl.xz", rows)
        print(name, {part: len(rows) for part, rows in parts.items()}, flush=True)
    for folder, name in CORPORA.items():
        for path in sorted((data / folder).glob("train-*.jsonl.xz")):
            (out / "text").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / "text" / f"{name}-{path.name}")


def write_task_texts(out: Path) -> None:
    """Write the training text of the tasks beside the corpora, where it is not yet."""
    for name in PLAIN:
        train, text = out / name / "train.jsonl.xz", out / "text" / f"task-{name}.jsonl.xz"
        if train.exists() and not text.exists():
            write_rows(text, texts_of(name, read_rows(train)), preset=0)  # while a GPU waits
