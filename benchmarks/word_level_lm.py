"""Word-level language models side by side: the same number of full runs to tune each, then more seeds of the best.

    python benchmarks/word_level_lm.py DATA RESULTS [--texts ptb wikitext2] [--models lstm qrnn transformer]
                               [--settings 0 1] [--seeds 0 1 2] [--at-once 3] [--epochs 1.0]

DATA holds the folders lm-ptb and lm-wikitext2. Each model is trained with each of its settings and the first seed; the
setting of lowest held-out loss is trained with the other seeds. Perplexity is per word with each line's end counted,
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry_point import run_main
from sweep import train

ATTENTION = {"transformer"}  # these cannot carry a state


@dataclass(frozen=True)
class Text:
    """A benchmark: where its files lie, and how many tokens it has to learn from."""

    pattern: str
    tokens: int


TEXTS = {
    "ptb": Text("lm-ptb/ptb.{}.txt.gz", 929_589),
    "wikitext2": Text("lm-wikitext2/wiki.{}.tokens.gz", 2_088_628),
}


@dataclass(frozen=True)
class Setting:
    """How to train: what a trial may change."""

    rate: float
    epochs: int
    lanes: int  # rows of 70 tokens
    dropout: float = 0.4
    decay: float = 0.02


SETTINGS = {
    "lstm": [Setting(3e-3, epochs=50, lanes=64), Setting(5e-3, epochs=77, lanes=128)],
    "qrnn": [Setting(3e-3, epochs=50, lanes=64), Setting(5e-3, epochs=77, lanes=128)],
    "transformer": [
        Setting(1e-3, epochs=25, lanes=64, dropout=0.4, decay=1.0),
        Setting(1e-3, epochs=40, lanes=64, dropout=0.5, decay=0.5),
    ],
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
    scale: float  # of the epochs

    @property
    def setting(self) -> Setting:
        """Return how it is trained."""
        return SETTINGS[self.model][self.trial]

    @property
    def name(self) -> str:
        """Name it, but for the seed."""
        return f"{self.text}-{self.model}-t{self.trial}"

    @property
    def steps(self) -> int:
        """Count its steps."""
        tokens = self.scale * self.setting.epochs * TEXTS[self.text].tokens
        return max(1, math.ceil(tokens / (self.setting.lanes * 70)))

    def overrides(self, data: Path) -> list[str]:
        """Say how it differs from the recipe `awd_lstm`."""
        text, setting = TEXTS[self.text], self.setting
        source, held = (f"{{kind: text, path: {data / text.pattern.format(side)}" for side in ("train", "valid"))
        attention = self.model in ATTENTION
        rows = (
            "packed, length: 140, boundaries: stream" if attention else f"streams, length: 70, lanes: {setting.lanes}"
        )
        batch = setting.lanes // 2 if attention else setting.lanes  # the same tokens
        return [
            f"data={{sources: [{source}, longest: 100000000}}], split: {{kind: file, source: {held}}}}}}}",
            f"model={{kind: preset, {MODELS[self.model]}, dropout: {setting.dropout}}}",
            f"rows={{kind: {rows}}}",
            f"training.batch={batch}",
            f"training.optimizer={{kind: adamw, learning_rate: {setting.rate}, betas: [0.9, 0.99], "
            f"weight_decay: {setting.decay}}}",
            f"training.clip={1.0 if attention else 0.25}",
            f"training.steps={self.steps}",
            f"training.schedule={{kind: cosine, warmup: {max(1, self.steps // 25)}, floor: 0.0}}",
            f"every={{log: 100, validate: {max(1, self.steps // 10)}, save: {self.steps}, sample: {self.steps}}}",
        ]


def perplexity(job: Job, data: Path, folder: Path, side: str) -> dict[str, float]:
    """Measure a finished run on a side of its text."""
    how = ["--window", "140", "--stride", "28"] if job.model in ATTENTION else ["--carry"]
    path = data / TEXTS[job.text].pattern.format(side)
    words = ["evaluate", "-m", f"runs/{job.name}-s{job.seed}", "--data", str(path), "--json", *how]
    command = [sys.executable, "-m", "heddle", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {}
    found = json.loads(done.stdout)
    return {side: found["perplexity"], f"{side}_tokens": found["tokens"]}


def run(job: Job, data: Path, folder: Path) -> dict[str, Any]:
    """Train and measure."""
    found = train(job.name, job.seed, {"recipe": "awd_lstm", "overrides": job.overrides(data)}, folder)
    row = {"text": job.text, "model": job.model, "trial": job.trial, "steps": job.steps} | found
    if "best" in found:
        for side in ("valid", "test"):
            row |= perplexity(job, data, folder, side)
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return row


def chosen(rows: list[dict[str, Any]]) -> int | None:
    """Return the trial of lowest held-out loss, if any came to its end."""
    done = [row for row in rows if "last" in row]
    return min(done, key=lambda row: row["last"])["trial"] if done else None


def main() -> None:
    """Run the trials, then more seeds of the best of each, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--settings", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=1.0, help="scales all lengths")
    given = parser.parse_args()
    data, folder = given.data.absolute(), given.folder.absolute()
    if not data.is_dir():
        raise SystemExit(f"{given.data}: no such folder")
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(text, model) for text in given.texts for model in given.models]
    first, *more = given.seeds
    with ThreadPoolExecutor(given.at_once) as pool:
        trials = [Job(*pair, trial, first, given.epochs) for pair in pairs for trial in given.settings]
        rows = list(pool.map(lambda job: run(job, data, folder), trials))
        best = {pair: chosen([row for row in rows if (row["text"], row["model"]) == pair]) for pair in pairs}
        repeats = [
            Job(*pair, trial, seed, given.epochs) for seed in more for pair, trial in best.items() if trial is not None
        ]
        rows += list(pool.map(lambda job: run(job, data, folder), repeats))
    for (text, model), trial in best.items():
        same = [row for row in rows if (row["text"], row["model"], row["trial"]) == (text, model, trial)]
        for side in ("valid", "test"):
            values = [row[side] for row in same if side in row]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            if values:
                print(f"{text} {model} {side}: {statistics.mean(values):.2f} ± {spread:.2f} over {len(values)} seeds")


if __name__ == "__main__":
    run_main(main)
