"""Loss curves of GPT-2's shape on one GPU: the fast path and the fast path in eight bits beside the plain one.

`python benchmarks/h200_curves.py` takes 500 steps of each on the same fresh rows from the same start; `--tiny` runs
anywhere. Plain means that nothing is compiled and the loss sees whole logits.
"""

import argparse
import statistics
from dataclasses import dataclass, replace
from functools import partial

import torch
from entry_point import run_main
from h200_train import CASES, TINY, Case, forget, measuring, ours
from results import record

from heddle.core.system import Hardware
from heddle.models.networks import LanguageModel
from heddle.nn.ends import Head

ROWS = 16
NEAR = 0.01  # of the plain loss, which the compiled one keeps to


@dataclass(frozen=True)
class Curve:
    """The losses of a path, and how many of its steps the guard skipped."""

    losses: list[float]
    skipped: int

    def apart(self, other: "Curve") -> list[float]:
        """Return the differences from another curve in the second half, as shares of it."""
        shares = [abs(a - b) / b for a, b in zip(self.losses, other.losses, strict=True)]
        return shares[len(shares) // 2 :]


def drawn(path: str, case: Case, hardware: Hardware, steps: int) -> Curve:
    """Train one path."""
    take = ours(replace(case, float8=path == "float8"), hardware, compiled=path != "plain", batches=steps)
    if path == "plain":
        assert isinstance(take.model, LanguageModel)
        take.model.head.weighted_nll = partial(Head.weighted_nll, take.model.head)  # type: ignore[method-assign]
    losses = [take() for _ in range(steps)]
    return Curve([loss.item() for loss in losses], take.skipped)


def main() -> None:
    """Draw the curves; fail when the compiled one leaves the plain one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tiny", action="store_true")
    words = parser.parse_args()
    if words.steps < 2:
        parser.error("--steps: want 2 or more")
    torch.set_float32_matmul_precision("high")
    hardware, case = measuring(words.tiny), TINY["gpt2"] if words.tiny else replace(CASES["gpt2"], batch=ROWS)
    curves = {}
    for path in ("plain", "compiled", "float8"):
        curves[path] = drawn(path, case, hardware, words.steps)
        forget(hardware)
    plain, means = curves["plain"], {}
    for path in ("compiled", "float8"):
        apart = curves[path].apart(plain)
        means[path] = statistics.mean(apart)
        print(
            f"{path}, {words.steps} steps: loss {curves[path].losses[-1]:.4f} (plain {plain.losses[-1]:.4f}), in the"
            f" second half {means[path]:.2%} apart on average, {max(apart):.2%} at most",
            flush=True,
        )
    skipped = {path: curve.skipped for path, curve in curves.items()}
    print(f"steps that the guard skipped: {skipped}")
    every = max(1, words.steps // 50)
    points = {path: curve.losses[::every] for path, curve in curves.items()}
    if not words.tiny:
        record("curves gpt2", steps=words.steps, apart=means, skipped=skipped, **points)
    if means["compiled"] > NEAR or any(skipped.values()):
        raise SystemExit("the curves leave each other")


if __name__ == "__main__":
    run_main(main)
