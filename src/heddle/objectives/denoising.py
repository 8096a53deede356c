"""Denoising auto-encoding (BART, Lewis et al. 2020): an encoder reads text with noise, a decoder writes the text."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heddle.core import ConfigError, Share, fields_of, part, replace
from heddle.data.rows import Batch, TokenTraits, row_generators
from heddle.models.networks import EncoderDecoder, Model
from heddle.nn.state import State
from heddle.objectives.masked_token import MASK
from heddle.objectives.noises import NoiseConfig, SentencePermutationConfig, TextInfillingConfig, TokenView
from heddle.objectives.objective import (
    DECODER_SECOND,
    DECODER_START,
    END,
    SOURCE_BEGIN,
    Coefficient,
    Loss,
    ObjectiveConfig,
    control_ids,
    real_lengths,
    require_encoder_decoder,
    sequence_loss,
)
from heddle.objectives.span_corruption import source_and_target


@part("denoising")
class DenoisingConfig(ObjectiveConfig):
    """Denoising (BART): write a text of which the encoder reads a version with noise.

    Rows of L tokens become sources of at most L + 1 tokens and targets of L + 1: the end token counts.

    noises: the noises in order; each reads what the one before has left.
    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    z_loss: coefficient of the square of the softmax's log-normalizer, which keeps logits small; 0: none.
    mask: the mask's id; None: as the run's tokenizer has it.
    end: id that ends source and target; None: as the run's tokenizer has it.
    start: first id that the decoder reads; None: as the run's tokenizer has it.
    source_before: ids before the text in a source; None: as the run's tokenizer has them.
    target_before: ids before the text in a target; None: as the run's tokenizer has them.
    controls: ids that no noise touches; None: the tokenizer's control tokens.
    """

    noises: tuple[NoiseConfig, ...] = (SentencePermutationConfig(), TextInfillingConfig())
    smoothing: Share = 0.0
    z_loss: Coefficient = 0.0
    mask: int | None = None
    end: int | None = None
    start: int | None = None
    source_before: tuple[int, ...] | None = None
    target_before: tuple[int, ...] | None = None
    controls: tuple[int, ...] | None = None

    control_tokens: ClassVar[tuple[str, ...]] = (MASK,)
    predicts_every_token: ClassVar[bool] = False
    makes_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noises:
            raise ConfigError("noises", want="at least one noise", got=[])

    def resolve(self, special: Mapping[str, int], vocab: int) -> "DenoisingConfig":
        if self.mask is None and MASK not in special:
            raise ConfigError("tokenizer.special", want=f"{MASK} among them, to hide words", got="none")
        found = {
            "mask": special.get(MASK),
            "end": special[END],
            "start": special[DECODER_START],
            "source_before": tuple(special[name] for name in (SOURCE_BEGIN,) if name in special),
            "target_before": tuple(special[name] for name in (DECODER_SECOND,) if name in special),
            "controls": control_ids(special),
        }
        own = {name: value for name, value in found.items() if fields_of(self)[name] is None}
        return replace(self, **own)

    def side_lengths(self, length: int) -> tuple[int, int]:
        return length + 1 + len(self.source_before or ()), length + 1 + len(self.target_before or ())

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        return partial(self.prepare, seed=seed, traits=traits())

    def prepare(self, batch: Batch, seed: int, traits: TokenTraits | None = None) -> Batch:
        """Make a source with noise of each row, by draws of its own; the target is the row itself."""
        if self.mask is None or self.end is None or self.start is None or traits is None:
            raise ConfigError("objective.mask", want="an id and facts about the tokenizer, from the run", got=self.mask)
        texts, view = batch.targets.numpy(), TokenView(self.mask, np.array(self.controls or (), np.int64), traits)
        opening, first = self.source_before or (), self.target_before or ()
        source = np.full((len(texts), len(opening) + texts.shape[1] + 1), self.end, np.int64)
        target = np.full((len(texts), len(first) + texts.shape[1] + 1), self.end, np.int64)
        weights, lengths = np.zeros(target.shape, np.float32), np.ones(len(texts), np.int64)
        source[:, : len(opening)], target[:, : len(first)] = opening, first
        draws = row_generators(seed, [("noise", number) for number in batch.rows.tolist()])
        for row, (draw, real) in enumerate(zip(draws, real_lengths(batch), strict=True)):
            noisy = texts[row, :real]
            target[row, len(first) : len(first) + real] = noisy
            weights[row, : len(first) + real + 1] = float(real > 0)
            for noise in self.noises:
                noisy = noise.apply(noisy, view, draw)
            source[row, len(opening) : len(opening) + len(noisy)] = noisy
            lengths[row] = len(opening) + len(noisy) + 1
        made = source_and_target(batch, source, target, weights, self.start)
        return dataclasses.replace(made, source_lengths=torch.from_numpy(lengths))

    def checked_model(self, model: Model) -> EncoderDecoder:
        return require_encoder_decoder(model, self)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        if batch.source is None:
            raise ConfigError("batch", want="one with sources, made by `prepare`", got="plain text")
        return sequence_loss(self.checked_model(model), batch, self.smoothing, self.z_loss)
