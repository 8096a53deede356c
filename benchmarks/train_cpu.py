"""CPU training against a plain eager float32 GPT of the same shape, in one run, in turns."""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from baselines import PlainGPT
from entry_point import run_main
from results import record
from train_step import our_step

from heddle.core.system import Hardware, choose_hardware
from heddle.data.rows import Batch
from heddle.models.presets import build


@dataclass(frozen=True)
class Shape:
    """A model and a batch."""

    name: str
    layers: int
    width: int
    heads: int
    vocab: int
    batch: int
    length: int
    bar: float  # the ratio that we promise
    compile: bool


SHAPES = [
    Shape("6x384", 6, 384, 6, 4096, 16, 256, 2.0, True),
    Shape("4x128", 4, 128, 4, 65, 12, 64, 1.0, False),
]


def plain(shape: Shape, ids: torch.Tensor) -> Callable[[], None]:
    """Return one step of the peer."""
    model = PlainGPT(shape.layers, shape.width, shape.heads, shape.vocab, shape.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        model(ids[:, :-1], ids[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(shape: Shape, ids: torch.Tensor, hardware: Hardware) -> Callable[[], None]:
    """Return one step of a run of ours, guard and all."""
    model = build(
        "gpt2", layers=shape.layers, width=shape.width, heads=shape.heads, vocab=shape.vocab, context=shape.length
    )
    step = our_step(model, shape.batch, hardware, "on" if shape.compile else "off")
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    batch = Batch(inputs, targets, torch.ones(inputs.shape), torch.arange(len(ids)))
    return lambda: void(step(batch, 0, inputs.numel()))


def void(_: object) -> None:
    """Drop a value."""


def measure(shape: Shape, seconds: float = 40.0) -> float:
    """Time both, step by step in turns, so that a busy machine slows both; print and record the ratio of medians."""
    torch.manual_seed(0)
    ids = torch.randint(0, shape.vocab, (shape.batch, shape.length + 1))
    hardware = choose_hardware("cpu")
    start = time.perf_counter()
    steps = {"plain": plain(shape, ids), "ours": ours(shape, ids, hardware)}
    if shape.compile:
        steps["ours, not compiled"] = ours(replace(shape, compile=False), ids, hardware)
    for step in steps.values():
        step(), step()
    warm = time.perf_counter() - start
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for name, step in steps.items():
            before = time.perf_counter()
            step()
            speeds[name].append(shape.batch * shape.length / (time.perf_counter() - before))
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    ratio = middle["ours"] / middle["plain"]
    spread = {name: [round(x) for x in statistics.quantiles(v, n=4)[::2]] for name, v in speeds.items()}
    others = {name: round(m / middle["plain"], 3) for name, m in middle.items() if name not in ("plain", "ours")}
    verdict = "pass" if ratio >= shape.bar else "MISSED"
    print(
        f"train {shape.name} (median, quartiles): plain eager fp32 {middle['plain']:,.0f} tokens/s {spread['plain']}, "
        f"ours {middle['ours']:,.0f} {spread['ours']}, ratio {ratio:.2f} (bar {shape.bar}: {verdict}), "
        f"warm-up {warm:.0f} s, {hardware.dtype}, {'compiled' if shape.compile else 'not compiled'}; others {others}",
        flush=True,
    )
    record(
        f"cpu train {shape.name}",
        plain=round(middle["plain"]),
        ours=round(middle["ours"]),
        ratio=round(ratio, 3),
        others=others,
        compiled=shape.compile,
        spread=spread,
        bar=shape.bar,
        warm_up=round(warm, 1),
    )
    return ratio


def main() -> None:
    """Measure every shape; fail when a bar is missed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    missed = [shape.name for shape in SHAPES if measure(shape) < shape.bar]
    if missed:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


if __name__ == "__main__":
    run_main(main)
