"""Every family of presets in compiled training on one GPU: graph breaks, recompiles, tokens/s and MFU.

One preset of each function stands for its family, and those of Narang et al. whose graphs differ by more than a norm or
an activation; each has two layers of a reduced width. `--full` takes the named small and base sizes at full shape.
Many are compiled side by side, then timed one at a time; what is found is written down at once. `--share 1/3` takes a
third of them, so that several runs can have all. `--tiny` runs anywhere, uncompiled, and measures nothing of worth.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from entry_point import run_main
from results import need_gpu, record
from torch import Tensor, nn
from torch._dynamo.utils import counters
from worker_processes import Measure, measured

from heddle.core import UsageError
from heddle.core.system import choose_hardware, peak_flops
from heddle.data.rows import PackedRows, PairRows, RowsConfig
from heddle.models import count_parameters, forward_flops, training_flops
from heddle.models.networks import EncoderConfig, EncoderDecoderConfig
from heddle.models.presets import PRESETS, Preset
from heddle.objectives import MaskedTokenConfig, NextTokenConfig, ObjectiveConfig, SequenceConfig
from heddle.training import HardwareConfig, RunConfig, TrainingConfig, build_dry_run
from heddle.training.optimizers import AdamWConfig

STEPS = 20
SMALL = {"layers": 2, "width": 512, "heads": 8, "kv_heads": 8, "vocab": 8192, "side": 64, "classes": 100}
# Of Narang's table, those whose graph differs by more than an activation or a norm.
NARANG = [
    *("vanilla-transformer", "geglu", "fixup", "rezero", "block-sharing", "factorized-embedding"),
    *("adaptive-input-embeddings", "adaptive-softmax", "mixture-of-softmaxes", "transparent-attention"),
    *("dynamic-convolution", "lightweight-convolution", "evolved-transformer", "synthesizer-dense"),
    *("synthesizer-random", "universal-transformer", "mixture-of-experts", "switch-transformer"),
    *("funnel-transformer", "weighted-transformer", "product-key-memory"),
]
# Lengths of those whose loop over time is Python's, and the tokens of small images.
LENGTHS = {"mogrifier_lm": 64, "seq2seq_attention": 8, "vit-base-16": 17}
# Named sizes at full shape: rows and their length; of pairs, both sides.
FULL = {
    "gpt2": (64, 1024),
    "gpt": (64, 512),
    "bert-base-masked": (64, 512),
    "roberta-base-masked": (64, 512),
    "distilbert-masked": (64, 512),
    "albert-base-masked": (64, 512),
    "vit-base-16": (128, 197),
    "transformer_base": (128, 128),
    "bart-base": (64, 256),
    "t5-small": (64, 256),
    "t5-base": (64, 256),
    "qwen3-0.6b": (8, 2048),
    "awd_lstm": (64, 70),
}


@dataclass(frozen=True)
class Job:
    """One preset at one size."""

    name: str
    batch: int
    length: int
    full: bool = False
    device: str = "auto"
    changing: bool = False  # whether pairs have lengths of their own in every batch
    graphs: bool = False  # whether the step is replayed as CUDA graphs

    @property
    def named(self) -> Preset:
        return PRESETS[self.name]

    def dials(self) -> dict[str, Any]:
        """Return what makes the preset small."""
        if self.full:
            return {}
        known = {name: size for name, size in SMALL.items() if name in self.named.option_names}
        return known | ({"context": self.length} if "context" in self.named.option_names else {})


def families() -> list[str]:
    """Return one preset of each function, those with an edit that can be trained among them, and some of Narang's."""
    found: dict[tuple[Any, ...], str] = {}
    for name, named in PRESETS.items():
        variant = name.removeprefix("narang/")
        if name.startswith("narang/") and variant not in NARANG:
            continue
        found.setdefault((named.make, named.edit and name), name)
    return [name for name in found.values() if trainable(name)]


def trainable(name: str) -> bool:
    """Tell whether a preset has something to be trained by: an encoder needs an output."""
    config = PRESETS[name].config(**Job(name, 1, 64).dials())
    return not isinstance(config, EncoderConfig) or bool(config.outputs)


def run_of(job: Job) -> RunConfig:
    """Return the run that trains a preset."""
    model = job.named.config(**job.dials())
    rows: RowsConfig = PackedRows(length=job.length)
    objective: ObjectiveConfig = NextTokenConfig()
    if isinstance(model, EncoderConfig):
        objective = MaskedTokenConfig()
    elif isinstance(model, EncoderDecoderConfig):
        multiple = 8 if job.changing else job.length
        rows = PairRows(length=job.length, source_length=job.length, batch=job.batch, multiple=multiple)
        objective = SequenceConfig()
    training = TrainingConfig(batch=job.batch, optimizer=AdamWConfig(learning_rate=1e-4))
    compiled: Literal["on", "graphs"] = "graphs" if job.graphs else "on"
    cuda = choose_hardware(job.device).device.type == "cuda"
    hardware = HardwareConfig(device=job.device, compile=compiled if cuda else "off")
    return RunConfig(name="bench", model=model, rows=rows, objective=objective, training=training, hardware=hardware)


@dataclass
class Training:
    """A preset in training: a step to take, and what it costs."""

    take: Callable[[], object]
    wait: Callable[[], None]
    tokens: int
    flops: float  # of a step
    parameters: int
    peak: float  # FLOP/s of the device
    graphs: int = 0


def text(job: Job) -> Training:
    """Return a model of text under its objective."""
    run = build_dry_run(run_of(job))
    batches = [run.draw(number).to(run.hardware.device) for number in range(4)]
    count = iter(range(1 << 30))

    def take() -> None:
        number = next(count)
        run.step(batches[number % 4], number, job.batch * job.length)

    flops = training_flops(run.model, job.length) * job.batch * job.length
    return Training(
        take, run.wait, job.batch * job.length, flops, count_parameters(run.model), peak_flops(run.hardware)
    )


class Judged(nn.Module):
    """Images under their classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.model.nll(self.model.config.outputs[0].name, images, labels).mean()  # type: ignore[no-any-return]


def images(job: Job) -> Training:
    """Return a model of images, which has no objective of ours yet: its classes."""
    hardware, dials = choose_hardware(job.device), job.dials()
    config = job.named.config(**dials)
    with hardware.device:
        model = config.build()
        shape = (job.batch, 3, dials.get("side", 224), dials.get("side", 224))
        pixels, labels = torch.randn(shape), torch.randint(100, (job.batch,))
    model.compute = hardware.dtype
    judged = Judged(model)
    if hardware.device.type == "cuda":
        judged.compile()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def take() -> None:
        judged(pixels, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    tokens = job.batch * model.context
    wait = partial(torch.cuda.synchronize, hardware.device) if hardware.device.type == "cuda" else lambda: None
    flops = 3 * forward_flops(model, model.context) * tokens
    return Training(take, wait, tokens, flops, count_parameters(model), peak_flops(hardware))


def prepare(job: Job) -> Measure:
    """Compile a preset and take two steps; from then on a recompile is an error."""
    torch._dynamo.reset()
    counters.clear()
    start = time.perf_counter()
    training = (images if "side" in job.named.option_names else text)(job)
    for _ in range(2):
        training.take()
    training.wait()
    first = time.perf_counter() - start
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return partial(timed, training, {"first_seconds": round(first, 1), "graphs": counters["stats"]["unique_graphs"]})


def timed(training: Training, found: dict[str, Any]) -> dict[str, Any]:
    """Take the other steps, and time them."""
    before = counters["stats"]["unique_graphs"]
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(STEPS - 2):
        start = time.perf_counter()
        training.take()
        training.wait()
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds[2:])
    return found | {
        "breaks": sum(counters["graph_break"].values()),
        "recompiles": counters["stats"]["unique_graphs"] - before,
        "tokens_per_second": round(training.tokens / middle),
        "mfu": round(training.flops / middle / training.peak, 4),
        "parameters": training.parameters,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None,
    }


def jobs_of(words: argparse.Namespace) -> list[Job]:
    """Return what is to be measured."""
    if words.full:
        jobs = [Job(name, *shape, full=True, graphs=words.graphs) for name, shape in FULL.items()]
    else:
        batch, length, device = (2, 64, "cpu") if words.tiny else (32, 512, "auto")
        jobs = [
            Job(name, batch, min(length, LENGTHS.get(name, length)), device=device, graphs=words.graphs)
            for name in families()
        ]
    mine, of = words.share
    shared = jobs[mine - 1 :: of]
    if not words.only:
        return shared
    if missing := sorted(set(words.only) - {job.name for job in shared}):
        raise UsageError(f"--only: {', '.join(missing)} not in this list, or not in this share of it")
    return [job for job in shared if job.name in words.only]


def wrong(job: Job, found: dict[str, Any]) -> str | None:
    """Return what is not as it should be; None: it is compiled, whole, and stays so."""
    if "error" in found:
        return str(found["error"])
    if found["breaks"] or found["recompiles"]:
        return f"{found['breaks']} breaks, {found['recompiles']} recompiles"
    return None if found["graphs"] or job.device == "cpu" else "not compiled"


def share(word: str) -> tuple[int, int]:
    """Read `1/3`."""
    mine, _, of = word.partition("/")
    if not (mine.isdigit() and of.isdigit() and 1 <= int(mine) <= int(of)):
        raise argparse.ArgumentTypeError(f"want a part of how many, such as 1/3, got {word!r}")
    return int(mine), int(of)


def main() -> None:
    """Measure; print a line for each preset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="named sizes at full shape")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="replayed as CUDA graphs, but for images")
    parser.add_argument("--only", nargs="+", choices=list(PRESETS), metavar="PRESET", help="some of the list")
    parser.add_argument("--share", type=share, default="1/1", help="which part of how many")
    parser.add_argument("--workers", type=int, default=27, help="presets that are compiled side by side")
    words = parser.parse_args()
    need_gpu(words.tiny)
    bad: dict[str, str] = {}
    count = 0
    for found in measured(jobs_of(words), prepare, words.workers):
        job, count = found.pop("job"), count + 1
        print(f"{job.name:40} {job.batch}x{job.length} {found}", flush=True)
        bad |= {job.name: why} if (why := wrong(job, found)) else {}
        if not words.tiny and "error" not in found:
            record(
                f"preset {job.name}{', graphs' if job.graphs else ''}",
                full=job.full,
                batch=job.batch,
                length=job.length,
                **found,
            )
    if bad:
        raise SystemExit(f"{len(bad)} of {count}: " + "; ".join(f"{name}: {why}" for name, why in bad.items()))


if __name__ == "__main__":
    run_main(main)
