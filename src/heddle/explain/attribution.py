"""Attribution: how much a prediction depends on each token, by four methods, also why one prediction and not another.

Gradient x input (Shrikumar et al. 2016), integrated gradients (Sundararajan et al. 2017), occlusion (Zeiler & Fergus
2014) and attention rollout (Abnar & Zuidema 2020). The first three explain the log-probability of the target, or its
difference from another one's; their input is the embedded token, their baseline the zero vector. Rollout knows no
target: it follows the attention weights alone.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import eval_mode
from heddle.explain.attention import AttentionObserver
from heddle.explain.options import ExplainOptions
from heddle.explain.reading import CHUNK, PairReading, Reading, Side, replaced_embeddings
from heddle.explain.watch import Section, modules_of, observe
from heddle.nn.stack import Block

MAX_STEPS = 1024  # points on the path of integrated gradients
COMPLETE = 1e-3  # how far the sum of integrated gradients may be from the difference that it explains

Embedded = dict[Side, Tensor]  # by side, [rows, length, width]
Score = Callable[[int], Tensor]  # of several equal rows


@dataclass(frozen=True)
class Attribution(Section):
    """What each token of each side contributes to a target, by method.

    completeness: how far the sum of integrated gradients is from the score minus that of the baseline.
    """

    target: str
    instead: str | None
    score: float  # log-probability of the target in nats, or its difference from that of the other
    methods: Mapping[str, Mapping[str, tuple[float, ...]]]  # by method and side
    completeness: float
    steps: int
    refused: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        methods = {name: {side: list(values) for side, values in one.items()} for name, one in self.methods.items()}
        return {
            "target": self.target,
            "instead": self.instead,
            "score": self.score,
            "completeness": self.completeness,
            "steps": self.steps,
            "methods": methods,
            "refused": dict(self.refused),
        }


def attribution(reading: Reading, options: ExplainOptions) -> Attribution:
    """Return the attributions of a target to the tokens before it, by four methods."""
    target = reading.target(options.target)
    other = None if options.instead is None else reading.target(options.instead)
    score = score_of(reading, target, other)
    with eval_mode(reading.model), frozen(reading):
        embedded = embed(reading)
        with torch.no_grad():
            whole = float(score(1)[0])
        integrated, steps, gap = integrated_gradients(embedded, score, options.steps)
        methods = {
            "gradient_x_input": gradient_x_input(embedded, score),
            "integrated_gradients": integrated,
            "occlusion": occlusion(embedded, score, whole),
        }
    refused: dict[str, str] = {}
    try:
        methods["attention_rollout"] = attention_rollout(reading)
    except UsageError as error:
        refused["attention_rollout"] = str(error)
    named = {method: {side.name: tuple(v.tolist()) for side, v in one.items()} for method, one in methods.items()}
    against = None if other is None else reading.name_target(other)
    return Attribution(reading.name_target(target), against, whole, named, gap, steps, refused)


def score_of(reading: Reading, target: Sequence[int], other: Sequence[int] | None) -> Score:
    """Return the score that is explained: a log-probability, or the difference of two."""

    def score(rows: int) -> Tensor:
        own = reading.logprob(target, rows)
        return own if other is None else own - reading.logprob(other, rows)

    return score


def embed(reading: Reading) -> Embedded:
    """Return the embedded tokens of each side, as the embedding gives them to the positions and layers."""
    found: Embedded = {}
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for side in reading.sides:

            def keep(_module: object, _inputs: object, output: Tensor, side: Side = side) -> None:
                found.setdefault(side, output.detach().clone())

            hooks.callback(side.tower.embedding.register_forward_hook(keep).remove)
        reading.forward()
    return found


@contextlib.contextmanager
def frozen(reading: Reading) -> Any:
    """Switch off the gradients of the weights: those of the inputs alone are wanted."""
    trained = [weight for weight in reading.model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


def gradients_at(points: Embedded, score: Score) -> Embedded:
    """Return the gradient of the score by the embedded tokens of each row."""
    leaves = {side: vectors.detach().requires_grad_() for side, vectors in points.items()}
    rows = len(next(iter(leaves.values())))
    with torch.enable_grad(), replaced_embeddings(leaves):
        total = score(rows).sum()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {side: torch.zeros_like(leaf) if grad is None else grad for (side, leaf), grad in pairs}


def gradient_x_input(embedded: Embedded, score: Score) -> dict[Side, Tensor]:
    """Return gradient · vector for each token."""
    gradients = gradients_at(embedded, score)
    return {side: (gradients[side] * vectors).sum(-1)[0] for side, vectors in embedded.items()}


def integrated_gradients(embedded: Embedded, score: Score, steps: int) -> tuple[dict[Side, Tensor], int, float]:
    """Return the integral of the gradient from zero to the vectors, times the vectors; the points are doubled until
    the sum over tokens is what it must be (completeness), or there are too many.
    """
    zeros = {side: torch.zeros_like(vectors) for side, vectors in embedded.items()}
    with torch.no_grad():
        with replaced_embeddings(zeros):
            baseline = score(1)[0]
        difference = float(score(1)[0] - baseline)
    while True:
        found = path_integral(embedded, score, steps)
        gap = abs(float(sum(values.double().sum() for values in found.values())) - difference)
        if gap <= COMPLETE / 2 or steps * 2 > MAX_STEPS:
            return found, steps, gap
        steps *= 2


def path_integral(embedded: Embedded, score: Score, steps: int) -> dict[Side, Tensor]:
    """Return the path integral by Gauss-Legendre quadrature with this many points."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    length = sum(vectors.shape[1] for vectors in embedded.values())
    size, totals = max(1, CHUNK // length), {side: torch.zeros_like(vectors[0]) for side, vectors in embedded.items()}
    for first in range(0, steps, size):
        rows = slice(first, first + size)
        like = next(iter(embedded.values()))
        shares = torch.tensor((points[rows] + 1) / 2, dtype=like.dtype, device=like.device)[:, None, None]
        measure = torch.tensor(weights[rows] / 2, dtype=like.dtype, device=like.device)[:, None, None]
        gradients = gradients_at({side: vectors * shares for side, vectors in embedded.items()}, score)
        for side, gradient in gradients.items():
            totals[side] += (gradient * measure).sum(0)
    return {side: (totals[side] * vectors[0]).sum(-1) for side, vectors in embedded.items()}


@torch.no_grad()
def occlusion(embedded: Embedded, score: Score, whole: float) -> dict[Side, Tensor]:
    """Return by how much the score falls when a token's vector is set to zero."""
    found: dict[Side, Tensor] = {}
    for side, vectors in embedded.items():
        length = vectors.shape[1]
        size, losses = max(1, CHUNK // max(length, 1)), list[Tensor]()
        for first in range(0, length, size):
            places = torch.arange(first, min(length, first + size), device=vectors.device)
            rows = vectors.expand(len(places), -1, -1).clone()
            rows[torch.arange(len(places), device=vectors.device), places] = 0
            with replaced_embeddings({side: rows}):
                losses.append(whole - score(len(places)))
        found[side] = torch.cat(losses)
    return found


def attention_rollout(reading: Reading) -> dict[Side, Tensor]:
    """Return how much of each token reaches the last place, through the mean attention of all layers and residuals."""
    if isinstance(reading, PairReading):
        raise UsageError("attention_rollout: want one stack of self-attention, got an encoder-decoder")
    observer, side = AttentionObserver(reading), reading.main
    observe(reading, [observer])
    layers = sum(1 for _ in modules_of(side, Block))
    maps = observer.maps
    if len(maps) < layers or any(one.weights.shape[1:] != (len(side.ids), len(side.ids)) for one in maps):
        raise UsageError("attention_rollout: want attention in every layer, on rows of one length, got other layers")
    flow = torch.eye(len(side.ids), dtype=maps[0].weights.dtype)
    for one in maps:
        mixed = one.weights.mean(0) + torch.eye(len(side.ids), dtype=flow.dtype)
        flow = (mixed / mixed.sum(-1, keepdim=True)) @ flow
    return {side: flow[-1]}
