"""Odds: how probable the chosen tokens were, and which others were, by the model's own scores.

Neither temperature, filters, penalties nor guides have a say in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.decoding.runtime import Request, eval_mode, prepare_prefill, read_all
from heddle.decoding.sampling import GenerationConfig, Logits
from heddle.models.networks import AutoregressiveModel

Alternatives = tuple[tuple[int, float], ...]  # (id, log-probability), best first


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of one chosen token in nats, and those of the most probable tokens in its place."""

    logprob: float
    alternatives: Alternatives = ()


def chosen_logprobs(scores: Logits, chosen: Tensor, count: int | None) -> list[TokenLogprobs | None]:
    """Return the odds of each row's chosen id, with so many alternatives; no count: none at all."""
    if count is None:
        return [None] * len(scores)
    logprobs = scores.double().log_softmax(-1)
    taken = logprobs.gather(-1, chosen.clamp(min=0)[:, None])[:, 0]  # of a row that took none, nobody asks
    best, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    tops = zip(ids.tolist(), best.tolist(), strict=True)
    return [TokenLogprobs(one, tuple(zip(*top, strict=True))) for one, top in zip(taken.tolist(), tops, strict=True)]


@torch.inference_mode()
def recompute_logprobs(
    model: AutoregressiveModel, found: Sequence[tuple[Request, Sequence[int]]], config: GenerationConfig
) -> list[list[TokenLogprobs]]:
    """Return the odds of all new ids of each request, read anew at once."""
    start = prepare_prefill(model, [request for request, _ in found], config)
    rows = [[*prompt, *ids[:-1]] for prompt, (_, ids) in zip(start.prompts, found, strict=True)]
    found_odds = []
    with eval_mode(model):
        vectors, _, _ = read_all(model, start, rows)
        for row, prompt, (_, ids) in zip(vectors, start.prompts, found, strict=True):
            scores = model.head.logits(row[len(prompt) - 1 : len(prompt) - 1 + len(ids)])
            each = chosen_logprobs(
                scores, torch.tensor(ids, dtype=torch.long, device=scores.device), config.alternatives
            )
            found_odds.append([one for one in each if one is not None])
    return found_odds
