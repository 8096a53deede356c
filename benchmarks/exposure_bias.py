"""Exposure bias: what a decoder loses when it must live on its own tokens, with and without scheduled sampling.

    python benchmarks/exposure_bias.py RESULTS.json [--seeds 3] [--steps 800]

The task: a row of ten tokens, each one, two or three steps above the one before it (around a circle of 19), is read
into one vector and written out again. The token before leaves three candidates for the next, so a decoder that always
sees the true one can lean on it, and need not learn where in the row it stands; left alone, it drifts. Since the right
token of each place is known, the loss of the true row can be taken under either diet: fed with the truth, or with what
the model itself predicts (sampled, or the likeliest).
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from entry_point import run_main
from results import commit, device
from torch import Tensor

from heddle.core import encode
from heddle.data.rows import Batch
from heddle.models.networks import EncoderDecoder
from heddle.models.presets import preset
from heddle.nn.base import Context
from heddle.objectives import (
    ExponentialSamplingConfig,
    InverseSigmoidSamplingConfig,
    LinearSamplingConfig,
    SamplingConfig,
    SequenceConfig,
    TeacherForcingConfig,
)
from heddle.objectives.scheduled_sampling import mix_predictions

TOKENS, LENGTH, END = 20, 10, 0
TRAIN, TEST, BATCH, RATE = 3000, 1000, 32, 3e-3
MODEL = {"layers": 1, "width": 64, "vocab": TOKENS, "context": LENGTH + 1}


@dataclass(frozen=True)
class Arm:
    """One way to train: which tokens are fed, and how many times the usual number of steps it gets."""

    sampling: SamplingConfig
    longer: int = 1


ARMS = {
    "teacher forcing": Arm(TeacherForcingConfig()),
    "teacher forcing, twice the steps": Arm(TeacherForcingConfig(), longer=2),
    "linear": Arm(LinearSamplingConfig(max_rate=1.0)),
    "exponential": Arm(ExponentialSamplingConfig()),
    "inverse sigmoid": Arm(InverseSigmoidSamplingConfig()),
    "inverse sigmoid, twice the steps": Arm(InverseSigmoidSamplingConfig(), longer=2),
}


def climbs(count: int, seed: int) -> Batch:
    """Draw rows to be read and written."""
    draw = torch.Generator().manual_seed(seed)
    begin = torch.randint(TOKENS - 1, (count, 1), generator=draw)
    steps = torch.randint(1, 4, (count, LENGTH), generator=draw)
    rows = (begin + steps.cumsum(1)) % (TOKENS - 1) + 1
    ends = torch.full((count, 1), END)
    return Batch(
        inputs=torch.cat((ends, rows), 1),
        targets=torch.cat((rows, ends), 1),
        weights=torch.ones(count, LENGTH + 1),
        rows=torch.arange(count),
        source=rows,
        source_lengths=torch.full((count,), LENGTH),
    )


def pick(batch: Batch, rows: Tensor) -> Batch:
    """Return some rows of a batch."""
    assert batch.source is not None and batch.source_lengths is not None
    return dataclasses.replace(
        batch,
        inputs=batch.inputs[rows],
        targets=batch.targets[rows],
        weights=batch.weights[rows],
        rows=batch.rows[rows],
        source=batch.source[rows],
        source_lengths=batch.source_lengths[rows],
    )


def train(arm: Arm, data: Batch, seed: int, steps: int) -> EncoderDecoder:
    """Train one model; the rate rises, then falls in a line to a twentieth."""
    model = preset("seq2seq_lstm").config(**MODEL).build(seed).train()
    assert isinstance(model, EncoderDecoder)
    objective, steps = SequenceConfig(sampling=arm.sampling), steps * arm.longer
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    order = torch.Generator().manual_seed(seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 50) * (1 - 0.95 * step / steps)
        torch.manual_seed(seed * 1_000_003 + step)  # coins and draws
        batch = pick(data, torch.randint(len(data), (BATCH,), generator=order))
        share = objective.scheduled_value(step, steps)
        loss = objective(model, batch, None, None if share is None else torch.tensor(share)).total / batch.tokens
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def measure(model: EncoderDecoder, test: Batch) -> dict[str, float]:
    """Take the loss of the true row on each diet, and how much of what it says on its own is wrong."""
    assert test.source is not None
    ctx = Context(memory=model.encode(test.source, test.source_lengths))
    torch.manual_seed(0)
    all_own = torch.ones(())
    fed = {
        "forced": test.inputs,
        "free, drawn": mix_predictions(model, test.inputs, ctx, all_own, "sample"),
        "free, likeliest": mix_predictions(model, test.inputs, ctx, all_own, "best"),
    }
    hidden = {name: model(inputs, ctx) for name, inputs in fed.items()}
    found = {name: model.head.nll(h, test.targets).mean().item() for name, h in hidden.items()}
    predicted = model.head.logits(hidden["free, likeliest"]).argmax(-1)
    return found | {
        "gap, drawn": found["free, drawn"] - found["forced"],
        "gap, likeliest": found["free, likeliest"] - found["forced"],
        "wrong tokens": (predicted != test.targets).float().mean().item(),
    }


def spread(values: list[float]) -> tuple[float, float]:
    """Return mean and sample deviation."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def table(runs: Mapping[str, list[dict[str, float]]]) -> str:
    """Return the figures as a table in Markdown."""
    names = ["forced", "free, drawn", "gap, drawn", "free, likeliest", "gap, likeliest", "wrong tokens", "seconds"]
    lines = ["| fed with | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for arm, found in runs.items():
        cells = [spread([run[name] for run in found]) for name in names]
        words = [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in cells[:-1]] + [f"{cells[-1][0]:.0f}"]
        lines.append(f"| {arm} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train every arm with every seed, print the table, write all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data, test = climbs(TRAIN, seed=1), climbs(TEST, seed=2)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    for seed in range(args.seeds):
        for name, arm in ARMS.items():
            start = time.perf_counter()
            model = train(arm, data, seed, args.steps)
            seconds = time.perf_counter() - start
            runs[name].append(measure(model, test) | {"seconds": seconds, "seed": seed})
            print(f"seed {seed}  {name}: gap, drawn {runs[name][-1]['gap, drawn']:.3f}  ({seconds:.0f} s)", flush=True)
        args.results.write_text(json.dumps(report(runs, args.steps), indent=1) + "\n", encoding="utf-8")
    print(table(runs))


def report(runs: Mapping[str, list[dict[str, float]]], steps: int) -> dict[str, Any]:
    """Return all that is needed to do it again, and every figure of every run."""
    return {
        "commit": commit(),
        "device": device(),
        "torch": torch.__version__,
        "model": {"preset": "seq2seq_lstm"} | MODEL,
        "data": {"train": TRAIN, "test": TEST, "tokens": TOKENS, "length": LENGTH},
        "training": {"steps": steps, "batch": BATCH, "rate": RATE, "decay": 0.01, "clip": 1.0},
        "arms": {name: encode(arm.sampling) | {"longer": arm.longer} for name, arm in ARMS.items()},
        "runs": runs,
    }


if __name__ == "__main__":
    run_main(main)
