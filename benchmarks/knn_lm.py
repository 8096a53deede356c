"""kNN-LM: perplexity of an unchanged model with a memory of training text, of its own domain and of the other one.

    python benchmarks/knn_lm.py tables DATA OUT                        WikiText-2 and Gutenberg as documents
    python benchmarks/knn_lm.py run OUT [KEY=VALUE...] [--seeds 0 1 2] [--entries N] [--minutes M]
    python benchmarks/knn_lm.py report OUT

DATA holds the folders lm-wikitext2 and lm-gutenberg. For each seed a model is trained on either corpus. Each model then
reads the training text of each corpus once, as its memory (at most --entries tokens). Weight, temperature and number of
neighbours are chosen on the first half of that corpus's validation text, and the perplexity is measured on the other
half, which nothing was chosen on; test text is unread. A model with the memory of the other corpus has adapted without
training. Each pair has a line in OUT/knn_lm.jsonl: perplexities with and without, bytes, seconds to build, queries per
second by exact search and, where Faiss is installed, by an index with its recall. What is done is not done again; a run
or a build that `--minutes` or a kill cut off goes on with the next call. A memory is removed once it is measured.
"""

import argparse
import gzip
import importlib.util
import json
import lzma
import math
import re
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from entry_point import run_main
from results import commit, device, read_lines

import heddle
from heddle.core.system import parse_overrides
from heddle.decoding.knn import (
    Datastore,
    ExactSearch,
    KnnIndexConfig,
    NeighbourSearch,
    build_index,
    open_datastore,
    open_index,
)
from heddle.models.networks import LanguageModel, require
from heddle.tasks.memory import BuildMemoryConfig, MemoryConfig, build_memory, tune_memory, with_memory
from heddle.tasks.scoring import evaluate

CORPORA = ("wikitext", "gutenberg")
MARGIN = 0.3  # minutes before the end in which nothing begins
MEASURED = ("perplexity_alone", "perplexity", "bits_per_byte_alone", "bits_per_byte")
QUERIES = 2048  # whose search is timed
SETTINGS: dict[str, Any] = {
    "model.layers": 8,
    "model.width": 512,
    "model.heads": 8,
    "model.dropout": 0.1,
    "tokenizer.vocab": 8192,
    "rows.length": 256,
    "training.batch": 64,
    "training.steps": 2000,
    "every.validate": 500,
    "every.save": 500,
    "every.sample": 10_000_000,
}
Line = dict[str, Any]


def articles(path: Path) -> Iterator[str]:
    """Yield the articles of WikiText, each from its heading of the first level on."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        pieces = re.split(r"^(?= = [^=\n]+ = \n)", file.read(), flags=re.MULTILINE)
    yield from (piece.strip() for piece in pieces if piece.strip())


def books(folder: Path, side: str) -> Iterator[str]:
    """Yield the texts of books."""
    for path in sorted(folder.glob(f"{side}*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
            yield from (str(json.loads(line)["text"]) for line in file)


def write(path: Path, texts: Iterable[str]) -> None:
    """Write texts as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def read(path: Path) -> list[str]:
    """Return the texts of JSON lines."""
    with path.open(encoding="utf-8") as file:
        return [str(json.loads(line)["text"]) for line in file]


def tables(data: Path, out: Path) -> None:
    """Write each corpus: what is learned, what settings are chosen on, and what is measured."""
    wikitext, gutenberg = data / "lm-wikitext2", data / "lm-gutenberg"
    valid = list(articles(wikitext / "wiki.valid.tokens.gz"))
    write(out / "wikitext" / "train.jsonl", articles(wikitext / "wiki.train.tokens.gz"))
    write(out / "wikitext" / "chosen_on.jsonl", valid[: len(valid) // 2])
    write(out / "wikitext" / "measured_on.jsonl", valid[len(valid) // 2 :])
    write(out / "gutenberg" / "train.jsonl", books(gutenberg, "train"))
    held = list(books(gutenberg, "valid"))  # of each book a half
    write(out / "gutenberg" / "chosen_on.jsonl", (text[: len(text) // 2] for text in held))
    write(out / "gutenberg" / "measured_on.jsonl", (text[len(text) // 2 :] for text in held))


def train(out: Path, corpus: str, seed: int, given: argparse.Namespace, minutes: float) -> bool:
    """Train a model, or go on with it; tell whether it came to its end."""
    folder, limit = out / "runs" / f"{corpus}-{seed}", {"stop.minutes": min(minutes, 1e6)}
    if folder.exists():
        return heddle.train(folder, overrides=limit).stopped is None
    own = SETTINGS | {"name": folder.name, "seed": seed} | given.overrides | limit
    data = out / corpus / "train.jsonl"
    return heddle.train("first", data=data, overrides=own, runs=out / "runs").stopped is None


def measure(out: Path, corpus: str, text: str, seed: int, given: argparse.Namespace) -> Line:
    """Return what a memory of one corpus does for the model of one corpus."""
    lm = heddle.load(out / "runs" / f"{corpus}-{seed}")
    model = require(lm.model, LanguageModel, ValueError("want a language model"))
    folder, began = out / "memories" / f"{corpus}-{text}-{seed}", time.time()
    if not (folder / "memory.json").exists():
        texts = read(out / text / "train.jsonl")
        build_memory(model, lm.tokenizer, texts, folder, BuildMemoryConfig(most=given.entries))
    seconds = time.time() - began
    tuned = tune_memory(model, lm.tokenizer, read(out / text / "chosen_on.jsonl"), folder)
    held = read(out / text / "measured_on.jsonl")[: given.documents]
    mixed = with_memory(model, lm.tokenizer, folder, MemoryConfig(neighbours=tuned.mix))
    own, found = (evaluate(one, lm.tokenizer, held) for one in (model, mixed))
    line = {"model": corpus, "text": text, "seed": seed, "chosen": tuned.plain(), "build_seconds": round(seconds, 1)}
    line |= {"perplexity_alone": own.perplexity, "perplexity": found.perplexity, "tokens": found.tokens}
    line |= {"bits_per_byte_alone": own.bits_per_byte, "bits_per_byte": found.bits_per_byte}
    line |= searched(open_datastore(folder, verify=False), tuned.mix.k)
    shutil.rmtree(folder)
    return line


def searched(store: Datastore, k: int) -> Line:
    """Return the size of a memory, and how fast it is searched."""
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = np.linspace(0, len(store) - 1, min(QUERIES, len(store))).astype(np.int64)
    queries = torch.from_numpy(store.keys[chosen]).float().to(where)
    found: Line = {"entries": len(store), "bytes": store.nbytes}
    found["exact_queries_per_second"] = speed(ExactSearch(store.keys, where), queries, k)
    if importlib.util.find_spec("faiss") is not None:
        made = build_index(store, KnnIndexConfig(k=k))
        found |= {"index": made.factory, "probes": made.probes, "recall": made.recall}
        found["index_queries_per_second"] = speed(open_index(store, where), queries, k)
    return found


def speed(search: NeighbourSearch, queries: torch.Tensor, k: int) -> float:
    """Return queries per second, of a second pass over them."""
    search.nearest(queries[:16], k)
    began = time.time()
    search.nearest(queries, k).entries.cpu()
    return round(len(queries) / (time.time() - began), 1)


def run(out: Path, given: argparse.Namespace) -> None:
    """Train and measure everything, as far as the time allows."""
    until = time.time() + 60 * given.minutes
    done = {(line["model"], line["text"], line["seed"]) for line in read_lines(out / "knn_lm.jsonl")}
    for seed in given.seeds:
        for corpus in CORPORA:
            for text in (text for text in CORPORA if (corpus, text, seed) not in done):
                left = (until - time.time()) / 60 - MARGIN
                if left < MARGIN or not train(out, corpus, seed, given, left) or time.time() > until - 60 * MARGIN:
                    print("the time is over; the next call goes on")
                    return
                line = measure(out, corpus, text, seed, given) | {"commit": commit(), "device": device()}
                with (out / "knn_lm.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
    report(out)


def report(out: Path) -> None:
    """Write and print the table: means over seeds, with deviations."""
    lines = read_lines(out / "knn_lm.jsonl")
    heads = ("model of", "memory and text of", "seeds", "perplexity alone", "with it", "bits per byte alone", "with it")
    more = ("entries", "MB", "exact queries/s", "index queries/s", "recall")
    rows = [f"| {' | '.join(heads + more)} |", "|---|---|" + "--:|" * (len(heads) + len(more) - 2)]
    for corpus in CORPORA:
        for text in CORPORA:
            some = [line for line in lines if (line["model"], line["text"]) == (corpus, text)]
            if not some:
                continue
            numbers = [shown([line[name] for line in some]) for name in MEASURED]
            sizes = [f"{some[0]['entries']:,}", f"{some[0]['bytes'] / 1e6:,.0f}"]
            names = ("exact_queries_per_second", "index_queries_per_second", "recall")
            speeds = [shown([line[name] for line in some if name in line]) for name in names]
            rows.append(f"| {' | '.join([corpus, text, str(len(some)), *numbers, *sizes, *speeds])} |")
    (out / "knn_lm.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


def shown(values: list[float]) -> str:
    """Show a mean with its deviation, if there are several."""
    if not values:
        return ""
    digits = max(0, 3 - math.floor(math.log10(max(abs(statistics.mean(values)), 1e-9))))
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):,.{digits}f}{spread}"


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tables", "run", "report"))
    parser.add_argument("words", nargs="+", metavar="FOLDER", help="DATA OUT, or OUT; then KEY=VALUE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--entries", type=int, default=4_000_000, help="tokens of a memory, at most")
    parser.add_argument("--documents", type=int, default=None, help="measured, at most; default: all")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which all stops, to be resumed")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.words if "=" in word], {}))
    folders = [Path(word).absolute() for word in given.words if "=" not in word]
    if len(folders) != (2 if given.verb == "tables" else 1):
        parser.error("tables takes DATA and OUT, the others OUT")
    if given.verb == "tables":
        tables(*folders)
    elif given.verb == "run":
        run(folders[0], given)
    else:
        report(folders[0])


if __name__ == "__main__":
    run_main(main)
