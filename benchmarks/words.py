"""Word-level language models side by side: tune each by the same number of short trials, then train the best in full.

    python benchmarks/words.py DATA RESULTS [--texts ptb wikitext2] [--models lstm qrnn transformer]
                               [--share 0.2] [--seeds 0 1 2] [--at-once 3] [--epochs 1.0] [--lanes N] [--trial N]

DATA holds the folders lm-ptb and lm-wikitext2. Trials take `--share` of the steps (0: no trials, the first is taken);
the one of lowest held-out loss is trained in full with each seed. Perplexity is per word with each line's end counted,
on validation and test text: state carried over the whole text where the model has one, else through windows in which
at least four fifths are context. RESULTS/results.jsonl has a line for each run.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from many import TRAIN, train

ATTENTION = {"transformer"}  # these cannot carry a state


@dataclass(frozen=True)
class Text:
    """A benchmark: where its files lie, how many tokens it has, and how often to read them."""

    pattern: str
    tokens: int
    epochs: int
    lanes: int
    dropout: float  # the scale around which trials lie


TEXTS = {
    "ptb": Text("lm-ptb/ptb.{}.txt.gz", 929_589, epochs=110, lanes=64, dropout=0.4),
    "wikitext2": Text("lm-wikitext2/wiki.{}.tokens.gz", 2_088_628, epochs=45, lanes=80, dropout=0.4),
}
RECURRENT = [(3e-3, 1.0), (3e-3, 0.85), (5e-3, 1.0), (2e-3, 1.15)]
# Rate, and dropout as a multiple of the text's; as many for each model.
TRIALS = {
    "lstm": RECURRENT,
    "qrnn": RECURRENT,
    "transformer": [(1e-3, 1.0), (2e-3, 1.0), (1e-3, 0.75), (1e-3, 1.25)],
}
MODELS = {
    "lstm": "name: awd_lstm",
    "qrnn": "name: qrnn_lm",
    "transformer": "name: first, layers: 10, width: 416, heads: 8",  # as many weights as the others
}


@dataclass(frozen=True)
class Job:
    """One run."""

    text: str
    model: str
    trial: int
    seed: int
    share: float  # of the steps

    @property
    def name(self) -> str:
        """Name it, but for the seed."""
        return f"{self.text}-{self.model}-t{self.trial}" + ("" if self.share == 1 else "-short")

    @property
    def steps(self) -> int:
        """Count its steps."""
        text = TEXTS[self.text]
        return max(1, math.ceil(self.share * text.epochs * text.tokens / (text.lanes * 70)))

    def overrides(self, data: Path) -> list[str]:
        """Say how it differs from the recipe `awd_lstm`."""
        text, (rate, multiple) = TEXTS[self.text], TRIALS[self.model][self.trial]
        source, held = (f"{{kind: text, path: {data / text.pattern.format(side)}" for side in ("train", "valid"))
        attention = self.model in ATTENTION
        rows = "packed, length: 140, boundaries: stream" if attention else f"streams, length: 70, lanes: {text.lanes}"
        batch = text.lanes // 2 if attention else text.lanes  # the same tokens
        decay, clip = (0.1, 1.0) if attention else (0.02, 0.25)
        return [
            f"data={{sources: [{source}, longest: 100000000}}], split: {{kind: file, source: {held}}}}}}}",
            f"model={{kind: preset, {MODELS[self.model]}, dropout: {multiple * text.dropout:.3f}}}",
            f"rows={{kind: {rows}}}",
            f"training.batch={batch}",
            f"training.optimizer={{kind: adamw, rate: {rate}, betas: [0.9, 0.99], decay: {decay}}}",
            f"training.clip={clip}",
            f"training.steps={self.steps}",
            f"training.schedule={{kind: cosine, warmup: {max(1, self.steps // 25)}, floor: 0.0}}",
            f"every={{log: 100, validate: {max(1, self.steps // 10)}, save: {self.steps}, sample: {self.steps}}}",
        ]


def perplexity(job: Job, data: Path, folder: Path, side: str) -> dict[str, float]:
    """Measure a finished run on a side of its text."""
    how = ["--window", "140", "--stride", "28"] if job.model in ATTENTION else ["--carry"]
    path = data / TEXTS[job.text].pattern.format(side)
    words = ["evaluate", "-m", f"runs/{job.name}-s{job.seed}", "--data", str(path), "--json", *how]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *words], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {}
    found = json.loads(done.stdout)
    return {side: found["perplexity"], f"{side}_tokens": found["tokens"]}


def run(job: Job, data: Path, folder: Path) -> dict[str, Any]:
    """Train and, if it is a full run, measure."""
    found = train(job.name, job.seed, {"recipe": "awd_lstm", "overrides": job.overrides(data)}, folder)
    row = {"text": job.text, "model": job.model, "trial": job.trial, "steps": job.steps} | found
    if job.share == 1 and "best" in found:
        for side in ("valid", "test"):
            row |= perplexity(job, data, folder, side)
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Run the trials, then the best of each, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=1.0, help="scales all lengths")
    parser.add_argument("--lanes", type=int, help="rows side by side, instead of the text's own number")
    parser.add_argument("--trial", type=int, default=0, help="which setting to take where there are no trials")
    given = parser.parse_args()
    data, folder = given.data.absolute(), given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        lanes = given.lanes or text.lanes
        TEXTS[name] = replace(text, epochs=max(1, round(text.epochs * given.epochs)), lanes=lanes)
    pairs = [(text, model) for text in given.texts for model in given.models]
    trials = [Job(*pair, trial, 0, given.share) for pair in pairs for trial in range(len(TRIALS[pair[1]]))]
    with ThreadPoolExecutor(given.at_once) as pool:
        short = list(pool.map(lambda job: run(job, data, folder), trials if given.share else []))
        found = {
            pair: [row for row in short if (row["text"], row["model"]) == pair and "best" in row] for pair in pairs
        }
        chosen = {
            pair: min(rows, key=lambda row: row["best"])["trial"] if rows else given.trial
            for pair, rows in found.items()
        }
        full = [Job(*pair, chosen[pair], seed, 1.0) for seed in given.seeds for pair in pairs]
        rows = list(pool.map(lambda job: run(job, data, folder), full))
    for text, model in pairs:
        for side in ("valid", "test"):
            values = [row[side] for row in rows if (row["text"], row["model"]) == (text, model) and side in row]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            if values:
                print(f"{text} {model} {side}: {statistics.mean(values):.2f} ± {spread:.2f} over {len(values)} seeds")


if __name__ == "__main__":
    main()
