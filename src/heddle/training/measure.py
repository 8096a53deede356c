"""Throughput: tokens per second and MFU of a run's step on random tokens, and where the time goes."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heddle.checkpoints import find_source
from heddle.core import replace
from heddle.core.system import Hardware, peak_flops
from heddle.data.rows import Batch, guessed_traits
from heddle.models import count_parameters, training_flops
from heddle.models.networks import Model
from heddle.nn.attention import set_warmup_window
from heddle.training.assemble import build_model, resolve_model
from heddle.training.breakdown import breakdown
from heddle.training.checks import check_window_warmup, guess_control_tokens, guess_vocab
from heddle.training.compiling import should_compile_run
from heddle.training.frozen_model import load_frozen_model
from heddle.training.loop import ProcessGroup, Step
from heddle.training.run_config import RunConfig
from heddle.training.setup import build_step
from heddle.training.stored_teacher import placeholder

PROFILED = 3  # steps over which the breakdown is taken


@dataclass(frozen=True)
class Speed:
    """What was measured; rates are over the steps after warming up."""

    tokens_per_second: float  # the median
    quartiles: tuple[float, float]
    seconds_per_step: float
    mfu: float
    tokens_per_step: int
    compiled: bool
    first_step_seconds: float  # from building the model to the end of the first step: compiling lies within
    peak_bytes: int  # of the device; on a CPU, of the process
    parameters: int
    device: str
    dtype: str
    breakdown: Mapping[str, float]  # seconds of a step by kind of work

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass
class DryRun:
    """A run's model and step without its data."""

    config: RunConfig
    model: Model
    step: Step
    hardware: Hardware
    draw: Callable[[int], Batch]
    compiled: bool
    number: int = 0

    def take(self, batch: Batch | None = None) -> int:
        """Take the next step; return how many tokens went through the model, of pairs those of the target."""
        batch = self.draw(self.number) if batch is None else batch
        self.step(batch.to(self.hardware.device), self.number, max(1, batch.tokens))
        self.number += 1
        return batch.inputs.numel()

    def wait(self) -> None:
        """Let the device finish."""
        if self.hardware.device.type == "cuda":
            torch.cuda.synchronize(self.hardware.device)


def build_dry_run(config: RunConfig) -> DryRun:
    """Build what a run trains, as the run would, but for its text and tokenizer."""
    hardware, vocab = config.hardware.choose(), guess_vocab(config)
    init = None if config.init is None else find_source(config.init)
    config = replace(config, objective=config.objective.resolve(guess_control_tokens(config, vocab), vocab))
    config = replace(config, model=resolve_model(config, vocab, init))
    with hardware.device:
        model = build_model(config, init)
    model.compute = None if hardware.dtype is torch.float32 else hardware.dtype
    model.to(hardware.device).train()
    model.reserve(config.model_length)
    check_window_warmup(config)
    if (size := config.training.window_warmup.at(0, config.training.steps)) is not None:  # that of the first steps
        set_warmup_window(model, torch.tensor(size, device=hardware.device))
    frozen = load_frozen_model(config, None, vocab, hardware, Path())
    step = build_step(config, model, hardware, ProcessGroup(), frozen)
    step.set_scheduled(config.objective.scheduled_value(config.training.steps // 2, config.training.steps))
    compiled = should_compile_run(config, model, hardware)

    show = config.objective.preparer(config.seed, partial(guessed_traits, vocab))

    def draw(number: int) -> Batch:
        batch = show(config.rows.random_batch(vocab, config.training.batch, number))
        return batch if frozen is None or frozen.model is not None else placeholder(batch, frozen)

    return DryRun(config, model, step, hardware, draw, compiled)


def measure(
    config: RunConfig, steps: int = 20, warm: int = 3, report: Callable[[str], object] = lambda _: None
) -> Speed:
    """Build, warm up, and time some steps; `report` gets lines on the progress."""
    began = time.perf_counter()
    run = build_dry_run(config)
    report(f"{count_parameters(run.model):,} weights; the first step{', which is compiled' if run.compiled else ''}")
    run.take()
    run.wait()
    first = time.perf_counter() - began
    report(f"{first:.1f} s; then {warm - 1} to warm up, {steps} to time, {PROFILED} to look into")
    batches = [run.draw(number) for number in range(1, 5)]  # drawn beforehand, as a loader would
    for number in range(warm - 1):
        run.take(batches[number % len(batches)])
    seconds, tokens = [], 0
    for number in range(steps):
        run.wait()
        start = time.perf_counter()
        tokens = run.take(batches[number % len(batches)])
        run.wait()
        seconds.append(time.perf_counter() - start)
    parts = breakdown(lambda: run.take(batches[0]), PROFILED, run.hardware.device, guess_vocab(config))
    return _speed(run, seconds, tokens, first, parts)


def _resident() -> int:
    """Return the most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _speed(run: DryRun, seconds: list[float], tokens: int, first: float, parts: Mapping[str, float]) -> Speed:
    slow, middle, fast = statistics.quantiles(seconds, n=4)[::-1] if len(seconds) > 1 else seconds * 3
    length = run.config.rows.max_length
    flops = training_flops(run.model, length) * length * run.config.training.batch
    device, cuda = run.hardware.device, run.hardware.device.type == "cuda"
    return Speed(
        tokens_per_second=tokens / middle,
        quartiles=(tokens / slow, tokens / fast),
        seconds_per_step=middle,
        mfu=flops / middle / peak_flops(run.hardware),
        tokens_per_step=tokens,
        compiled=run.compiled,
        first_step_seconds=first,
        peak_bytes=torch.cuda.max_memory_allocated(device) if cuda else _resident(),
        parameters=count_parameters(run.model),
        device=run.hardware.name,
        dtype=str(run.hardware.dtype).removeprefix("torch."),
        breakdown=parts,
    )
