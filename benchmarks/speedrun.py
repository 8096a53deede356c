"""Fast to a loss: train the recipe `speedrun` on Gutenberg and measure bits per byte of its held-out books.

    python benchmarks/speedrun.py DATA OUT [--seeds 0 1 2] [--without NAME ... | all] [--seconds 84] [--budget 400]
                                  [--trial "NAME KEY=VALUE ..." ...] [--set KEY=VALUE ...] [--tokenizer FILE] [--tiny]

DATA holds train-*.jsonl.xz and valid.jsonl.xz. The clock runs from the start of step 1 and stands still while held-out
text is measured. Before step 1 the step is compiled and tried on random ids, and weights, optimizers and guard are put
back as they were. Held-out text is measured whole, through windows of 1,024 tokens that do not overlap.
`--without` takes one choice out (see `WITHOUT`), beside the recipe itself; `--trial` changes settings at will, `--set`
those of all. Each has a process, which compiles once and trains seed after seed; with `--seconds` for as many steps as
its own speed allows. All are set up side by side, then trained one by one: all with the first seed, all with the next,
and none begins that `--budget`, counted from the start, has no time for. OUT/results.jsonl gets a line after each run,
OUT/NAME-SEED the run's own metrics and config.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from entry_point import run_main
from results import commit, device

from heddle.core import diff, encode, override, replace, swap
from heddle.core.system import parse_yaml, write_json
from heddle.data.shards import Prepared, Shards, open_prepared, prepare
from heddle.data.sources import CorpusConfig, FileSplit, JsonlSource, PreparedSource
from heddle.models import count_parameters, training_flops
from heddle.models.networks import LanguageModel
from heddle.nn.stack import RepeatConfig, RootedConfig
from heddle.recipes import RECIPES
from heddle.tasks.scoring import evaluate
from heddle.text.tokenizers import Tokenizer, load_tokenizer
from heddle.training import RunConfig, RunEnvironment, set_up
from heddle.training.assemble import build_model, build_training_plan
from heddle.training.callbacks import Log, Metrics, StopOnDivergence, WindowWarmup
from heddle.training.loop import Callback, Guard, Report, SilentReporter, Trainer

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
    "muon": setting("training.optimizer={kind: adamw, learning_rate: 2.0e-3, betas: [0.9, 0.95], weight_decay: 0.1}"),
    "rooted": unrooted,
    "softcap": setting("model.head.softcap=null"),
    "squared-relu": setting("model.plan.bodies.1.body.branches.1.part.activation=gelu_tanh"),
    "first-values": setting("model.plan.bodies.1.body.branches.0.part.values=own"),
    "query-key-norm": setting("model.plan.bodies.1.body.branches.0.part.projections.norm=none"),
    "zero-start": setting("model.init.into_stream=1.0"),
    "head-apart": setting("model.ties=[{share: head.weight, of: embedding.weight}]"),
    "small-batch": setting("training.batch=64"),
    "decay-to-zero": setting("training.schedule={kind: cosine, warmup: 20, floor: 0.1}"),
}
TINY = [
    "model={kind: preset, name: speedrun, layers: 2, width: 32, heads: 2, vocab: 512}",
    "tokenizer.vocab=512",
    "rows.length=64",
    "training.batch=4",
    "training.steps=12",
]


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process trains, seed after seed: a name, and what it changes in the recipe."""

    name: str
    without: str | None
    changes: Sequence[str]
    seconds: float | None
    looks: int  # at held-out text, evenly spaced, the last at the end


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


def synchronize() -> None:
    """Let the device finish."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Stopwatch(Callback):
    """Measure training time; at the last step, and at a few before it, held-out text, the clock standing still."""

    def __init__(self, shards: Shards, tokenizer: Tokenizer, window: int, looks: int) -> None:
        self.shards, self.tokenizer, self.window, self.looks = shards, tokenizer, window, looks
        self.seconds, self.measuring, self.curve = 0.0, 0.0, list[dict[str, float]]()

    def before_fit(self, trainer: Trainer) -> None:
        synchronize()
        self.since = time.perf_counter()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step not in {trainer.steps * look // self.looks for look in range(1, self.looks + 1)}:
            return
        synchronize()
        stopped = time.perf_counter()
        self.seconds += stopped - self.since
        assert isinstance(trainer.model, LanguageModel)
        trainer.model.eval()
        found = evaluate(trainer.model, self.tokenizer, self.shards, self.window, self.window)
        trainer.model.train()
        line = {"step": trainer.step, "seconds": round(self.seconds, 2), "bits_per_byte": round(found.bits_per_byte, 5)}
        self.curve.append(line | {"bytes": found.bytes, "tokens": found.tokens, "loss": round(float(report.loss), 4)})
        print(json.dumps(self.curve[-1]), file=sys.stderr, flush=True)
        synchronize()
        self.since = time.perf_counter()
        self.measuring += self.since - stopped


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
            synchronize()
            start = time.perf_counter()
        step(batch, number, batch.inputs.numel())
    synchronize()
    taken = (time.perf_counter() - start) / (steps - steps // 2)
    trainer.model.load_weights(before)
    for one in step.optimizers.optimizers:
        one.state.clear()
    step.guard = Guard.start(step.guard.config, device_)
    return taken


def begin_anew(trainer: Trainer, config: RunConfig, found: Prepared, folder: Path) -> None:
    """Put a trainer at the start of a run of its own seed and folder; what was compiled stays as it is."""
    step = trainer.take_step
    assert step.average is None and not any(step.carried), "an average or a carried state would have to begin anew, too"
    config = replace(config, model=trainer.model.config)
    trainer.model.load_weights(build_model(config, None).weights())
    for one in step.optimizers.optimizers:
        one.state.clear()
    step.seed, step.guard = config.seed, Guard.start(step.guard.config, trainer.hardware.device)
    transform = partial(config.objective.prepare, seed=config.seed)
    trainer.loader = dataclasses.replace(trainer.loader, plan=build_training_plan(config, [found]), transform=transform)
    trainer.step, trainer.stop, trainer.metric, trainer.folder = 0, None, None, folder
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", encode(config))
    metrics, flops = Metrics(folder / "metrics.jsonl"), training_flops(trainer.model, trainer.loader.plan.mean_length)
    log = Log(metrics, SilentReporter(), config.every.log, flops)
    trainer.callbacks = [log, StopOnDivergence(config.training.guard.max_consecutive)]


class Runner:
    """One variant, compiled once, that trains with any seed."""

    def __init__(self, job: Job, config: RunConfig, ids: Path, out: Path) -> None:
        begun = time.perf_counter()
        found = open_prepared(ids)
        assert found is not None
        self.job, self.found, self.out = job, found, out
        self.config = replace(config, data=CorpusConfig(sources=(PreparedSource(path=str(ids)),)))
        self.trainer = set_up(self.config, RunEnvironment(out / job.name))
        self.valid, self.tokenizer = Shards.open(found.valid), load_tokenizer(found.tokenizer)
        self.widen = WindowWarmup(config.training.window_warmup, self.trainer.hardware.device)
        self.try_all(COMPILING)
        self.ready, self.timed = time.perf_counter() - begun, False

    def try_all(self, steps: int) -> float:
        """Try out each horizon that the run will have, and return the seconds that its steps take on average."""
        horizons, seconds = [self.widen.config.at(step, 100) for step in range(100)], 0.0
        for size in dict.fromkeys(horizons):
            self.widen.set(self.trainer, size)
            seconds += try_out(self.trainer, steps) * horizons.count(size) / len(horizons)
        self.widen.set(self.trainer, None)
        return seconds

    def train(self, seed: int) -> dict[str, Any]:
        """Train with a seed, and return what there is to tell."""
        trainer, name = self.trainer, f"{self.job.name}-{seed}"
        begin_anew(trainer, replace(self.config, seed=seed, name=name), self.found, self.out / name)
        if self.job.seconds is not None and not self.timed:
            trainer.steps, self.timed = int(self.job.seconds / self.try_all(TIMING)), True
        watch = Stopwatch(self.valid, self.tokenizer, trainer.model.context, self.job.looks)
        trainer.callbacks += [self.widen, watch]
        trainer.fit()
        tokens = trainer.steps * self.config.training.batch * trainer.loader.plan.length
        return {
            "name": self.job.name,
            "seed": seed,
            "parameters": count_parameters(trainer.model),
            "flops_per_token": training_flops(trainer.model, trainer.loader.plan.length),
            "steps": trainer.steps,
            "tokens": tokens,
            "epochs": round(tokens / Shards.open(self.found.train).tokens, 3),
            "tokens_per_second": round(tokens / watch.seconds),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None,
            "ready_seconds": round(self.ready, 1),
            "measuring_seconds": round(watch.measuring, 2),
            "seconds": watch.curve[-1]["seconds"],
            "bits_per_byte": watch.curve[-1]["bits_per_byte"],
            "curve": watch.curve,
        }


def serve(runner: Runner, changes: Sequence[str], answers: IO[str]) -> None:
    """Say that a variant is ready, then train with each seed that comes in."""
    print("ready", file=answers, flush=True)
    for line in filter(str.strip, sys.stdin):
        print(json.dumps(runner.train(int(line)) | {"changes": changes}), file=answers, flush=True)


# --- many runs --------------------------------------------------------------------------------------------------------


def jobs(words: argparse.Namespace) -> Iterator[Job]:
    """Yield the variants requested, the recipe itself first."""
    without = list(WITHOUT) if words.without == ["all"] else words.without or []
    if without or not words.trial:
        yield Job("speedrun", None, (), words.seconds, words.looks)
    for name in without:
        yield Job(name, name, (), words.seconds, words.looks)
    for name, *changes in (trial.split() for trial in words.trial or ()):
        yield Job(name, None, changes, words.seconds, words.looks)


def start(job: Job, words: argparse.Namespace, threads: int) -> subprocess.Popen[str]:
    """Start a variant's process, which sets itself up."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    one = [sys.executable, __file__, str(words.data), str(words.out), "--job", json.dumps(dataclasses.asdict(job))]
    one += ["--tiny"] * words.tiny + (["--set", *words.set] if words.set else [])
    one += ["--tokenizer", str(words.tokenizer)] if words.tokenizer else []
    log, pipe = (words.out / f"{job.name}.log").open("w"), subprocess.PIPE
    return subprocess.Popen(one, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)


def ask(process: subprocess.Popen[str], seed: int | None = None) -> str:
    """Give a process a seed, and return the line that it answers; an empty one: it has failed."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        print("" if seed is None else seed, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def run_all(words: argparse.Namespace, begun: float) -> Iterator[dict[str, Any]]:
    """Set all variants up at once, then train them one after the other, seed by seed, while there is time."""
    wanted = list(jobs(words))
    threads = max(2, (os.cpu_count() or 1) // len(wanted))
    started = {job.name: start(job, words, threads) for job in wanted}
    ready = {name: process for name, process in started.items() if ask(process) == "ready"}
    print(f"{len(ready)} of {len(started)} ready after {time.monotonic() - begun:.0f} s", flush=True)
    for name in started.keys() - ready.keys():
        print(f"{name}: failed, see {name}.log", flush=True)
    longest = words.seconds or 0.0  # that a run has taken, all in all
    for seed in words.seeds:
        for name in [name for name, process in ready.items() if process.poll() is None]:
            since = time.monotonic()
            if words.budget is not None and since + longest > begun + words.budget:
                print(f"no time left for {name} with seed {seed}", flush=True)
                continue
            if answer := ask(ready[name], seed):
                yield json.loads(answer) | {"commit": commit(), "device": device()}
            else:
                print(f"{name}: failed with seed {seed}, see {name}.log", flush=True)
            longest = max(longest, time.monotonic() - since)
    for process in started.values():
        process.communicate()


def describe(line: dict[str, Any]) -> str:
    """Say in one line how a run went."""
    curve = "  ".join(f"{look['bits_per_byte']:.4f} at {look['seconds']:.1f} s" for look in line["curve"])
    return (
        f"{line['name']:>16} seed {line['seed']}: {curve}; {line['parameters'] / 1e6:.1f} M parameters, "
        f"{line['steps']} steps, {line['tokens_per_second'] / 1e3:.0f} k tokens/s, {line['epochs']:.2f} epochs"
    )


def summary(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each variant: its mean over seeds, and by how much it differs from the recipe, seed by seed."""
    bits = {(line["name"], line["seed"]): line["bits_per_byte"] for line in lines}
    for name in dict.fromkeys(line["name"] for line in lines):
        own = [line for line in lines if line["name"] == name]
        seconds, steps = (statistics.mean(line[key] for line in own) for key in ("seconds", "steps"))
        more = [
            bits[name, seed] - bits["speedrun", seed] for n, seed in bits if n == name and ("speedrun", seed) in bits
        ]
        found = f"{name:>16}: {spread([line['bits_per_byte'] for line in own])} bits per byte, {len(own)} seeds"
        found += f", {seconds:.1f} s, {steps:.0f} steps"
        yield found if name == "speedrun" or not more else f"{found}; {spread(more, '+')} beside the recipe"


def spread(values: Sequence[float], sign: str = "") -> str:
    """Say a mean and the sample deviation."""
    wide = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.4f}{wide}"


def words_of() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--without", nargs="+", choices=[*WITHOUT, "all"])
    parser.add_argument("--trial", nargs="+", metavar='"NAME KEY=VALUE ..."')
    parser.add_argument("--set", nargs="+", metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--seconds", type=float, help="train for so long, not for the recipe's steps")
    parser.add_argument("--budget", type=float, help="seconds for everything, after which no run is begun")
    parser.add_argument("--looks", type=int, default=2, help="how often held-out text is measured, the end included")
    parser.add_argument("--tokenizer", type=Path, help="one that learned from the training text before")
    parser.add_argument("--tiny", action="store_true", help="on any machine in seconds; measures nothing of worth")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Train, measure, tell."""
    words, begun = words_of(), time.monotonic()
    recipe = changed(RECIPES["speedrun"](), [*(TINY if words.tiny else []), *(words.set or [])])
    words.out.mkdir(parents=True, exist_ok=True)
    if words.job:
        answers, sys.stdout = sys.stdout, sys.stderr  # what others print is no answer
        job = Job(**json.loads(words.job))
        config = variant(recipe, job)
        edited = [str(change) for change in diff(whole(recipe), whole(config))]
        ids = prepared(words.data, words.out, config, words.tokenizer)
        serve(Runner(job, config, ids, words.out), edited, answers)
        return
    for job in jobs(words):  # a wrong change is reported before anything runs
        prepared(words.data, words.out, variant(recipe, job), words.tokenizer)
    found = []
    for line in run_all(words, begun):
        found.append(line)
        with (words.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(describe(line), flush=True)
    print(*summary(found), sep="\n")
    if runs := [line["bits_per_byte"] for line in found if line["name"] == "speedrun"]:
        print(f"goal {GOAL}: {'reached' if statistics.mean(runs) <= GOAL else 'MISSED'}")


if __name__ == "__main__":
    run_main(main)
