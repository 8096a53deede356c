"""Contrastive search: of the most probable tokens, one that is unlike what came before (SimCTG, Su et al. 2022).

Each candidate is read on trial. Its score is (1 - contrast) * probability - contrast * similarity, where similarity is
the largest cosine between its last hidden state and that of any token before it, prompt included. Ties go to the more
probable candidate.
"""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from heddle.core import ConfigError, UsageError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.decoding.generation.decoders import StepDecoder
from heddle.decoding.generation.generation_config import GenerationConfig
from heddle.decoding.generation.steps import StepStrategy
from heddle.decoding.runtime import CaptureMode, FinishReason, Prefill, longest_row, read_all, with_capacity
from heddle.decoding.sampling import NEG_INF, NO_TOKEN, Logits, NextTokens, RowPosition, check_logits
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import State


@part("contrastive")
class ContrastiveSearch(StepStrategy):
    """Contrastive search: of the top_k tokens, the one with the best balance of probability and novelty."""

    compiles = False

    top_k: int = 4
    contrast: float = 0.6  # weight of novelty: 0 is greedy search, 1 ignores probability

    def __post_init__(self) -> None:
        check_at_least(1, top_k=self.top_k)
        if not 0 <= self.contrast <= 1:
            raise ConfigError("contrast", want="0 to 1", got=self.contrast)

    def check(self, config: GenerationConfig) -> None:
        """Refuse several samples."""
        if config.samples > 1:
            raise ConfigError("samples", want="1 with contrastive search, which does not sample", got=config.samples)

    def limit(self, model: AutoregressiveModel, prefill: Prefill) -> Prefill:
        """End rows where the model can still read their last token, one token sooner than other strategies."""
        last = longest_row(model)
        if last is None:
            return prefill
        for prompt in prefill.prompts:
            if len(prompt) >= last:
                raise UsageError(f"prompt: want fewer tokens than the model's {last} positions with contrastive search")
        pairs = zip(prefill.ends, prefill.end_reasons, strict=True)
        reasons = tuple(FinishReason.CONTEXT if end > last else reason for end, reason in pairs)
        return dataclasses.replace(prefill, ends=tuple(min(end, last) for end in prefill.ends), end_reasons=reasons)

    def decoder(
        self, model: AutoregressiveModel, prefill: Prefill, config: GenerationConfig, mode: CaptureMode | None
    ) -> StepDecoder:
        return ContrastiveDecoder(model, prefill, self)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """The result of reading all candidates: which was chosen in each row, and all that was read."""

    best: Int[Tensor, " rows"]  # among all candidates of all rows
    vectors: Float[Tensor, "candidates width"]
    state: State


class ContrastiveDecoder(StepDecoder):
    """Decodes by contrastive search."""

    def __init__(self, model: AutoregressiveModel, prefill: Prefill, search: ContrastiveSearch) -> None:
        self.model, self.search = model, search
        self.max_length = max(prefill.ends)
        vectors, lengths, self.state = read_all(model, prefill, prefill.prompts)
        positions = torch.arange(vectors.shape[1], device=vectors.device)
        self.real: Bool[Tensor, "rows length"] = positions < lengths[:, None]
        self.directions: Stream = _direction(model.head.vectors(vectors))
        self.logits: Logits = model.head.logits(vectors[torch.arange(len(lengths)), lengths - 1])
        self.trial: _Trial | None = None

    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        """Return the id of the best candidate in each row."""
        check_logits(logits)
        probs, ids = logits.softmax(-1).topk(min(self.search.top_k, logits.shape[-1]))
        rows, k = ids.shape
        each = torch.arange(rows, device=ids.device).repeat_interleave(k)
        length = max(position.length for position in positions)
        state = with_capacity(self.model, self.state.select(each), length + 1, self.max_length)
        vectors, state = self.model.step(ids.reshape(-1, 1), state)
        similarity = _direction(self.model.head.vectors(vectors)).view(rows, k, -1) @ self.directions.mT
        similarity = similarity.masked_fill(~self.real[:, None], NEG_INF).amax(-1)
        contrast = self.search.contrast
        scores = (1 - contrast) * probs.to(similarity.dtype) - contrast * similarity
        best = scores.masked_fill(probs == 0, NEG_INF).argmax(-1)  # a token of probability 0 is never chosen
        self.trial = _Trial(best + torch.arange(rows, device=ids.device) * k, vectors[:, -1], state)
        nothing = logits.amax(-1) == NEG_INF
        return ids.gather(1, best[:, None])[:, 0].masked_fill(nothing, NO_TOKEN)

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        """Continue the kept rows with what was read of them on trial."""
        assert self.trial is not None
        best, directions, real = self.trial.best, self.directions, self.real
        if kept is not None:
            best, directions, real = best[kept], directions[kept], real[kept]
        vectors = self.trial.vectors[best]
        self.state = self.trial.state.select(best)
        self.directions = torch.cat((directions, _direction(self.model.head.vectors(vectors))[:, None]), 1)
        self.real = torch.cat((real, real.new_ones(len(real), 1)), 1)
        return self.model.head.logits(vectors)


def _direction(vectors: Tensor) -> Tensor:
    return normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
