"""Fast to a loss: train the recipe `speedrun` on Gutenberg and measure bits per byte of its held-out books.

    python benchmarks/speedrun.py DATA OUT [--seeds 0 1 2] [--without NAME ...] [--seconds 84]
                                  [--trial "NAME KEY=VALUE ..." ...] [--tokenizer FILE] [--tiny]

DATA holds train-*.jsonl.xz and valid.jsonl.xz. The clock runs from the start of step 1 and stands still while held-out
text is measured. Before step 1 the step is compiled and tried on random ids, and weights, optimizers and guard are put
back as they were. Held-out text is measured whole, through windows of 1,024 tokens that do not overlap.
`--without` takes one choice out (see `WITHOUT`), `--trial` changes settings at will; each is trained with each seed,
and with `--seconds` for as many steps as its own speed allows. Runs are set up side by side and trained one by one.
OUT/results.jsonl has a line for each run, OUT/NAME-SEED the run's own metrics and config.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from results import commit, device
from rich.console import Console

from heddle.core import diff, override, parse_yaml, replace, swap
from heddle.data import CorpusConfig, FileSplit, JsonlSource, PreparedSource, Shards, open_prepared, prepare
from heddle.models import LanguageModel, parameters_of, training_flops
from heddle.nn import RepeatConfig, RootedConfig
from heddle.recipes import RECIPES, RunConfig
from heddle.tasks import evaluate
from heddle.text import Tokenizer, load_tokenizer
from heddle.training import Callback, Report, Surroundings, Team, Trainer, set_up
from heddle.training.callbacks import Log, StopWhenBad
from heddle.training.guard import Guard

GOAL = 1.4055  # bits per byte: what nanoGPT reaches after 251 s on one H200
COMPILING, TIMING = 3, 40  # steps on random ids before the clock starts: for the compiler, and to tell the speed


def changed(config: RunConfig, changes: Sequence[str]) -> RunConfig:
    """Return a run with some settings changed."""
    for key, _, value in (change.partition("=") for change in changes):
        config = override(config, key, parse_yaml(value))
    return config


def setting(*changes: str) -> Callable[[RunConfig], RunConfig]:
    """Return an edit that changes some settings."""
    return lambda config: changed(config, changes)


def unrooted(config: RunConfig) -> RunConfig:
    """Let layers see nothing but the layer before."""
    plain = swap(RootedConfig, lambda rooted: RepeatConfig(body=rooted.body, times=rooted.times))
    return replace(config, model=plain(config.model.expand()))


# Each choice of the recipe, taken out.
WITHOUT: dict[str, Callable[[RunConfig], RunConfig]] = {
    "muon": setting("training.optimizer={kind: adamw, rate: 2.0e-3, betas: [0.9, 0.95], decay: 0.1}"),
    "rooted": unrooted,
    "softcap": setting("model.head.softcap=null"),
    "squared-relu": setting("model.plan.bodies.1.body.branches.1.part.activation=gelu_tanh"),
    "query-key-norm": setting("model.plan.bodies.1.body.branches.0.part.projections.norm=none"),
    "zero-start": setting("model.init.into_stream=1.0"),
    "head-apart": setting("model.ties=[{share: head.weight, of: embedding.weight}]"),
    "small-batch": setting("training.batch=64"),
    "decay-to-zero": setting("training.schedule={kind: cosine, warmup: 100, floor: 0.1}"),
}
TINY = [
    "model={kind: preset, name: speedrun, layers: 2, width: 32, heads: 2}",
    "tokenizer.vocab=512",
    "rows.length=64",
    "training.batch=4",
    "training.steps=12",
]


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: a name, a seed, and what it changes in the recipe."""

    name: str
    seed: int
    without: str | None
    changes: Sequence[str]
    seconds: float | None
    looks: int  # at held-out text, evenly spaced, the last at the end

    @property
    def folder(self) -> str:
        """Return the name of its folder."""
        return f"{self.name}-{self.seed}"


def variant(recipe: RunConfig, job: Job) -> RunConfig:
    """Return what a run trains."""
    config = recipe if job.without is None else WITHOUT[job.without](recipe)
    return changed(config, job.changes)


def whole(config: RunConfig) -> RunConfig:
    """Return a run with its model spelled out, for `diff`."""
    return replace(config, model=config.model.expand())


def corpus_of(data: Path) -> CorpusConfig:
    """Return the corpus, its held-out books in a file of their own."""
    return CorpusConfig(
        sources=(JsonlSource(path=str(data / "train-*.jsonl.xz")),),
        split=FileSplit(source=JsonlSource(path=str(data / "valid.jsonl.xz"))),
    )


def prepared(data: Path, out: Path, config: RunConfig, given: Path | None) -> Path:
    """Return a folder of ids; a tokenizer that is not given learns from the training text."""
    corpus, folder = corpus_of(data), out / f"ids-{config.tokenizer.__dict__['vocab']}"
    if open_prepared(folder) is None:
        tokenizer = config.tokenizer.train(corpus.sample()) if given is None else load_tokenizer(given)
        prepare(corpus, tokenizer, folder)
    return folder


# --- one run ----------------------------------------------------------------------------------------------------------


def synchronise() -> None:
    """Let the device finish."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Stopwatch(Callback):
    """Measure training time; at the last step, and at a few before it, held-out text, the clock standing still."""

    def __init__(self, shards: Shards, tokenizer: Tokenizer, window: int, looks: int) -> None:
        self.shards, self.tokenizer, self.window, self.looks = shards, tokenizer, window, looks
        self.seconds, self.curve = 0.0, list[dict[str, float]]()

    def before_fit(self, trainer: Trainer) -> None:
        synchronise()
        self.since = time.perf_counter()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step not in {trainer.steps * look // self.looks for look in range(1, self.looks + 1)}:
            return
        synchronise()
        self.seconds += time.perf_counter() - self.since
        assert isinstance(trainer.model, LanguageModel)
        trainer.model.eval()
        found = evaluate(trainer.model, self.tokenizer, self.shards, self.window, self.window)
        trainer.model.train()
        line = {"step": trainer.step, "seconds": round(self.seconds, 2), "bits_per_byte": round(found.bits_per_byte, 5)}
        self.curve.append(line | {"bytes": found.bytes, "tokens": found.tokens, "loss": round(float(report.loss), 4)})
        print(json.dumps(self.curve[-1]), file=sys.stderr, flush=True)
        synchronise()
        self.since = time.perf_counter()


def try_out(trainer: Trainer, steps: int) -> float:
    """Take some steps on random ids, put everything back, and return the seconds that each of the later ones took."""
    step, device_ = trainer.take_step, trainer.hardware.device
    batch = next(iter(trainer.loader)).to(device_)
    trainer.loader.consumed = 0
    assert isinstance(trainer.model, LanguageModel)
    ids = torch.randint(trainer.model.vocab, (*batch.inputs.shape[:1], batch.inputs.shape[1] + 1), device=device_)
    batch = dataclasses.replace(batch, inputs=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
    before = {name: weight.clone() for name, weight in trainer.model.weights().items()}
    trainer.model.train()
    for number in range(steps):
        if number == steps // 2:
            synchronise()
            start = time.perf_counter()
        step(batch, number, batch.inputs.numel())
    synchronise()
    taken = (time.perf_counter() - start) / (steps - steps // 2)
    trainer.model.load_weights(before)
    for one in step.optimizers.parts:
        one.state.clear()
    step.guard = Guard.start(step.guard.config, device_)
    return taken


def train(job: Job, config: RunConfig, ids: Path, out: Path) -> dict[str, Any]:
    """Set a run up, say that it is ready, wait for a word, train, and return what there is to tell."""
    config = replace(
        config, name=job.folder, seed=job.seed, data=CorpusConfig(sources=(PreparedSource(path=str(ids)),))
    )
    begun = time.perf_counter()
    around = Surroundings(out / job.folder, Team(), Console(file=sys.stderr))
    trainer = set_up(config, around)
    try_out(trainer, COMPILING)
    found = open_prepared(ids)
    assert found is not None
    watch = Stopwatch(Shards.open(found.valid), load_tokenizer(found.tokenizer), trainer.model.context, job.looks)
    kept = [callback for callback in trainer.callbacks if isinstance(callback, Log | StopWhenBad)]
    trainer.callbacks = [*kept, watch]
    print("ready", flush=True)
    ready = time.perf_counter() - begun
    sys.stdin.readline()
    if job.seconds is not None:
        trainer.steps = int(job.seconds / try_out(trainer, TIMING))
    trainer.fit()
    tokens = trainer.steps * config.training.batch * trainer.loader.plan.length
    return {
        "name": job.name,
        "seed": job.seed,
        "parameters": parameters_of(trainer.model),
        "flops_per_token": training_flops(trainer.model, trainer.loader.plan.length),
        "steps": trainer.steps,
        "tokens": tokens,
        "epochs": round(tokens / Shards.open(found.train).tokens, 3),
        "tokens_per_second": round(tokens / watch.seconds),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None,
        "ready_seconds": round(ready, 1),
        "seconds": watch.curve[-1]["seconds"],
        "bits_per_byte": watch.curve[-1]["bits_per_byte"],
        "curve": watch.curve,
    }


# --- many runs --------------------------------------------------------------------------------------------------------


def jobs(words: argparse.Namespace) -> Iterator[Job]:
    """Yield the runs that are asked for, seed by seed."""
    for seed in words.seeds:
        for name in words.without or ():
            yield Job(name, seed, name, (), words.seconds, words.looks)
        for name, *changes in (trial.split() for trial in words.trial or ()):
            yield Job(name, seed, None, changes, words.seconds, words.looks)
        if not words.without and not words.trial:
            yield Job("speedrun", seed, None, (), words.seconds, words.looks)


def run_all(words: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Set all runs up at once, then train one after the other."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = []
    for job in jobs(words):
        one = [sys.executable, __file__, str(words.data), str(out), "--job", json.dumps(dataclasses.asdict(job))]
        one += ["--tiny"] if words.tiny else []
        one += ["--tokenizer", str(words.tokenizer)] if words.tokenizer else []
        log = (out / f"{job.folder}.log").open("w")
        pipe = subprocess.PIPE
        process = subprocess.Popen(one, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)
        started.append((job, process))
    found = []
    for _, process in started:
        assert process.stdout is not None
        process.stdout.readline()  # "ready"
    for job, process in started:
        said, _ = process.communicate("go\n")
        if process.returncode:
            print(f"{job.folder}: failed, see {job.folder}.log", flush=True)
            continue
        found.append(json.loads(said.splitlines()[-1]) | {"commit": commit(), "device": device()})
        with (out / "results.jsonl").open("a") as file:
            file.write(json.dumps(found[-1]) + "\n")
        print(told(found[-1]), flush=True)
    return found


def told(line: dict[str, Any]) -> str:
    """Say in one line how a run went."""
    curve = "  ".join(f"{look['bits_per_byte']:.4f} at {look['seconds']:.1f} s" for look in line["curve"])
    return (
        f"{line['name']:>16} seed {line['seed']}: {curve}; {line['parameters'] / 1e6:.1f} M parameters, "
        f"{line['steps']} steps, {line['tokens_per_second'] / 1e3:.0f} k tokens/s, {line['epochs']:.2f} epochs"
    )


def main() -> None:
    """Train, measure, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--without", nargs="+", choices=WITHOUT)
    parser.add_argument("--trial", nargs="+", metavar='"NAME KEY=VALUE ..."')
    parser.add_argument("--seconds", type=float, help="train for so long, not for the recipe's steps")
    parser.add_argument("--looks", type=int, default=2, help="how often held-out text is measured, the end included")
    parser.add_argument("--tokenizer", type=Path, help="one that learned from the training text before")
    parser.add_argument("--tiny", action="store_true", help="on any machine in seconds; measures nothing of worth")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    words = parser.parse_args()
    recipe = changed(RECIPES["speedrun"](), TINY if words.tiny else [])
    words.out.mkdir(parents=True, exist_ok=True)
    if words.job:
        job = Job(**json.loads(words.job))
        config = variant(recipe, job)
        ids = prepared(words.data, words.out, config, words.tokenizer)
        edited = [str(change) for change in diff(whole(recipe), whole(config))]
        print(json.dumps(train(job, config, ids, words.out) | {"changes": edited}), flush=True)
        return
    for job in jobs(words):  # a wrong change is told before anything runs
        prepared(words.data, words.out, variant(recipe, job), words.tokenizer)
    found = run_all(words, words.out)
    runs = [line for line in found if line["name"] == "speedrun"]
    if len(runs) > 1:
        bits, seconds = ([line[key] for line in runs] for key in ("bits_per_byte", "seconds"))
        mean = sum(bits) / len(bits)
        verdict = "reached" if mean <= GOAL else "MISSED"
        print(f"{len(runs)} seeds: {mean:.4f} bits/byte (goal {GOAL}: {verdict}) in {sum(seconds) / len(runs):.1f} s")


if __name__ == "__main__":
    main()
