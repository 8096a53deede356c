"""Speech: AN4 from given cepstra, and spoken digits with each speaker left out; each test is opened once, at the end.

    python benchmarks/speech.py tables DATA OUT [--small N]      arrays, sounds and manifests from DATA
    python benchmarks/speech.py an4 OUT [KEY=VALUE...] [--rows ...] [--rates ...] [--seeds ...] [--processes N]
    python benchmarks/speech.py digits OUT [KEY=VALUE...] [--rows ...] [--seeds ...] [--speakers ...] [--minutes M]
    python benchmarks/speech.py report OUT                       mean and deviation of each row

DATA holds speech-an4-mfcc and speech-fsdd. AN4: the rows are LSTM with attention and Transformer, each with and without
CTC, and CTC alone. Each rate is tried with the first seed, the same rates for all rows; the best on the dev speakers is
kept. With each seed, the weights of the search are chosen on the dev speakers too, without a language model and with an
LSTM over the training transcripts (shallow fusion); then the official test is opened, once for each run. Digits: a run
for each speaker left out, at one rate for all; its dev files are those of the others with the numbers 0 to 4. One JSON
line a run goes to OUT/results.jsonl; what is there is not run again, and a run that `--minutes` cut off goes on with
the next call. `--small` keeps every so-manieth row, for a trial; `--steps` changes how long each run is.
"""

import argparse
import json
import lzma
import math
import multiprocessing
import statistics
import tarfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

from entry_point import positive, run_main
from results import commit, device, read_lines

import heddle
from heddle.core.system import parse_overrides
from heddle.tasks.recognition import FusedModel, TranscribeOptions, Transcription, error_rates, transcriber

DEV = {"fash", "fkai", "fsaf2", "mcel", "mdxn", "mjbh", "mkem", "mnfe", "msjm", "mtxj"}
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
RATES = (5e-4, 1e-3, 2e-3)
MARGIN = 30.0  # seconds before the end of the time in which no run begins
LM = "an4-lm"
Line = dict[str, Any]

ATTENTION, CTC = {"kind": "sequence", "smoothing": 0.1}, {"kind": "ctc"}
BOTH = {"kind": "ctc_attention", "attention": ATTENTION}
# Recipe, objective, and whether the search has weights of CTC to choose from.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("transcribe_lstm", ATTENTION),
    "lstm+ctc": ("transcribe_lstm", BOTH),
    "transformer": ("transcribe", ATTENTION),
    "transformer+ctc": ("transcribe", BOTH),
    "ctc": ("transcribe_ctc", CTC),
}
AN4: dict[str, Any] = {
    "rows.features": {"kind": "given", "width": 13, "deltas": 2},
    "rows.augment": [
        {"kind": "speed"},
        {"kind": "spec_augment", "bands": 1, "band_width": 4, "times": 2, "time_width": 25},
    ],
    "rows.length": 80,
    "rows.source_length": 1000,
    "training.batch": 32,
    "training.steps": 4000,
    "training.schedule.warmup": 400,
    "every.log": 50,
}
SOUNDS: dict[str, Any] = {
    "rows.features": {"kind": "log_mel", "mels": 40, "sample_rate": 8000},
    "rows.augment": [
        {"kind": "speed", "factors": [0.85, 1.0, 1.15]},
        {"kind": "spec_augment", "band_width": 8, "time_width": 10},
    ],
    "rows.length": 8,
    "rows.source_length": 300,
    "training.batch": 32,
    "training.steps": 1500,
    "training.schedule.warmup": 150,
    "training.optimizer.learning_rate": 1e-3,
    "every.log": 50,
}


# --- tables -----------------------------------------------------------------------------------------------------------


def write_manifest(path: Path, rows: Sequence[Sequence[Any]], columns: str) -> None:
    """Write a manifest with a header."""
    lines = ["\t".join(columns.split()), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tables(data: Path, out: Path, small: int | None) -> None:
    """Unpack the data, and write manifests of each part; `small` keeps every so-manieth row, for a trial."""
    an4 = out / "an4"
    an4.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[list[Any]]] = {"train": [], "dev": [], "test": []}
    for name in ("train", "test"):
        with lzma.open(data / "speech-an4-mfcc" / f"{name}.npy.xz") as file:
            (an4 / f"{name}.npy").write_bytes(file.read())
        for line in (data / "speech-an4-mfcc" / f"{name}.tsv").read_text().splitlines()[1:]:
            _, speaker, start, frames, text = line.split("\t")
            part = "dev" if name == "train" and speaker in DEV else name
            parts[part].append([f"{name}.npy", start, frames, speaker, text])
    for part, rows in parts.items():
        write_manifest(an4 / f"{part}.tsv", rows[:: small or 1], "path start length speaker text")
    texts = {part: [row[-1] for row in rows[:: small or 1]] for part, rows in parts.items()}
    for part in ("train", "dev"):
        (an4 / f"{part}.txt").write_text("\n".join(texts[part]) + "\n")
    digits = out / "digits"
    with tarfile.open(data / "speech-fsdd" / "recordings.tar.xz") as archive:
        archive.extractall(digits, filter="data")
    names = sorted(path.name for path in (digits / "recordings").glob("*.wav"))[:: small or 1]
    rows = [[f"recordings/{name}", *name.removesuffix(".wav").split("_")] for name in names]
    for speaker in SPEAKERS:
        others = [row for row in rows if row[2] != speaker]
        sides = {"test": [row for row in rows if row[2] == speaker]}
        sides |= {"dev": [r for r in others if int(r[3]) < 5], "train": [r for r in others if int(r[3]) >= 5]}
        for part, chosen in sides.items():
            lines = [[path, DIGITS[int(digit)], who] for path, digit, who, _ in chosen]
            write_manifest(digits / f"{speaker}-{part}.tsv", lines, "path text speaker")
    print(json.dumps({part: len(rows[:: small or 1]) for part, rows in parts.items()} | {"digits": len(names)}))


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One run: a row at a rate with a seed; `tested` opens the test part. Of digits, `part` is the speaker left out."""

    out: Path
    task: str
    row: str
    rate: float
    seed: int
    overrides: dict[str, Any] = field(compare=False)
    part: str = ""
    tested: bool = False

    @property
    def key(self) -> tuple[str, str, float, int, str]:
        """Return what results are found by."""
        return self.task, self.row, self.rate, self.seed, self.part

    @property
    def name(self) -> str:
        """Name the run."""
        return "-".join(word for word in (self.task, self.row, self.part, f"{self.rate:g}", str(self.seed)) if word)

    def manifest(self, part: str) -> Path:
        """Return the manifest of a part."""
        return self.out / self.task / (f"{self.part}-{part}.tsv" if self.part else f"{part}.tsv")

    def source(self, part: str) -> dict[str, Any]:
        """Return the source of a part."""
        path = str(self.manifest(part))
        return (
            {"kind": "array", "path": path}
            if self.task == "an4"
            else {"kind": "sound", "path": path, "sample_rate": 8000}
        )


def settings_of(job: Job) -> dict[str, Any]:
    """Return the settings of a run."""
    shared = (AN4 if job.task == "an4" else SOUNDS) | job.overrides
    every = max(1, shared["training.steps"] // 20)
    return {
        "data": {
            "sources": [job.source("train")],
            "split": {"kind": "file", "source": job.source("dev")},
            "unique": False,
        },
        "name": job.name,
        "seed": job.seed,
        "every.validate": every,
        "every.save": every,
        "every.sample": 10_000_000,
        "hardware.compile": "off",  # rows of many lengths, in runs of minutes
        "training.optimizer.learning_rate": job.rate,
        "objective": ROWS[job.row][1],
        **shared,
    }


def train_lm(out: Path, overrides: dict[str, Any]) -> None:
    """Train an LSTM over the training transcripts, with the tokenizer of the recognizers."""
    runs = out / "runs"
    if (runs / LM / "done").exists():
        return
    settings: dict[str, Any] = {
        "name": LM,
        "data": {
            "sources": [{"kind": "text", "path": str(out / "an4" / "train.txt"), "split": "line"}],
            "split": {
                "kind": "file",
                "source": {"kind": "text", "path": str(out / "an4" / "dev.txt"), "split": "line"},
            },
            "unique": False,
        },
        "tokenizer": {"kind": "character"},
        "rows": {"kind": "packed", "length": 96},
        "model": {"kind": "preset", "name": "lstm_lm", "layers": 1, "width": 256, "dropout": 0.3},
        "training.steps": max(40, overrides.get("training.steps", 4000) // 5),
        "training.batch": 16,
        "training.optimizer.learning_rate": 2e-3,
        "every.sample": 10_000_000,
        "hardware.compile": "off",
    }
    device_word = {name: value for name, value in overrides.items() if name.startswith("hardware.")}
    known = (runs / LM).exists()
    done = heddle.train(
        runs / LM if known else "lstm", overrides={} if known else settings | device_word, runs=runs, progress=False
    )
    if done.stopped is None:
        (runs / LM / "done").touch()


def run_job(job: Job, until: float) -> Line | None:
    """Train, or go on; return the result, or None where the time is over before it is there."""
    left = until - time.time()
    if left < MARGIN:
        return None
    folder = job.out / "runs" / job.name
    limit = {} if left > 1e6 else {"stop.minutes": round((left - MARGIN / 2) / 60, 3)}
    if folder.exists():
        run = heddle.train(folder, overrides=limit, progress=False)
    else:
        run = heddle.train(ROWS[job.row][0], overrides=settings_of(job) | limit, runs=job.out / "runs", progress=False)
    if run.stopped is not None:
        return None
    line = {"task": job.task, "row": job.row, "rate": job.rate, "seed": job.seed, "part": job.part}
    line |= {"steps": run.step, "run": job.name, "device": device(), "commit": commit()}
    lm = heddle.load(folder)
    plain = options_for(job.row, fused=False)[0]
    line |= {"dev": grade(job, lm, "dev", plain)}
    return line | tested(job, lm) if job.tested else line


def tested(job: Job, lm: "heddle.LM") -> Line:
    """Return the test part, at the weights of the search that are best on dev, without and with a language model."""
    if job.task == "digits":
        return {"test": {"plain": grade(job, lm, "test", {"beams": 4})}}
    found: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    other = heddle.load(job.out / "runs" / LM)
    for name, fused in (("plain", None), ("fused", other)):
        grid = options_for(job.row, fused is not None)
        graded = [(grade(job, lm, "dev", options, fused)["wer"], at) for at, options in enumerate(grid)]
        chosen[name] = grid[min(graded)[1]] | {"dev_wer": min(graded)[0], "tried": len(grid)}
        found[name] = grade(job, lm, "test", grid[min(graded)[1]], fused)
    return {"chosen": chosen, "test": found}


def options_for(row: str, fused: bool) -> list[TranscribeOptions]:
    """Return the weights of the search that are tried on dev: without a language model, or with one."""
    ctc = (0.3, 0.5) if row.endswith("+ctc") else (None,)
    weights = (0.2, 0.5) if fused else (None,)
    found: list[TranscribeOptions] = []
    for share, weight, bonus in product(ctc, weights, (0.0, 0.5)):
        options: dict[str, Any] = {"ctc_weight": share, "lm_weight": weight, "length_bonus": bonus, "beams": 8}
        kept = {name: value for name, value in options.items() if value is not None}
        found.append(cast(TranscribeOptions, kept))
    return found


def grade(
    job: Job, lm: "heddle.LM", part: str, options: TranscribeOptions, fused: "heddle.LM | None" = None
) -> dict[str, float]:
    """Return the error rates of a part, and how many texts are exactly right."""
    beside = None if fused is None else FusedModel(fused.model, fused.tokenizer)
    task = transcriber(lm.model, lm.tokenizer, lm.origin.settings, options, beside, batch=32)
    rows = list(task.run(task.utterances([job.manifest(part)])))
    texts, references = [text(found) for _, found in rows], [one.reference or "" for one, _ in rows]
    rates = error_rates(texts, references)
    exact = 100 * sum(a == " ".join(b.split()) for a, b in zip(texts, references, strict=True)) / len(texts)
    return {"wer": round(rates.wer, 3), "cer": round(rates.cer, 3), "exact": round(exact, 3), "sounds": len(texts)}


def text(found: Transcription) -> str:
    """Return the text of a sound; one that cannot be used is an error here."""
    if found.fault is not None:
        raise RuntimeError(f"{found.name}: {found.fault}")
    return found.text


def attempt(job: Job, until: float) -> Line | None:
    """Run a job; of one that fails, return why."""
    try:
        return run_job(job, until)
    except Exception:
        return {"failed": True, "error": traceback.format_exc(limit=3)}


class Results:
    """The lines of results, by what was run."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, dict[tuple[Any, ...], Line]()
        for line in read_lines(path) if path.exists() else []:
            self._keep(line)

    def _keep(self, line: Line) -> None:
        self.known[(line["task"], line["row"], line["rate"], line["seed"], line["part"])] = line

    def add(self, line: Line) -> None:
        """Keep a line, on disk too."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._keep(line)

    def missing(self, job: Job) -> bool:
        """Tell whether a job is still to be done."""
        line = self.known.get(job.key)
        return line is None or (job.tested and "test" not in line)


def next_jobs(results: Results, given: argparse.Namespace, out: Path) -> Iterator[Job]:
    """Yield what can be done now: of AN4 each rate with the first seed, then the tests at the best one."""
    for row in given.rows:
        if given.verb == "digits":
            rate = given.rates[0] if given.rates else SOUNDS["training.optimizer.learning_rate"]
            tests = [
                Job(out, "digits", row, rate, s, given.overrides, who, True)
                for s in given.seeds
                for who in given.speakers
            ]
            yield from (job for job in tests if results.missing(job))
            continue
        tried = [Job(out, "an4", row, rate, given.seeds[0], given.overrides) for rate in given.rates or RATES]
        missing = [job for job in tried if results.missing(job)]
        if missing:
            yield from missing
            continue
        best = min(tried, key=lambda job: results.known[job.key]["dev"]["wer"])
        tests = [Job(out, "an4", row, best.rate, seed, given.overrides, "", True) for seed in given.seeds]
        yield from (job for job in tests if results.missing(job))


def run_all(out: Path, given: argparse.Namespace) -> None:
    """Keep so many processes busy until all is done or the time is over."""
    until = time.time() + 60 * given.minutes if given.minutes else math.inf
    if given.verb == "an4":
        train_lm(out, given.overrides)
    results, failed = Results(out / "results.jsonl"), set[tuple[Any, ...]]()
    running: dict[Future[Line | None], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
        while True:
            busy = {job.key for job in running.values()} | failed
            ready = [job for job in next_jobs(results, given, out) if job.key not in busy]
            for job in ready[: given.processes - len(running)]:
                running[pool.submit(attempt, job, until)] = job
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                job, line = running.pop(done), done.result()
                if line is None or "failed" in line:
                    failed.add(job.key)
                    print(f"{job.name}: " + ("cut off, to be resumed" if line is None else line["error"]), flush=True)
                else:
                    results.add(line)
                    print(json.dumps(line), flush=True)
    report(out)


def report(out: Path) -> None:
    """Print mean and deviation of the tested runs of each row; of digits, for each speaker too."""
    lines = [line for line in Results(out / "results.jsonl").known.values() if "test" in line]
    for task, row in sorted({(line["task"], line["row"]) for line in lines}):
        own = [line for line in lines if (line["task"], line["row"]) == (task, row)]
        for search, metric in product(own[0]["test"], ("exact",) if task == "digits" else ("wer", "cer")):
            for part in sorted({line["part"] for line in own}):
                _print(f"{task} {row} {part} {search}", metric, [x for x in own if x["part"] == part], search)
            if task == "digits":
                _print(f"{task} {row} all speakers {search}", metric, own, search)


def _print(name: str, metric: str, lines: list[Line], search: str) -> None:
    scores = [line["test"][search][metric] for line in lines]
    spread = f"+- {statistics.stdev(scores):.2f}" if len(scores) > 1 else "(one run)"
    print(f"{' '.join(name.split())} {metric}: {statistics.mean(scores):.2f} {spread} of {len(scores)} runs")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tables", "an4", "digits", "report"))
    parser.add_argument("folders", nargs="+", help="DATA OUT, or OUT; then KEY=VALUE")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS))
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates, all tried with the first seed")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--speakers", nargs="+", choices=SPEAKERS, default=list(SPEAKERS), help="of digits, left out")
    parser.add_argument("--minutes", type=float, help="after which all stops, to be resumed")
    parser.add_argument("--processes", type=positive, default=1, help="runs side by side")
    parser.add_argument("--steps", type=positive, help="steps of each run; of the language model a fifth")
    parser.add_argument("--small", type=positive, help="of tables: keep one row in so many, for a trial")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.folders if "=" in word]))
    given.folders = [Path(word).resolve() for word in given.folders if "=" not in word]
    given.overrides |= {} if given.steps is None else {"training.steps": given.steps}
    given.rows = given.rows or (["transformer+ctc", "lstm+ctc"] if given.verb == "digits" else list(ROWS))
    if len(given.folders) != (2 if given.verb == "tables" else 1):
        parser.error("want DATA and OUT of tables, else OUT alone")
    return given


def main() -> None:
    """Run one verb."""
    given = arguments()
    if given.verb == "tables":
        data, out = given.folders
        tables(data, out, given.small)
    elif given.verb == "report":
        report(given.folders[0])
    else:
        run_all(given.folders[0], given)


if __name__ == "__main__":
    run_main(main)
