"""Attribution: how much a prediction depends on each token, by four methods, also why one prediction and not another.

Gradient x input (Shrikumar et al. 2016), integrated gradients (Sundararajan et al. 2017), occlusion (Zeiler & Fergus
2014) and attention rollout (Abnar & Zuidema 2020). The first three explain the log-probability of the target, or its
difference from another one's; their input is the embedded token, their baseline the zero vector. Rollout knows no
target: it follows the attention weights alone.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import eval_mode
from heddle.explain.attribution.integrated_gradients import (
    COMPLETE,
    Embedded,
    Score,
    gradients_at,
    integrated_gradients,
)
from heddle.explain.inputs import (
    CHUNK,
    ExplainOptions,
    PairReading,
    Reading,
    Section,
    TokenSequence,
    modules_of,
    observe,
    replaced_embeddings,
)
from heddle.explain.observers import AttentionObserver
from heddle.nn.quantization import is_quantized
from heddle.nn.stack import Block


@dataclass(frozen=True)
class Attribution(Section):
    """What each token of each sequence contributes to a target, by method.

    steps: points at which integrated gradients needed the gradient.
    completeness: how far the sum of integrated gradients is from the score minus that of the baseline.
    """

    target: str
    instead: str | None
    score: float  # log-probability of the target in nats, or its difference from that of the other
    methods: Mapping[str, Mapping[str, tuple[float, ...]]]  # by method and sequence
    completeness: float | None  # None: it was not computed
    steps: int
    refused: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        methods = {
            name: {sequence: list(values) for sequence, values in one.items()} for name, one in self.methods.items()
        }
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
    methods: dict[str, dict[TokenSequence, Tensor]] = {}
    refused: dict[str, str] = {}
    with eval_mode(reading.model), frozen(reading):
        embedded = embed(reading)
        with torch.no_grad():
            whole = float(score(1)[0])
        steps, gap = _by_gradients(reading, embedded, score, options.steps, (methods, refused))
        methods["occlusion"] = occlusion(embedded, score, whole)
    try:
        methods["attention_rollout"] = attention_rollout(reading)
    except UsageError as error:
        refused["attention_rollout"] = str(error)
    named = {
        method: {sequence.name: tuple(v.tolist()) for sequence, v in one.items()} for method, one in methods.items()
    }
    against = None if other is None else reading.name_target(other)
    return Attribution(reading.name_target(target), against, whole, named, gap, steps, refused)


def _by_gradients(
    reading: Reading, embedded: Embedded, score: Score, steps: int, found: tuple[dict[str, Any], dict[str, str]]
) -> tuple[int, float | None]:
    """Add both methods that need gradients, or their refusals; return the points of the path, and the gap."""
    methods, refused = found
    if is_quantized(reading.model):
        for name in ("gradient_x_input", "integrated_gradients"):
            refused[name] = f"{name}: want weights with gradients, such as --weights float32, got quantized ones"
        return 0, None
    methods["gradient_x_input"] = gradient_x_input(embedded, score)
    integrated, points, gap = integrated_gradients(embedded, score, steps)
    if gap <= COMPLETE:
        methods["integrated_gradients"] = integrated
    else:
        jump = f"the score jumps on the path from zeros, so that {gap:.3g} nats belong to no token"
        refused["integrated_gradients"] = f"integrated_gradients: want a smooth path, but {jump}"
    return points, gap


def score_of(reading: Reading, target: Sequence[int], other: Sequence[int] | None) -> Score:
    """Return the score that is explained: a log-probability, or the difference of two."""

    def score(rows: int) -> Tensor:
        own = reading.logprob(target, rows)
        return own if other is None else own - reading.logprob(other, rows)

    return score


def embed(reading: Reading) -> Embedded:
    """Return the embedded tokens of each sequence, as the embedding gives them to the positions and layers."""
    found: Embedded = {}
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for sequence in reading.sequences:

            def keep(_module: object, _inputs: object, output: Tensor, sequence: TokenSequence = sequence) -> None:
                found.setdefault(sequence, output.detach().clone())

            hooks.callback(sequence.tower.embedding.register_forward_hook(keep).remove)
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


def gradient_x_input(embedded: Embedded, score: Score) -> dict[TokenSequence, Tensor]:
    """Return gradient · vector for each token."""
    gradients = gradients_at(embedded, score)
    return {sequence: (gradients[sequence] * vectors).sum(-1)[0] for sequence, vectors in embedded.items()}


@torch.no_grad()
def occlusion(embedded: Embedded, score: Score, whole: float) -> dict[TokenSequence, Tensor]:
    """Return by how much the score falls when a token's vector is set to zero."""
    found: dict[TokenSequence, Tensor] = {}
    for sequence, vectors in embedded.items():
        length = vectors.shape[1]
        size, losses = max(1, CHUNK // max(length, 1)), list[Tensor]()
        for first in range(0, length, size):
            places = torch.arange(first, min(length, first + size), device=vectors.device)
            rows = vectors.expand(len(places), -1, -1).clone()
            rows[torch.arange(len(places), device=vectors.device), places] = 0
            with replaced_embeddings({sequence: rows}):
                losses.append(whole - score(len(places)))
        found[sequence] = torch.cat(losses)
    return found


def attention_rollout(reading: Reading) -> dict[TokenSequence, Tensor]:
    """Return how much of each token reaches the last place, through the mean attention of all layers and residuals."""
    if isinstance(reading, PairReading):
        raise UsageError("attention_rollout: want one stack of self-attention, got an encoder-decoder")
    observer, sequence = AttentionObserver(reading), reading.main
    observe(reading, [observer])
    layers = sum(1 for _ in modules_of(sequence, Block))
    maps = [one for one in observer.maps if one.kind == "self"]
    if len(maps) < layers or any(one.weights.shape[1:] != (len(sequence.ids), len(sequence.ids)) for one in maps):
        raise UsageError("attention_rollout: want attention in every layer, on rows of one length, got other layers")
    flow = torch.eye(len(sequence.ids), dtype=maps[0].weights.dtype)
    for one in maps:
        mixed = one.weights.mean(0) + torch.eye(len(sequence.ids), dtype=flow.dtype)
        flow = (mixed / mixed.sum(-1, keepdim=True)) @ flow
    return {sequence: flow[-1]}
