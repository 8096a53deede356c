"""Experts against the dense model of equal active FLOPs: tokens/s, MFU, balance and dropped tokens, in one run.

`python benchmarks/experts.py` is made for one GPU; `--tiny` runs anywhere in seconds and measures nothing of worth.
The balance may be set otherwise: `--balance load_loss weight=0.1`, `--balance bias gain=0.05`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from entry_point import run_main
from results import need_gpu, record
from torch import Tensor
from train_step import our_step

from heddle.core import encode, override, swap
from heddle.core.system import Hardware, choose_hardware, parse_yaml, peak_flops
from heddle.data.rows import Batch
from heddle.models import count_parameters, forward_flops
from heddle.models.networks import LanguageModel, LanguageModelConfig
from heddle.models.presets import preset
from heddle.nn.channels import (
    BiasLoadBalancingConfig,
    ExpertsConfig,
    GatedFeedForwardConfig,
    LoadBalancingConfig,
    LoadBalancingLossConfig,
    TokenChoiceConfig,
)
from heddle.training.loop import Step

BAR, EVEN = 0.6, 2.0  # of the dense model's MFU; most that the busiest expert may do, over the mean
BALANCES: dict[str, LoadBalancingConfig] = {"bias": BiasLoadBalancingConfig(), "load_loss": LoadBalancingLossConfig()}


@dataclass(frozen=True)
class Shape:
    """A model and a batch."""

    layers: int = 8
    width: int = 2048
    heads: int = 16
    hidden: int = 2816  # of one expert
    experts: int = 8
    top: int = 2
    vocab: int = 32_000
    batch: int = 16
    length: int = 2048
    steps: int = 123
    balance: LoadBalancingConfig = BALANCES["bias"]


TINY = Shape(layers=2, width=64, heads=2, hidden=64, vocab=256, batch=4, length=32, steps=12)


def configs(shape: Shape) -> dict[str, LanguageModelConfig]:
    """Return both models: the dense one is as wide inside as the experts that a token meets."""
    dense = preset("llama").config(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        hidden=shape.top * shape.hidden,
        vocab=shape.vocab,
        context=shape.length,
    )
    assert isinstance(dense, LanguageModelConfig)
    experts = ExpertsConfig(
        experts=shape.experts,
        expert=GatedFeedForwardConfig(hidden=shape.hidden),
        router=TokenChoiceConfig(top_k=shape.top),
        balance=shape.balance,
    )
    return {"dense": dense, "experts": swap(GatedFeedForwardConfig, lambda _: experts)(dense)}


@dataclass
class Runner:
    """One model in training, with what it has shown."""

    model: LanguageModel
    step: Step
    flops: int  # of a token in training
    speeds: list[float]
    loads: list[Tensor]
    dropped: list[Tensor]
    losses: list[Tensor]

    def take(self, batch: Batch, number: int) -> None:
        """Take a step."""
        report = self.step(batch, number, batch.inputs.numel())
        self.losses.append(report.loss)
        if "expert_load_imbalance" in report.metrics:
            self.loads.append(report.metrics["expert_load_imbalance"])
            self.dropped.append(report.metrics["expert_dropped"])


def runner(config: LanguageModelConfig, shape: Shape, hardware: Hardware, compiled: bool) -> Runner:
    """Build a model and its step, guard and all, as a run does."""
    with hardware.device:
        model = config.build()
    step = our_step(model, shape.batch, hardware, "on" if compiled else "off")
    return Runner(model, step, 3 * forward_flops(model, shape.length), [], [], [], [])


def batches(shape: Shape, device: torch.device) -> Callable[[int], Batch]:
    """Return a source of rows: words as frequent as in a language, each followed by one of a few."""
    draw = torch.Generator().manual_seed(0)
    weights = 1 / torch.arange(1, shape.vocab + 1, dtype=torch.float64)
    follow = torch.multinomial(weights, 4 * shape.vocab, replacement=True, generator=draw).view(shape.vocab, 4)

    def make(number: int) -> Batch:
        draw.manual_seed(number)
        words = [torch.multinomial(weights, shape.batch, replacement=True, generator=draw)]
        for turn in torch.randint(4, (shape.length, shape.batch), generator=draw):
            words.append(follow[words[-1], turn])
        ids = torch.stack(words, dim=1)
        rows = Batch(ids[:, :-1], ids[:, 1:], torch.ones(shape.batch, shape.length), torch.arange(shape.batch))
        return rows.to(device)

    return make


def wait(hardware: Hardware) -> None:
    """Let the device finish."""
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)


def measure(shape: Shape, hardware: Hardware, compiled: bool, turn: int = 5) -> dict[str, float]:
    """Train both, some steps each in turns, so that a busy machine slows both; return the numbers."""
    runners = {name: runner(config, shape, hardware, compiled) for name, config in configs(shape).items()}
    source = batches(shape, hardware.device)
    for number in range(3):
        for one in runners.values():
            one.take(source(number), number)
    for begin in range(3, shape.steps, turn):
        rows = [source(number) for number in range(begin, begin + turn)]
        for one in runners.values():
            wait(hardware)
            start = time.perf_counter()
            for i, batch in enumerate(rows):
                one.take(batch, begin + i)
            wait(hardware)
            one.speeds.append(turn * shape.batch * shape.length / (time.perf_counter() - start))
    numbers: dict[str, float] = {}
    for name, one in runners.items():
        speed = statistics.median(one.speeds)
        numbers |= {
            f"{name}_parameters": count_parameters(one.model),
            f"{name}_tokens_per_second": round(speed),
            f"{name}_mfu": round(speed * one.flops / peak_flops(hardware), 4),
            f"{name}_loss": round(one.losses[-1].item(), 4),
        }
    routed = runners["experts"]
    half = len(routed.loads) // 2
    numbers["balance"] = round(torch.stack(routed.loads[half:]).mean().item(), 3)
    numbers["balance_first"] = round(routed.loads[0].item(), 3)
    numbers["dropped"] = torch.stack(routed.dropped).max().item()
    numbers["ratio"] = round(numbers["experts_mfu"] / max(numbers["dense_mfu"], 1e-9), 3)
    return numbers


def main() -> None:
    """Measure, print, record; fail when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--balance", choices=BALANCES, default="bias")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="of the balance")
    words = parser.parse_intermixed_args()
    need_gpu(words.tiny)
    hardware = choose_hardware()
    balance = BALANCES[words.balance]
    for key, _, value in (change.partition("=") for change in words.changes):
        balance = override(balance, key, parse_yaml(value))
    shape = replace(TINY if words.tiny else Shape(), balance=balance)
    given = {"steps": words.steps, "batch": words.batch, "layers": words.layers}
    shape = replace(shape, **{name: number for name, number in given.items() if number})
    numbers = measure(shape, hardware, compiled=not words.eager)
    verdict = "pass" if numbers["ratio"] >= BAR else "MISSED"
    print(
        f"experts: MFU {numbers['experts_mfu']:.1%} against {numbers['dense_mfu']:.1%} dense, ratio "
        f"{numbers['ratio']:.2f} (bar {BAR}: {verdict}); busiest expert {numbers['balance']:.2f} of the mean, "
        f"{numbers['dropped']:.1%} dropped; {numbers}",
        flush=True,
    )
    if words.tiny:
        return
    report = {"balance_config": encode(balance), "compiled": not words.eager}
    record(f"experts {shape.experts} top {shape.top}, {words.balance}", **numbers, **report)
    if numbers["ratio"] < BAR or numbers["balance"] > EVEN or numbers["dropped"] > 0:
        raise SystemExit("a bar is missed")


if __name__ == "__main__":
    run_main(main)
