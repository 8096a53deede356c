"""Steps: one training step of ours as a run takes it, guard and all, for benchmarks that bring their own rows."""

from typing import Literal

import torch

from heddle.core.system import Hardware, enable_compile_cache
from heddle.models.networks import Model
from heddle.objectives import NextTokenConfig, ObjectiveConfig
from heddle.training.loop import Guard, GuardConfig, ModelWithLoss, ProcessGroup, Step
from heddle.training.optimizers import AdamWConfig


def our_step(
    model: Model,
    rows: int,
    hardware: Hardware,
    compiled: Literal["on", "graphs", "off"],
    objective: ObjectiveConfig | None = None,
) -> Step:
    """Return a step on so many rows with AdamW, clipped; compiled, it is one graph, replayed as one with `graphs`."""
    model.compute = None if hardware.dtype is torch.float32 else hardware.dtype
    losses = ModelWithLoss(model, NextTokenConfig() if objective is None else objective)
    if compiled != "off":
        enable_compile_cache()
        losses.compile(fullgraph=True, mode="reduce-overhead" if compiled == "graphs" else None)
    return Step(
        losses=losses,
        model=model,
        optimizers=AdamWConfig(learning_rate=3e-4).build(model),
        guard=Guard.start(GuardConfig(), hardware.device),
        average=None,
        processes=ProcessGroup(),
        seed=0,
        clip=1.0,
        micro_batch=rows,
        carried=[None],
    )
