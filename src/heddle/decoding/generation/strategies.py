"""Decoding strategies that choose each token from its logits: greedy search and multinomial sampling.

Contrastive search is in `contrastive.py`, beam search in `heddle.decoding.search`. A strategy is one class, registered
under its kind; `TokenStrategy` leaves only `choose` to write.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import torch

import heddle.decoding.sampling as sampling
from heddle.core import Positive, part, replace, within
from heddle.decoding.generation.decoders import DynamicDecoder, StaticDecoder, StepDecoder
from heddle.decoding.generation.generation_config import GenerationConfig, Sampler, TokenChooser
from heddle.decoding.generation.steps import StepStrategy
from heddle.decoding.runtime import CaptureMode, Prefill
from heddle.decoding.sampling import Logits, NextTokens, RowPosition
from heddle.models.networks import AutoregressiveModel


class TokenStrategy(StepStrategy, TokenChooser):
    """A strategy that chooses each token from its logits alone; it works with captured steps and with drafts."""

    @property
    def chooser(self) -> TokenChooser:
        return self

    def decoder(
        self, model: AutoregressiveModel, prefill: Prefill, config: GenerationConfig, mode: CaptureMode | None
    ) -> StepDecoder:
        if mode is None:
            return DynamicDecoder(model, prefill, config, self)
        return StaticDecoder(model, prefill, config, self, mode)


@part("greedy")
class GreedySearch(TokenStrategy):
    """Greedy search: the most probable token each time, ties by lower id."""

    argmax = True

    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        """Return the most probable token of each row."""
        sampling.check_logits(logits)
        return sampling.greedy_tokens(logits)


Mass = Annotated[float, within("more than 0 and at most 1", lambda share: 0 < share <= 1)]  # of probability


@part("sampling", was="draw")
class MultinomialSampling(TokenStrategy, Sampler):
    """Multinomial sampling: draw each token by its probability, after filters such as top-k and nucleus sampling.

    The filters apply in the order temperature, top_k, top_p, min_p, typical; None is off.
    """

    temperature: Annotated[float, within("above 0", lambda temperature: 0 < temperature < math.inf)] = 1.0
    top_k: Positive | None = None
    top_p: Mass | None = None
    min_p: Annotated[float, within("0 to 1", lambda share: 0 <= share <= 1)] | None = None
    typical: Mass | None = None
    seed: int = 0

    @property
    def sampler(self) -> Sampler:
        return self

    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        """Draw a token for each row."""
        return self._draw(logits, [self.uniform(position) for position in positions])

    @property
    def batch_key(self) -> object:
        """Return the filters: rows with other seeds can be drawn together."""
        return replace(self, seed=0)

    def choose_batch(
        self, logits: Logits, positions: Sequence[RowPosition], choosers: Sequence[TokenChooser]
    ) -> NextTokens:
        """Draw a token for each row by the seed of its own chooser."""
        samplers = [self if chooser.sampler is None else chooser.sampler for chooser in choosers]
        return self._draw(logits, [own.uniform(at) for own, at in zip(samplers, positions, strict=True)])

    def _draw(self, logits: Logits, numbers: Sequence[float]) -> NextTokens:
        """Draw a token for each row by a number in [0, 1)."""
        sampling.check_logits(logits)
        uniforms = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
        ids = sampling.inverse_cdf(self.probabilities(logits), uniforms)
        return ids.masked_fill(logits.amax(-1) == sampling.NEG_INF, sampling.NO_TOKEN)

    def probabilities(self, logits: Logits) -> Logits:
        """Return the probabilities after all filters."""
        return self.filter_logits(logits.double()).softmax(-1)

    def uniform(self, position: RowPosition, use: str = "next") -> float:
        """Return the random number of a position by the seed."""
        return sampling.uniform(self.seed, position, use)

    def filter_logits(self, logits: Logits) -> Logits:
        """Apply the filters that are on, in their order."""
        logits = sampling.apply_temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = sampling.top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = sampling.top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = sampling.min_p(logits, self.min_p)
        if self.typical is not None:
            logits = sampling.typical(logits, self.typical)
        return logits
