"""Rescore LibriSpeech 10-best lists with models trained on books: from prepared text to a table of error rates.

    python benchmarks/rescore_text.py DATA OUT --wikipedia 1
    python benchmarks/rescore.py train OUT [--size base] [--seconds 270] [key=value ...]
    python benchmarks/rescore.py trigram OUT
    python benchmarks/rescore.py judge OUT [--runs base ...]
    python benchmarks/rescore.py export OUT base FOLDER

`train` measures speed on a few steps, then trains for as many as fit into the time, so that the rate falls to its end.
`trigram` and `judge` let every candidate be scored once, with and without the utterances before it, and keep the
scores in OUT/scored. Weights are then tuned on each dev set and applied to its test set; OUT/results.jsonl has a line
for each choice of models. Every step is a child process of `heddle`, so what is measured is what a user gets. `export`
writes a run's weights in bfloat16, without the optimizer's state, as a folder that `heddle.load` reads.
"""

import argparse
import itertools
import json
import lzma
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from entry_point import run_main

SETS = ("dev_clean", "dev_other", "test_clean", "test_other")
HEDDLE = [sys.executable, "-m", "heddle"]
READ = ["--normal", "case=lower", "--ending", "line"]
ALONE = "alone"  # ends the name of a model that does not see the utterances before
PROBE = 60  # steps
ROWS = 512  # tokens
SIZES = {  # layers, width, heads, dropout, rows of a step, micro-batch
    "tiny": (2, 64, 2, 0.0, 8, 8),
    "base": (7, 512, 8, 0.1, 256, 256),
    "large": (12, 768, 12, 0.1, 256, 128),
}


def heddle(folder: Path, words: list[str], log: str) -> str:
    """Run a command of heddle's in a folder; return its standard output."""
    with (folder / log).open("a", encoding="utf-8") as log_file:
        log_file.write(" ".join(words) + "\n")
        log_file.flush()
        child = subprocess.run(
            [*HEDDLE, *words], cwd=folder, stdout=subprocess.PIPE, stderr=log_file, text=True, check=False
        )
    if child.returncode:
        raise SystemExit(f"heddle {words[0]}: exit code {child.returncode}; see {folder / log}")
    return child.stdout


# --- training ---------------------------------------------------------------------------------------------------------


def overrides(out: Path, size: str, steps: int) -> list[str]:
    """Say how a run differs from the recipe `first`."""
    layers, width, heads, dropout, batch, micro = SIZES[size]
    sides = {side: f"{{kind: jsonl, path: {_found(out, side)}}}" for side in ("train", "valid")}
    return [
        f"data={{sources: [{sides['train']}], split: {{kind: file, source: {sides['valid']}}}}}",
        f"model={{kind: preset, name: first, layers: {layers}, width: {width}, heads: {heads}, dropout: {dropout}}}",
        f"tokenizer={{kind: bpe, vocab: {512 if size == 'tiny' else 8192}}}",
        f"rows={{kind: packed, length: {ROWS}, boundaries: stream}}",
        f"training.steps={steps}",
        f"training.batch={batch}",
        f"training.micro_batch={micro}",
        "training.optimizer={kind: muon, learning_rate: 0.02, weight_decay: 0.01, "
        "rest: {kind: adamw, learning_rate: 0.003, weight_decay: 0.0}}",
        f"training.schedule={{kind: stable_decay, warmup: {min(100, steps // 10)}, decay: 0.6}}",
        f"every={{log: 20, validate: {max(PROBE, steps // 8)}, save: {steps}, sample: {steps}}}",
        "keep.last=1",
        "hardware.workers=4",
    ]


def _found(out: Path, side: str) -> Path:
    """Return a side's file, compressed or not."""
    return next(path for end in ("jsonl", "jsonl.xz") if (path := out / f"{side}.{end}").exists())


def train(out: Path, size: str, seconds: float, words: list[str]) -> None:
    """Train a model for about so many seconds."""
    log = f"{size}.log"
    probe = out / "runs" / f"{size}-probe"
    if not probe.exists():
        heddle(out, ["train", "first", f"name={probe.name}", *overrides(out, size, PROBE), *words], log)
    rates = [row["tokens_per_second"] for row in _metrics(probe) if "tokens_per_second" in row]
    batch = SIZES[size][4]
    steps = max(PROBE, int(rates[-1] * seconds / (batch * ROWS)))
    print(f"{size}: {rates[-1]:,.0f} tokens/s, {steps:,} steps of {batch * ROWS:,} tokens", flush=True)
    start = time.perf_counter()
    heddle(out, ["train", "first", f"name={size}", *overrides(out, size, steps), *words], log)
    losses = [row["validation_loss"] for row in _metrics(out / "runs" / size) if "validation_loss" in row]
    print(f"{size}: held-out loss {losses[-1]:.4f} after {time.perf_counter() - start:.0f} s", flush=True)


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# --- rescoring --------------------------------------------------------------------------------------------------------


def scoring_model(out: Path, runs: list[str], at_once: int) -> None:
    """Let every model score every candidate, with and without context; then tune and measure each choice of them."""
    (out / "scored").mkdir(exist_ok=True)
    voices = [voice for run in runs for voice in (run, f"{run}-{ALONE}")]
    with ThreadPoolExecutor(at_once) as pool:
        for line in pool.map(lambda job: add(out, *job), itertools.product(SETS, voices)):
            print(line, flush=True)
    choices = [[voice] for voice in voices] + ([runs] if len(runs) > 1 else []) + [voices]
    extra = ["trigram"] if (scores_of(out, "dev_clean", "trigram")).exists() else []
    for choice in [*([extra] if extra else []), *choices, *([[*voices, *extra]] if extra else [])]:
        measure(out, choice)


def lists_of(out: Path, name: str) -> list[dict[str, Any]]:
    """Read the lists of a set."""
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def scores_of(out: Path, name: str, voice: str) -> Path:
    """Return where a voice's scores of a set are kept."""
    return out / "scored" / f"{name}.{voice}.jsonl"


def without_context(row: dict[str, Any]) -> dict[str, Any]:
    """Return a list of which nothing is known but itself."""
    return {key: value for key, value in row.items() if key != "context"}


def add(out: Path, name: str, voice: str) -> str:
    """Let a model score the lists of a set, unless it has; only the scores are kept."""
    kept = scores_of(out, name, voice)
    if kept.exists():
        return f"{voice} has scored {name}"
    rows = lists_of(out, name)
    if voice.endswith(ALONE):
        rows = [without_context(row) for row in rows]
    given, whole = kept.with_suffix(".given"), kept.with_suffix(".whole")
    given.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = voice.removesuffix(f"-{ALONE}")
    start = time.perf_counter()
    heddle(out, ["rescore", str(given), "-m", f"runs/{run}", *READ, "--scored", str(whole)], f"{kept.stem}.log")
    scored = [json.loads(line) for line in whole.read_text(encoding="utf-8").splitlines()]
    write_scores(kept, [[round(c["scores"][run], 4) for c in row["candidates"]] for row in scored])
    for path in (given, whole):
        path.unlink()
    return f"{voice} scored {name} in {time.perf_counter() - start:.0f} s"


def write_scores(path: Path, rows: list[list[float]]) -> None:
    """Keep the scores of each list's candidates."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure(out: Path, voices: list[str]) -> None:
    """Tune weights on each dev set, apply them to its test set, and write what comes of it."""
    folder = out / "judged"
    folder.mkdir(exist_ok=True)
    for name in SETS:
        rows = [without_context(row) for row in lists_of(out, name)]
        for voice in voices:
            lines = scores_of(out, name, voice).read_text(encoding="utf-8").splitlines()
            for row, scores in zip(rows, map(json.loads, lines), strict=True):
                for candidate, score in zip(row["candidates"], scores, strict=True):
                    candidate.setdefault("scores", {})[voice] = score
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for kind in ("clean", "other"):
        words = ["rescore", f"test_{kind}.jsonl", "--no-model", "--tune", f"dev_{kind}.jsonl", *READ[:2], "--json"]
        reports = [json.loads(line) for line in heddle(folder, words, "judged.log").splitlines()]
        for report in (reports[0], reports[-1]):
            line = {"models": voices} | report
            with (out / "results.jsonl").open("a", encoding="utf-8") as results:
                results.write(json.dumps(line) + "\n")
        print(
            f"{' + '.join(voices):40} test_{kind}: WER {reports[-1]['before']:.2f} -> {reports[-1]['after']:.2f} "
            f"(at best {reports[-1]['oracle']:.2f}); dev {reports[0]['before']:.2f} -> {reports[0]['after']:.2f}",
            flush=True,
        )


# --- a baseline, and the way home -------------------------------------------------------------------------------------


def trigram(out: Path) -> None:
    """Score the lists by a trigram model of the same text."""
    from trigram import Trigram

    model = Trigram.learn(lambda: _lines(_found(out, "train")))
    for name in SETS:
        rows = lists_of(out, name)
        scores = [[model.logprob(c["text"].lower().split()) for c in row["candidates"]] for row in rows]
        write_scores(scores_of(out, name, "trigram"), [[round(x, 4) for x in row] for row in scores])
    measure(out, ["trigram"])


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line of a file of documents."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        for document in file:
            yield from (line.split() for line in json.loads(document)["text"].splitlines())


def export(out: Path, run: str, folder: Path) -> None:
    """Write a run as small as it can be used: weights in bfloat16, config and tokenizer."""
    import torch

    from heddle.checkpoints.store import Snapshot, Store, open_run

    found = open_run(out / "runs" / run)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in found.tensors("model").items()}
    small = Snapshot(found.step, {"model": weights}, {}, found.texts, found.metric)
    print(Store(folder / "checkpoints").save(small))


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("train", "trigram", "judge", "export"):
        steps.add_parser(name).add_argument("out", type=Path)
    own = steps.choices["train"]
    own.add_argument("words", nargs="*", help="key=value for the run")
    own.add_argument("--size", default="base", choices=SIZES)
    own.add_argument("--seconds", type=float, default=270)
    steps.choices["judge"].add_argument("--runs", nargs="+", default=["base"])
    steps.choices["judge"].add_argument("--at-once", type=int, default=4)
    steps.choices["export"].add_argument("run")
    steps.choices["export"].add_argument("folder", type=Path)
    given = parser.parse_args()
    out = given.out.absolute()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if given.step == "train":
        train(out, given.size, given.seconds, given.words)
    elif given.step == "judge":
        scoring_model(out, given.runs, given.at_once)
    elif given.step == "trigram":
        trigram(out)
    else:
        export(out, given.run, given.folder)


if __name__ == "__main__":
    run_main(main)
