"""Logits processor: penalties, banned ids, a minimum length and constraints, before any strategy chooses.

They apply in this order: penalties and bias; ids that no token stands for, and stop ids before `min_tokens`, become
-inf; with `forced_end`, all but the end as the last of `max_tokens`; then what a constraint does not allow.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from heddle.decoding.constraints import Constraint, apply_constraints
from heddle.decoding.generation.generation_config import GenerationConfig
from heddle.decoding.sampling import NEG_INF, History, Logits, apply_penalties


def process_logits(
    logits: Logits,
    config: GenerationConfig,
    new: int,
    history: History | None = None,
    constraints: Sequence[Constraint | None] = (),
) -> Logits:
    """Return the logits of rows that have `new` new tokens; all are -inf in a row where no token is allowed."""
    logits = apply_penalties(logits, config.penalties, history)
    if config.vocab is not None and config.vocab < logits.shape[-1]:
        logits = pad(logits[..., : config.vocab], (0, logits.shape[-1] - config.vocab), value=NEG_INF)
    if config.stop and new < config.min_tokens:
        logits = logits.index_fill(-1, torch.tensor(config.stop, device=logits.device), NEG_INF)
    if config.forced_end and config.stop and new == config.max_tokens - 1:
        logits = torch.full_like(logits, NEG_INF).index_fill(-1, torch.tensor(config.stop, device=logits.device), 0.0)
    constrained = any(constraint is not None for constraint in constraints)
    return apply_constraints(logits, constraints) if constrained else logits
