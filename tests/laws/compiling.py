"""The trial behind the law of compiling: `python -m laws.compiling NAME...` prints one JSON line for each preset.

It runs in a process of its own, for the shape checks that tests switch on cannot be traced. Where there is a GPU and
`--cuda` is given, the graphs are compiled for it, kernels and all.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from laws.cases import CONTEXT, VOCAB, as_source, ids, own_presets, small_preset
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from heddle.data.rows import Batch
from heddle.models.networks import EncoderConfig, EncoderDecoderConfig
from heddle.nn.state import State
from heddle.objectives import (
    LinearSamplingConfig,
    MaskedTokenConfig,
    NextTokenConfig,
    ObjectiveConfig,
    ReplacedTokenConfig,
    SequenceConfig,
    SpanCorruptionConfig,
)
from heddle.training.loop import ModelWithLoss

STEPS = 5
DEVICE = torch.device("cuda" if "--cuda" in sys.argv else "cpu")
BACKEND = "inductor" if DEVICE.type == "cuda" else "aot_eager"
MASKED = MaskedTokenConfig(mask=1, vocab=VOCAB)
REPLACED = ReplacedTokenConfig(masked=MASKED)


def rows(number: int, **more: Any) -> Batch:
    """Draw a batch: other tokens and other weights for every number."""
    tokens = ids(2, CONTEXT + 1, seed=number)
    weights = torch.ones(2, CONTEXT)
    weights[1, CONTEXT - number % 3 :] = 0
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Batch(inputs, targets, weights, torch.arange(2) + number, **more)


def packed(number: int) -> Batch:
    """Draw rows of documents, cut in ever other places, from one document to three."""
    cuts = [[], [3], [8], [2, 5], [11]][number % 5]
    places = torch.arange(CONTEXT)
    documents = torch.stack([sum((places >= cut).long() for cut in which) for which in ([0, *cuts], [0, 4])])
    starts = torch.stack([(row[:, None] == row).long().argmax(1) for row in documents])
    return rows(number, documents=documents, positions=places - starts)


def pairs(number: int) -> Batch:
    """Draw targets with sources of unlike length."""
    return rows(number, source=ids(2, 9, seed=100 + number), source_lengths=torch.tensor([3 + number, 9]))


class Encoding(nn.Module):
    """An encoder under all of its outputs, where no objective of ours trains it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        labels = torch.zeros(2, dtype=torch.long, device=inputs.device)
        found = [self.model.nll(name, inputs, labels).sum() for name in self.model.outputs]
        return sum(found) if found else self.model(inputs).sin().sum()


def encoded(number: int, config: EncoderConfig) -> Tensor:
    """Draw what an encoder reads."""
    if config.embedding.reads == "frames":
        draw = torch.Generator().manual_seed(number)
        return torch.randn(2, CONTEXT, *config.embedding.item_shape, generator=draw)
    if config.vocab is not None:
        return ids(2, CONTEXT, seed=number)
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(number))


def with_source(model: Any, batch: Batch) -> Batch:
    """Return a batch whose source the model reads: ids, or features."""
    return dataclasses.replace(batch, source=as_source(model, batch.source))


def computation(config: Any) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return what is compiled, and how the loss of a step comes from it."""
    model = config.build(0)
    if isinstance(config, EncoderConfig) and "masked_token" not in model.outputs and config.generator is None:
        encoding = Encoding(model)
        return encoding, lambda number: encoding(encoded(number, config).to(DEVICE))
    objective: ObjectiveConfig = NextTokenConfig()
    draw: Callable[[int], Batch] = packed
    if isinstance(config, EncoderConfig) and config.generator is not None:
        objective, draw = REPLACED, lambda number: REPLACED.prepare(packed(number), seed=0)
    elif isinstance(config, EncoderConfig):
        objective, draw = MASKED, lambda number: MASKED.prepare(packed(number), seed=0)
    elif isinstance(config, EncoderDecoderConfig):
        objective, draw = SequenceConfig(), lambda number: with_source(model, pairs(number))
    losses = ModelWithLoss(model, objective)
    return losses, lambda number: losses(draw(number).to(DEVICE), None).total


def sampled(config: Any) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return a model that is fed a share of its own tokens, another at every step."""
    losses = ModelWithLoss(config.build(0), NextTokenConfig(sampling=LinearSamplingConfig(draw="best")))
    return (
        losses,
        lambda number: losses(packed(number).to(DEVICE), None, torch.tensor(number / 10, device=DEVICE)).total,
    )


def streams(config: Any) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return a recurrent model that carries its state from batch to batch."""
    losses = ModelWithLoss(config.build(0), NextTokenConfig())
    carried = [State.empty(2, 1, DEVICE)]

    def step(number: int) -> Tensor:
        loss = losses(
            rows(number).to(DEVICE), carried[0].reset(torch.tensor([number == 0, number == 2], device=DEVICE))
        )
        carried[0] = loss.carried.detach()
        return loss.total  # type: ignore[no-any-return]

    return losses, step


def lengths(config: Any) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return a model of pairs that are of other lengths in every batch."""
    losses = ModelWithLoss(config.build(0), SequenceConfig())

    def step(number: int) -> Tensor:
        batch, source = rows(number), ids(2, 5 + 4 * number % 8, seed=number)
        cut = [t[:, : 6 + 3 * number % 7].contiguous() for t in (batch.inputs, batch.targets, batch.weights)]
        real = torch.tensor([3, source.shape[1]])
        cut_batch = Batch(*cut, batch.rows, source=source, source_lengths=real).to(DEVICE)
        return losses(cut_batch, None).total  # type: ignore[no-any-return]

    return losses, step


def spans(config: Any) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return a model that learns hidden spans, others of rows of other lengths in every batch."""
    objective = SpanCorruptionConfig(z_loss=1e-4, sentinels=tuple(range(5)), end=6, start=6)
    losses = ModelWithLoss(config.build(0), objective)
    return losses, lambda number: losses(objective.prepare(rows(number), seed=0).to(DEVICE), None).total


MADE = {"lengths": lengths, "": computation, "spans": spans, "sampled": sampled, "streams": streams}


def gradients(module: nn.Module) -> list[Tensor]:
    """Take the gradients."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def apart(plain: Tensor, other: Tensor) -> float:
    """Return the greatest difference of two gradients, as a share of the greatest number where that is above one."""
    found = (plain - other).abs().max() / plain.abs().max().clamp(min=1)
    return found.item() if found.isfinite() else math.inf  # of what is no number, `max` would say nothing


def trial(made: Callable[[Any], tuple[nn.Module, Callable[[int], Tensor]]], config: Any) -> dict[str, Any]:
    """Compile as one graph; count the graphs after each step, and hold the gradients against those of plain code."""
    torch._dynamo.reset()
    torch._dynamo.config.capture_dynamic_output_shape_ops = True  # as training sets it
    plain, plain_loss = made(config)
    module, loss = made(config)
    for one in (plain, module):
        one.to(DEVICE)
    counter = CompileCounterWithBackend(BACKEND)
    module.compile(fullgraph=True, dynamic=made is lengths, backend=counter)
    graphs, worst = [], 0.0
    for number in range(STEPS):
        for step in (plain_loss, loss):
            torch.manual_seed(number)
            step(number).backward()
        graphs.append(counter.frame_count)
        worst = max(worst, *map(apart, gradients(plain), gradients(module)))
    return {"graphs": graphs, "apart": worst}


def main() -> None:
    """Try each name; what breaks a graph is named."""
    presets = own_presets()
    for name in (word for word in sys.argv[1:] if word != "--cuda"):
        how, _, preset = name.rpartition(":")
        made, config = MADE[how], small_preset(presets[preset])
        try:
            found = trial(made, config)
        except Exception as error:
            found = {"refused": f"{type(error).__name__}: {str(error).strip()[:2000]}"}
        print(json.dumps({"name": name} | found), flush=True)


if __name__ == "__main__":
    main()
