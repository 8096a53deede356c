"""Cost against sequence length: one training step of a mixer alone and of a small model, by length, with exponents.

    python benchmarks/sequence_length.py RESULTS.json [--longest 32768] [--width 256] [--batch 8]
    python benchmarks/sequence_length.py RESULTS.json --draw FIGURE.svg      (needs the extra `plot`)

A step takes a fixed time, for launching, and a time that grows with a power of the length; both and the exponent are
fitted to all lengths at once, by the least squares of relative errors.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from entry_point import run_main
from results import record

from heddle.models.networks import LanguageModelConfig, pre_norm
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context, MixerConfig, Place, initialize
from heddle.nn.base import NormalInitConfig as Normal
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import RMSNormConfig, SlidingWindowConfig
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.stack import RepeatConfig

WINDOW = 256


def mixers(heads: int) -> dict[str, MixerConfig]:
    """Return the mixers to compare."""
    return {
        "LSTM": LSTMConfig(),
        "full attention": AttentionConfig(heads=heads),
        f"attention in a window of {WINDOW}": AttentionConfig(heads=heads, mask=SlidingWindowConfig(size=WINDOW)),
    }


def seconds_of(step: Callable[[], None], device: torch.device, times: int = 3) -> list[float]:
    """Time a step, after two that warm up."""
    found = []
    for turn in range(times + 2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn > 1:
            found.append(time.perf_counter() - start)
    return found


def mixer_step(config: MixerConfig, batch: int, width: int, length: int, device: torch.device) -> Callable[[], None]:
    """Return forward and backward of one mixer."""
    part = config.build(width, Place(context=length))
    initialize(part, Normal(), 1, 0)
    part.to(device)
    x = torch.randn(batch, length, width, device=device, dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        part(x, Context()).float().square().mean().backward()
        part.zero_grad()
        x.grad = None

    return step


def model_step(config: MixerConfig, batch: int, width: int, length: int, device: torch.device) -> Callable[[], None]:
    """Return forward and backward of four layers with a head."""
    body = pre_norm(config, FeedForwardConfig(), norm=RMSNormConfig())
    plan = RepeatConfig(body=body, times=4)
    model = LanguageModelConfig(vocab=8192, width=width, context=length, plan=plan, norm=RMSNormConfig()).build()
    model.to(device)
    model.compute = torch.bfloat16
    ids = torch.randint(8192, (batch, length), device=device)

    def step() -> None:
        model.head.nll(model(ids), ids).mean().backward()
        model.zero_grad()

    return step


def exponent(lengths: list[int], seconds: list[float]) -> float:
    """Fit seconds = fixed + factor * length^exponent, with neither below zero, and return the exponent."""
    wanted = torch.ones(len(seconds), dtype=torch.float64)
    found = {}
    for power in (hundredth / 100 for hundredth in range(20, 301)):
        grown = torch.tensor([n**power / s for n, s in zip(lengths, seconds, strict=True)], dtype=torch.float64)
        fixed = torch.tensor([1 / s for s in seconds], dtype=torch.float64)
        for columns in ([fixed, grown], [grown]):
            basis = torch.stack(columns, dim=1)
            solved = torch.linalg.lstsq(basis, wanted[:, None]).solution
            if (solved >= 0).all():
                found[power] = float((basis @ solved - 1).square().sum())
                break
    return min(found, key=found.__getitem__)


def measure(given: argparse.Namespace) -> dict[str, object]:
    """Measure every mixer at every length, alone and in a model."""
    device = torch.device(given.device)
    lengths = [512 << i for i in range((given.longest // 512).bit_length())]
    found: dict[str, object] = {"lengths": lengths, "width": given.width, "batch": given.batch, "device": given.device}
    for form, make in (("mixer", mixer_step), ("model", model_step)):
        for name, config in mixers(given.width // 128 or 1).items():
            seconds, spread = [], []
            for length in lengths:
                times = seconds_of(make(config, given.batch, given.width, length, device), device)
                seconds.append(statistics.median(times))
                spread.append(statistics.stdev(times))
                print(f"{form:<6} {name:<32} {length:>6} {1e3 * seconds[-1]:>10.2f} ms", flush=True)
            slope = exponent(lengths, seconds)
            print(f"{form:<6} {name:<32} exponent {slope:.2f}", flush=True)
            found[f"{form}: {name}"] = {"seconds": seconds, "spread": spread, "exponent": slope}
            record(f"length/{form}/{name}", lengths=lengths, seconds=seconds, exponent=round(slope, 3))
    return found


def draw(found: dict[str, dict[str, list[float]]], lengths: list[float], path: Path) -> None:
    """Draw seconds against length, both in logarithms."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for panel, form in zip(panels, ("mixer", "model"), strict=True):
        for name, values in found.items():
            if name.startswith(form):
                label = f"{name.removeprefix(form + ': ')}: length^{values['exponent']:.2f}"
                panel.loglog(lengths, values["seconds"], marker="o", label=label, base=2)
        panel.set_title("one mixer" if form == "mixer" else "four layers and head")
        panel.set_xlabel("tokens in the row")
        panel.legend(fontsize=8)
    panels[0].set_ylabel("seconds, forward and backward")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure or draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--draw", type=Path)
    given = parser.parse_args()
    if given.draw is None:
        given.results.write_text(json.dumps(measure(given), indent=1))
        return
    found = json.loads(given.results.read_text())
    draw({k: v for k, v in found.items() if isinstance(v, dict)}, found["lengths"], given.draw)


if __name__ == "__main__":
    run_main(main)
