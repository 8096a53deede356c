"""Preparing: the model's scores -> the scores by which a choice is made; for draws, greedy and beams alike.

In this order: penalties; ids that stand for nothing, and stops before their time, are left out; then what a guide does
not allow.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from heddle.decoding.constraints import Constraint, apply_constraints
from heddle.decoding.sampling.filters import NEG_INF, Logits
from heddle.decoding.sampling.generation_config import GenerationConfig
from heddle.decoding.sampling.penalties import History, penalise


def process_logits(
    scores: Logits,
    config: GenerationConfig,
    new: int,
    history: History | None = None,
    constraints: Sequence[Constraint | None] = (),
) -> Logits:
    """Return the scores of rows that have so many new tokens; a row in which nothing is left is -inf throughout."""
    scores = penalise(scores, config.penalties, history)
    if config.vocab is not None and config.vocab < scores.shape[-1]:
        scores = pad(scores[..., : config.vocab], (0, scores.shape[-1] - config.vocab), value=NEG_INF)
    if config.stop and new < config.min_tokens:
        scores = scores.index_fill(-1, torch.tensor(config.stop, device=scores.device), NEG_INF)
    return (
        apply_constraints(scores, constraints) if any(constraint is not None for constraint in constraints) else scores
    )
