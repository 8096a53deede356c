"""Contrastive search: of the likely tokens, one that says something new (Su et al. 2022).

Each candidate is read on trial. Its worth is (1 - contrast) * probability - contrast * likeness, where likeness is the
largest cosine between its last vector and that of any token before it, prompt included. Of equals, the more probable
wins.
"""

import dataclasses

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from heddle.core import UsageError
from heddle.core.shapes import Stream
from heddle.decoding.runtime import FinishReason, Prefill, read_all, with_capacity
from heddle.decoding.sampling import NEG_INF, NO_TOKEN, ContrastiveSearch, Logits, NextTokens, RowPosition, check_logits
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import State


def shortened(start: Prefill, model: AutoregressiveModel) -> Prefill:
    """Return an opening whose rows end where the model can still read what they end with, as the search must."""
    last = model.max_length
    if last is None:
        return start
    for prompt in start.prompts:
        if len(prompt) >= last:
            raise UsageError(f"prompt: want less than the {last} positions of the model, for contrast reads on trial")
    cuts = tuple(
        FinishReason.CONTEXT if end > last else cut for end, cut in zip(start.ends, start.cuts, strict=True)
    )  # one token sooner than others, who need not read their last
    return dataclasses.replace(start, ends=tuple(min(end, last) for end in start.ends), cuts=cuts)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """What came of reading the candidates: which was chosen of each row, and all that was read."""

    best: Int[Tensor, " rows"]  # among all candidates of all rows
    vectors: Float[Tensor, "candidates width"]
    state: State


class ContrastiveDecoder:
    """Rows that grow by contrastive search: a `Walk`."""

    def __init__(self, model: AutoregressiveModel, start: Prefill, choice: ContrastiveSearch) -> None:
        self.model, self.choice = model, choice
        self.most = max(start.ends)
        vectors, lengths, self.state = read_all(model, start, start.prompts)
        places = torch.arange(vectors.shape[1], device=vectors.device)
        self.real: Bool[Tensor, "rows length"] = places < lengths[:, None]
        self.directions: Stream = _direction(vectors)
        self.scores: Logits = model.head.logits(vectors[torch.arange(len(lengths)), lengths - 1])
        self.trial: _Trial | None = None

    def choose(self, scores: Logits, places: list[RowPosition]) -> NextTokens:
        """Return the id of the best worth in each row."""
        check_logits(scores)
        odds, ids = scores.softmax(-1).topk(min(self.choice.top_k, scores.shape[-1]))
        rows, k = ids.shape
        each = torch.arange(rows, device=ids.device).repeat_interleave(k)
        length = max(place.length for place in places)
        state = with_capacity(self.model, self.state.select(each), length + 1, self.most)
        vectors, state = self.model.step(ids.reshape(-1, 1), state)
        likeness = _direction(vectors).view(rows, k, -1) @ self.directions.mT
        likeness = likeness.masked_fill(~self.real[:, None], NEG_INF).amax(-1)
        contrast = self.choice.contrast
        worth = (1 - contrast) * odds.to(likeness.dtype) - contrast * likeness
        best = worth.masked_fill(odds == 0, NEG_INF).argmax(-1)  # what has no odds is never said
        self.trial = _Trial(best + torch.arange(rows, device=ids.device) * k, vectors[:, -1], state)
        nothing = scores.amax(-1) == NEG_INF
        return ids.gather(1, best[:, None])[:, 0].masked_fill(nothing, NO_TOKEN)

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        """Go on with the rows that are kept, by what was read of them on trial."""
        assert self.trial is not None
        best, directions, real = self.trial.best, self.directions, self.real
        if kept is not None:
            best, directions, real = best[kept], directions[kept], real[kept]
        vectors = self.trial.vectors[best]
        self.state = self.trial.state.select(best)
        self.directions = torch.cat((directions, _direction(vectors)[:, None]), 1)
        self.real = torch.cat((real, real.new_ones(len(real), 1)), 1)
        return self.model.head.logits(vectors)


def _direction(vectors: Tensor) -> Tensor:
    return normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
