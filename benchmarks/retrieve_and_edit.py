"""Retrieve-and-edit on DailyDialog: an editor with neighbours, with random prototypes, with none, and raw retrieval.

    python benchmarks/retrieve_and_edit.py data DATA OUT                     split the contexts, and retrieve
    python benchmarks/retrieve_and_edit.py train OUT [KEY=VALUE...] [--minutes M] [--arms ...] [--seeds ...]
    python benchmarks/retrieve_and_edit.py report OUT                        BLEU, and paired bootstrap intervals

DATA has dialogue-dailydialog/dailydialog-plusplus.positives.jsonl.xz: contexts with five human replies each. Contexts
are split by dialogue, and those that share a first turn stay together; 800 are held out for the test, 400 to choose a
checkpoint by. The index holds the pairs of training contexts alone. All arms have one model, one budget and one
decoding; only the prototypes differ. `train` may be called again and again: it goes on where it stopped, within
--minutes, and writes one JSON line a finished run to OUT/results.jsonl; its test replies are in OUT/replies. BLEU is
sacrebleu's with five references, on text in lower case; recall@1 is that of the first human reply among ten.
Differences are paired by context: the same resampled contexts for both arms, over all seeds.
"""

import argparse
import hashlib
import json
import lzma
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from entry_point import run_main
from numpy.typing import NDArray
from results import commit, device, read_lines

import heddle
from heddle.core import DataError
from heddle.core.system import parse_overrides
from heddle.decoding import generation_config
from heddle.lm import LM
from heddle.tasks.evaluation import GradedModel, run_task, task_named
from heddle.tasks.generation import bleu_metric, translator
from heddle.tasks.retrieval import (
    BM25Retriever,
    Entry,
    Neighbour,
    PairIndex,
    Query,
    distinct_texts,
    normalized,
    save_index,
)

FILE = "dialogue-dailydialog/dailydialog-plusplus.positives.jsonl.xz"
TURN = " __eou__ "  # between two turns of a context, as in DailyDialog's own files
TEST, VALID, REPLIES = 800, 400, 5
ARMS = ("neighbours", "random", "none")
RAW = "raw"  # the retrieved reply as it is
RESAMPLES, LEVEL, ORDER = 1000, 0.95, 4
SETTINGS: dict[str, Any] = {
    "model.layers": 3,
    "model.width": 256,
    "model.heads": 4,
    "model.hidden": 1024,
    "model.dropout": 0.3,
    "tokenizer.vocab": 6000,
    "rows.length": 64,
    "rows.source_length": 256,
    "rows.batch": 128,
    "training.batch": 128,
    "training.steps": 3000,
    "training.optimizer.learning_rate": 1e-3,
    "training.schedule.warmup": 300,
    "every.validate": 150,
    "every.save": 150,
    "every.sample": 3000,
    "training.average_last": 1,
    "data.unique": False,  # with no prototype, equal pairs must count as often as in the other arms
}
Context = dict[str, Any]
Counts = NDArray[np.float64]  # of each reply: matches and n-grams of each order, its length, that of its reference


# --- the split --------------------------------------------------------------------------------------------------------


def contexts(data: Path) -> list[Context]:
    """Read the contexts, each with the ids of its dialogue and of its first turn."""
    with lzma.open(data / FILE, "rt", encoding="utf-8", newline="\n") as file:
        rows = [json.loads(line) for line in file]
    return [
        {
            "text": TURN.join(row["context"]),
            "replies": row["positive_responses"],
            "dialogue": str(row["dialog_id"]),
            "first": hashlib.sha256(normalized(row["context"][0]).encode()).hexdigest()[:16],
        }
        for row in rows
    ]


def joined(rows: Sequence[Context]) -> list[list[Context]]:
    """Put contexts together that share a dialogue, a first turn or their whole text, directly or by others."""
    owner = list(range(len(rows)))

    def root(number: int) -> int:
        while owner[number] != number:
            owner[number] = owner[owner[number]]
            number = owner[number]
        return number

    first: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows):
        for mark in (("dialogue", row["dialogue"]), ("first", row["first"]), ("text", normalized(row["text"]))):
            owner[root(number)] = root(first.setdefault(mark, number))
    groups: dict[int, list[Context]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(root(number), []).append(row)
    return list(groups.values())


def split(rows: Sequence[Context], test: int = TEST, valid: int = VALID) -> dict[str, list[Context]]:
    """Hold out whole groups, in the order of a hash, until exactly so many contexts are held out."""

    def rank(group: list[Context]) -> str:
        return hashlib.sha256("".join(sorted(row["dialogue"] for row in group)).encode()).hexdigest()

    parts: dict[str, list[Context]] = {"test": [], "valid": [], "train": []}
    wanted = {"test": test, "valid": valid, "train": len(rows)}
    for group in sorted(joined(rows), key=rank):
        part = next(name for name, many in wanted.items() if len(parts[name]) + len(group) <= many)
        parts[part] += group
    if len(parts["test"]) != test or len(parts["valid"]) != valid or not parts["train"]:
        raise DataError(f"want {test} and {valid} contexts to hold out and more to learn from, found {len(rows)}")
    return parts


def entries_of(rows: Sequence[Context]) -> list[Entry]:
    """Return the pairs of some contexts."""
    return [
        Entry(row["text"], reply, (row["dialogue"], row["first"]), f"{row['dialogue']}:{number}")
        for row in rows
        for number, reply in enumerate(row["replies"])
    ]


def random_prototype(query: Query, number: int, entries: Sequence[Entry]) -> str:
    """Return the reply of some training pair with another context and other groups, keyed by the query."""
    for attempt in range(len(entries)):
        digest = hashlib.sha256(f"{query.text}/{number}/{attempt}".encode()).digest()
        found = entries[int.from_bytes(digest[:8], "big") % len(entries)]
        if normalized(found.text) != normalized(query.text) and not set(found.groups) & set(query.groups):
            return found.target
    raise DataError("want pairs of other groups, found none")


def prototypes(parts: dict[str, list[Context]], out: Path) -> None:
    """Write the pairs of each part with their neighbours' replies, with random ones and with none."""
    entries = entries_of(parts["train"])
    index = PairIndex(tuple(entries), BM25Retriever.build(distinct_texts(entries)))
    if not (out / "index").exists():
        save_index(index, "bm25", ("dialogue", "first"), out / "index")
    for part, rows in parts.items():
        queries = [Query(row["text"], (row["dialogue"], row["first"])) for row in rows]
        near = [_reply(found) for found in index.neighbours(queries)]
        for arm in ARMS:
            with (out / f"{part}.{arm}.jsonl").open("w", encoding="utf-8") as file:
                for query, row, neighbour in zip(queries, rows, near, strict=True):
                    for number, reply in enumerate(row["replies"]):
                        own = {"neighbours": neighbour, "random": random_prototype(query, number, entries), "none": ""}
                        line = {
                            "text": row["text"],
                            "target": reply,
                            "prototype": own[arm],
                            "dialogue": row["dialogue"],
                        }
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print({part: len(rows) for part, rows in parts.items()}, f"{len(entries)} pairs in the index")


def _reply(found: Sequence[Neighbour]) -> str:
    return found[0].entry.target if found else ""


# --- training and writing ---------------------------------------------------------------------------------------------


def train(out: Path, arm: str, seed: int, minutes: float, overrides: dict[str, Any]) -> heddle.Run:
    """Train an editor, or go on with it, for at most so long."""
    name, limit = f"{arm}-{seed}", {"stop.minutes": minutes}
    if (out / "runs" / name / "checkpoints").exists():
        return heddle.train(out / "runs" / name, overrides=limit, runs=out / "runs", progress=False)
    columns = {"kind": "jsonl", "target": "target", "prototype": None if arm == "none" else "prototype"}
    train_file, valid_file = (str(out / f"{part}.{arm}.jsonl") for part in ("train", "valid"))
    data = {
        "data.sources": [columns | {"path": train_file}],
        "data.split": {"kind": "file", "source": columns | {"path": valid_file}},
    }
    own = SETTINGS | data | {"name": name, "seed": seed, "keep.best": 1, "keep.last": 1} | overrides | limit
    return heddle.train("retrieve_and_edit", overrides=own, runs=out / "runs", progress=False)


def test_rows(out: Path, arm: str) -> list[Context]:
    """Return the test contexts, each with its references and its first prototype."""
    found: dict[str, Context] = {}
    for line in (out / f"test.{arm}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        own = found.setdefault(row["dialogue"], {"prototype": row["prototype"], "text": row["text"], "references": []})
        own["references"].append(row["target"])
    return list(found.values())


def replies(out: Path, arm: str, seed: int) -> list[str]:
    """Return the replies of a run's best checkpoint to the test contexts, by beam search."""
    lm = heddle.load(out / "runs" / f"{arm}-{seed}", best=True)
    config = generation_config({"beams": 4, "length_penalty": 1.0, "max_tokens": 48})
    task = translator(lm.model, lm.tokenizer, config, batch=64)
    given = [(row["text"], None if arm == "none" else row["prototype"]) for row in test_rows(out, arm)]
    limit = lm.model.context
    sources = [lm.tokenizer.source(text, prototype)[-limit:] for text, prototype in given]
    return [one.text for one in task.translate(sources)]


def rank_replies(out: Path, arm: str, lm: LM) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return recall of the first human reply to each test context among ten, with intervals."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "pairs.jsonl"
        rows = [
            {"text": row["text"], "target": row["references"][0]}
            | ({} if arm == "none" else {"prototype": row["prototype"]})
            for row in test_rows(out, arm)
        ]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        found = run_task(task_named("dialogue"), GradedModel(lm.model, lm.tokenizer, lm.origin.settings), str(path))
    return dict(found.metrics), {name: list(ends) for name, ends in found.intervals.items()}


def train_all(out: Path, given: argparse.Namespace) -> None:
    """Train the arms in turn within the time, so that the seeds of all advance together; write what is finished."""
    end, path = time.monotonic() + 60 * given.minutes, out / "results.jsonl"
    done = {(line["arm"], line["seed"]) for line in read_lines(path)}
    (out / "replies").mkdir(exist_ok=True)
    for seed in given.seeds:
        for arm in given.arms:
            left = (end - time.monotonic()) / 60
            if (arm, seed) in done or left <= 0:
                continue
            run = train(out, arm, seed, left, given.overrides)
            if run.step < run.config.training.steps:
                print(f"{arm} {seed}: {run.step} of {run.config.training.steps} steps; call again", flush=True)
                continue
            written = replies(out, arm, seed)
            (out / "replies" / f"{arm}-{seed}.json").write_text(json.dumps(written, ensure_ascii=False, indent=0))
            bleu = score(counts(written, [row["references"] for row in test_rows(out, arm)]))
            losses = [row["validation_loss"] for row in _metrics(run.folder) if "validation_loss" in row]
            record = {"arm": arm, "seed": seed, "bleu": round(bleu, 4), "validation_loss": min(losses)}
            recall, ends = rank_replies(out, arm, heddle.load(run.folder, best=True))
            record |= {"recall@1": recall["recall@1"], "recall_interval": ends["recall@1"]}
            record |= {"steps": run.step, "commit": commit(), "device": device()}
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


def _metrics(folder: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())


# --- BLEU with intervals ----------------------------------------------------------------------------------------------


def counts(written: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
    """Return the statistics of each reply, which sum up to those of the corpus (Papineni et al. 2002)."""
    metric = bleu_metric(lowercase=True)
    found = []
    for reply, own in zip(written, references, strict=True):
        one = metric.corpus_score([reply], [[reference] for reference in own])
        found.append([*one.counts, *one.totals, one.sys_len, one.ref_len])
    return np.array(found, np.float64)


def score(one: Counts) -> float:
    """Return corpus BLEU of the replies whose statistics these are."""
    matches, totals, (own, wanted) = np.split(one.sum(0).astype(int), (ORDER, 2 * ORDER))
    metric = bleu_metric(lowercase=True)
    whole = metric.compute_bleu(matches.tolist(), totals.tolist(), int(own), int(wanted), smooth_method="exp")
    return float(whole.score)


def interval(left: Sequence[Counts], right: Sequence[Counts]) -> tuple[float, float, float]:
    """Return the difference of mean BLEU over seeds with its interval, resampling contexts for both sides alike."""
    draw, rows = np.random.default_rng(0), len(left[0])

    def difference(chosen: NDArray[np.int64]) -> float:
        means = [statistics.mean(score(one[chosen]) for one in side) for side in (left, right)]
        return means[0] - means[1]

    found = [difference(draw.integers(rows, size=rows)) for _ in range(RESAMPLES)]
    low, high = np.quantile(found, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return difference(np.arange(rows)), float(low), float(high)


def report(out: Path) -> dict[str, Any]:
    """Print and write BLEU of each arm, and the neighbours' differences to the others."""
    rows = test_rows(out, "neighbours")
    references = [row["references"] for row in rows]
    sides: dict[str, list[Counts]] = {RAW: [counts([row["prototype"] for row in rows], references)]}
    for arm in ARMS:
        files = sorted((out / "replies").glob(f"{arm}-*.json"))
        sides[arm] = [counts(json.loads(file.read_text()), references) for file in files]
    found: dict[str, Any] = {"contexts": len(rows), "signature": _signature(rows), "bleu": {}, "neighbours_minus": {}}
    for arm, side in sides.items():
        scores = [score(one) for one in side]
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        if scores:
            found["bleu"][arm] = {"mean": statistics.mean(scores), "deviation": deviation, "seeds": len(scores)}
    for arm, side in sides.items():
        if arm != "neighbours" and side and sides["neighbours"]:
            found["neighbours_minus"][arm] = interval(sides["neighbours"], side)
    (out / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return found


def _signature(rows: Sequence[Context]) -> str:
    metric = bleu_metric(lowercase=True)
    metric.corpus_score([rows[0]["prototype"]], [[reference] for reference in rows[0]["references"]])
    return str(metric.get_signature())


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("data", "train", "report"))
    parser.add_argument("folders", nargs="+", help="DATA OUT, or OUT; then KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of this call")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--test", type=int, default=TEST, help="contexts held out for the test")
    parser.add_argument("--valid", type=int, default=VALID, help="contexts held out to choose a checkpoint by")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.folders if "=" in word], {}))
    folders = [Path(word) for word in given.folders if "=" not in word]
    if len(folders) != (2 if given.what == "data" else 1):
        parser.error("data takes DATA and OUT, the others OUT")
    if given.what == "data":
        folders[1].mkdir(parents=True, exist_ok=True)
        prototypes(split(contexts(folders[0]), given.test, given.valid), folders[1])
    elif given.what == "train":
        train_all(folders[0], given)
    else:
        report(folders[0])


if __name__ == "__main__":
    run_main(main)
