"""Pre-training in a domain: an encoder of Wikipedia goes on with film reviews, its vocabulary kept, extended, replaced.

    python benchmarks/domain_pretraining.py tables DATA OUT            text of Wikipedia and of IMDB's training reviews
    python benchmarks/domain_pretraining.py run OUT [KEY=VALUE...] [--seeds 0 1 2] [--minutes M]
    python benchmarks/domain_pretraining.py report OUT

DATA holds the folders lm-wikipedia-sample and cls-imdb. For each seed: an encoder is pre-trained on Wikipedia, then
goes on from there on the reviews in three ways, for as many steps. 1,000 of IMDB's training reviews, chosen by a hash
of their text, are held out; the task `masked_words` hides the same words of them for every vocabulary. Each run has a
line in OUT/domain.jsonl with its loss per character and an interval by bootstrap; the report has mean and deviation
over seeds, and the interval of each difference to the encoder of Wikipedia, paired by seed. IMDB's test reviews are
unread. What is done is not done again, and a run that `--minutes` cut off goes on with the next call.
"""

import argparse
import hashlib
import json
import lzma
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from distillation_report import interval
from entry_point import run_main
from results import commit, device, read_lines

import heddle
from heddle.core.system import parse_overrides
from heddle.tasks.evaluation import GradedModel, run_task, task_named

HELD_OUT = 1000  # reviews
MARGIN = 0.3  # minutes before the end in which nothing begins
WAYS = ("wikipedia", "kept", "extended", "replaced")
SHAPE = {"model.layers": 6, "model.width": 512, "model.heads": 8, "tokenizer.vocab": 8192}
SETTINGS = {
    "rows.length": 512,
    "training.batch": 64,
    "training.steps": 2000,
    "training.schedule.warmup": 200,
    "training.optimizer.learning_rate": 4e-4,
    "every.validate": 1000,
    "every.save": 500,
    "every.sample": 10_000_000,
}
OWN: dict[str, dict[str, Any]] = {
    "wikipedia": SHAPE,
    "kept": {},
    "extended": {"init_vocabulary": "extended", "init_vocabulary.tokens": 2000},
    "replaced": {"init_vocabulary": "replaced", "tokenizer.vocab": 8192},
}
Line = dict[str, Any]


def write(path: Path, texts: Iterable[str]) -> None:
    """Write texts as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8", preset=2) as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of JSON lines; HTML's line breaks become spaces."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from (str(json.loads(line)["text"]).replace("<br />", " ") for line in file)


def tables(data: Path, out: Path) -> None:
    """Write the two texts, and the reviews that are held out."""
    for path in sorted((data / "lm-wikipedia-sample").glob("train-*.jsonl.xz")):
        write(out / "wikipedia" / path.name, texts_of(path))
    found = sorted(
        set(texts_of(data / "cls-imdb" / "train.jsonl.xz")), key=lambda t: hashlib.sha256(t.encode()).digest()
    )
    write(out / "reviews" / "train.jsonl.xz", found[:-HELD_OUT])
    write(out / "held_out.jsonl.xz", found[-HELD_OUT:])
    print(f"{len(found) - HELD_OUT} reviews to learn from, {HELD_OUT} held out")


def known(out: Path) -> list[Line]:
    """Return the results that there are."""
    return read_lines(out / "domain.jsonl")


def settings_of(out: Path, way: str, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run; what is given on the command line for the shape is for the first encoder alone."""
    own = SETTINGS | OWN[way]
    first = ("model", "tokenizer")
    more = {key: value for key, value in given.items() if way == "wikipedia" or key.split(".")[0] not in first}
    if way == "replaced" and "tokenizer.vocab" in given:
        more["tokenizer.vocab"] = given["tokenizer.vocab"]
    if way != "extended":
        more = {key: value for key, value in more.items() if not key.startswith("init_vocabulary")}
    own |= {} if way == "wikipedia" else {"init": str(out / "runs" / f"wikipedia-{seed}")}
    return own | {"name": f"{way}-{seed}", "seed": seed} | more


def train(out: Path, way: str, seed: int, given: dict[str, Any], minutes: float) -> bool:
    """Train a run, or go on with it; tell whether it came to its end."""
    folder, limit = out / "runs" / f"{way}-{seed}", {"stop.minutes": min(minutes, 1e6)}
    if folder.exists():
        return heddle.train(folder, overrides=limit).stopped is None
    data = out / ("wikipedia" if way == "wikipedia" else "reviews")
    own = settings_of(out, way, seed, given) | limit
    return heddle.train("bert", data=data, overrides=own, runs=out / "runs").stopped is None


def grade(out: Path, way: str, seed: int) -> Line:
    """Return the loss of hidden words of the held-out reviews."""
    lm = heddle.load(out / "runs" / f"{way}-{seed}")
    task = task_named("masked_words")
    found = run_task(task, GradedModel(lm.model, lm.tokenizer, lm.origin.settings), str(out / "held_out.jsonl.xz"))
    text = next(texts_of(out / "held_out.jsonl.xz"))
    line = {"way": way, "seed": seed, "vocab": lm.tokenizer.vocab, **found.plain()}
    return line | {"characters_per_token": round(len(text) / len(lm.tokenizer.encode(text)), 3)}


def run(out: Path, given: argparse.Namespace) -> None:
    """Train and grade everything, as far as the time allows."""
    until = time.time() + 60 * given.minutes
    done = {(line["way"], line["seed"]) for line in known(out)}
    for seed in given.seeds:
        for way in (way for way in WAYS if (way, seed) not in done):
            left = (until - time.time()) / 60 - MARGIN
            if left < MARGIN or not train(out, way, seed, given.overrides, left):
                print("the time is over; the next call goes on")
                return
            line = grade(out, way, seed) | {"commit": commit(), "device": device()}
            with (out / "domain.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    report(out)


def report(out: Path) -> None:
    """Write and print the table, with what each way gains over the encoder of Wikipedia."""
    lines, loss = known(out), {(line["way"], line["seed"]): line["loss_per_character"] for line in known(out)}
    rows = [
        "| vocabulary | tokens | loss per character | less than Wikipedia's | 95 % interval |",
        "|---|--:|--:|--:|--:|",
    ]
    for way in WAYS:
        seeds = sorted(seed for name, seed in loss if name == way)
        if not seeds:
            continue
        vocab = next(line["vocab"] for line in lines if line["way"] == way)
        each = [loss[way, seed] for seed in seeds]
        spread = f" ± {statistics.stdev(each):.4f}" if len(each) > 1 else " (one seed)"
        gains = [loss["wikipedia", seed] - loss[way, seed] for seed in seeds if ("wikipedia", seed) in loss]
        ends = "[{:.4f}, {:.4f}]".format(*interval(gains)) if len(gains) > 1 and way != "wikipedia" else ""
        gain = f"{statistics.mean(gains):.4f}" if gains and way != "wikipedia" else ""
        rows.append(f"| {way} | {vocab:,} | {statistics.mean(each):.4f}{spread} | {gain} | {ends} |")
    (out / "domain.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tables", "run", "report"))
    parser.add_argument("words", nargs="+", metavar="FOLDER", help="DATA OUT, or OUT; then KEY=VALUE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
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
