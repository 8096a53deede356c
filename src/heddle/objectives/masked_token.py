"""Masked language modelling (MLM): predict hidden tokens (Devlin 2018), masked anew each epoch (Liu 2019)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import ConfigError, Purpose, check_at_least, numpy_generator, part
from heddle.data.rows import Batch
from heddle.models.networks import Encoder, Model
from heddle.nn.base import Context
from heddle.nn.state import State
from heddle.objectives.objective import Loss, ObjectiveConfig, add_auxiliary_losses

MASK = "<|mask|>"


@final
@dataclass(frozen=True)
class MaskedBatch(Batch):
    """A batch in which some inputs were hidden: targets stand in their own places, and only the hidden ones count."""


@part("masked_token")
class MaskedTokenConfig(ObjectiveConfig):
    """Predict hidden tokens: of those chosen, most become the mask, some any token, and the rest stay as they are.

    A row is hidden by its number in the whole run, so each epoch hides other tokens, and resuming changes nothing.

    mask_rate: share of a row's tokens that are chosen.
    mask_share: share of those chosen that become the mask.
    random: share of those chosen that become any token.
    output: the output of the encoder that predicts them.
    mask: the mask's id; None: as the run's tokenizer has it.
    vocab: how many ids there are; None: as the run's tokenizer has it.
    never_masked: ids never hidden and never drawn; None: the tokenizer's control tokens.
    """

    old_fields = {"share": "mask_rate", "masked": "mask_share", "spared": "never_masked"}

    mask_rate: float = 0.15
    mask_share: float = 0.8
    random: float = 0.1
    output: str = "masked_token"
    mask: int | None = None
    vocab: int | None = None
    never_masked: tuple[int, ...] | None = None

    control_tokens: ClassVar[tuple[str, ...]] = (MASK,)
    predicts_every_token: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate <= 1:
            raise ConfigError("mask_rate", want="above 0 and at most 1", got=self.mask_rate)
        if min(self.mask_share, self.random) < 0 or self.mask_share + self.random > 1 + 1e-9:
            raise ConfigError("mask_share", want="0 or more, with random at most 1", got=self.mask_share)
        check_at_least(1, vocab=self.vocab)
        check_at_least(0, never_masked=min(self.never_masked or (0,)))

    def resolve(self, special: Mapping[str, int], vocab: int) -> "MaskedTokenConfig":
        if self.mask is None and MASK not in special:
            raise ConfigError("tokenizer.special", want=f"{MASK} among them, to hide tokens", got=sorted(special))
        mask = special[MASK] if self.mask is None else self.mask
        never_masked = tuple(sorted(set(special.values()))) if self.never_masked is None else self.never_masked
        size = self.vocab or vocab
        if not 0 <= mask < vocab:
            raise ConfigError("objective.mask", want=f"an id of the tokenizer, 0 to {vocab - 1}", got=mask)
        if size > vocab or len({number for number in never_masked if number < size}) == size:
            want = f"at most the tokenizer's {vocab} ids, and one that may be masked"
            raise ConfigError("objective.vocab", want=want, got=size)
        return dataclasses.replace(self, mask=mask, vocab=size, never_masked=never_masked)

    def prepare(self, batch: Batch, seed: int) -> MaskedBatch:
        """Hide tokens of each row; one that does not count (padding) is neither hidden nor seen."""
        if self.mask is None or self.vocab is None:
            raise ConfigError("objective.mask", "not set; call `objective.resolve(special_tokens, vocab)` first")
        inputs, real = batch.inputs.numpy().copy(), batch.weights.numpy() > 0
        weights = np.zeros_like(batch.weights.numpy())
        never_masked = np.unique([number for number in self.never_masked or () if number < self.vocab]).astype(np.int64)
        may = real & (inputs < self.vocab) & ~np.isin(inputs, never_masked)
        for row, number in enumerate(batch.rows.tolist()):
            draw = numpy_generator(seed, Purpose.DATA, "mask", number)
            weights[row] = self._mask(inputs[row], may[row], never_masked, draw)
        apart = torch.from_numpy(~real).long() if batch.documents is None else batch.documents
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        fields |= {"inputs": torch.from_numpy(inputs), "weights": torch.from_numpy(weights)}
        return MaskedBatch(**fields | {"targets": batch.inputs, "documents": apart})

    def _mask(
        self, tokens: NDArray[Any], may: NDArray[np.bool_], never_masked: NDArray[np.int64], draw: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Hide some tokens of one row in place, of those that may be hidden; return which."""
        assert self.vocab is not None
        order, fate = draw.random(len(tokens)), draw.random(len(tokens))
        any_token = draw.integers(self.vocab - len(never_masked), size=len(tokens))
        gaps = never_masked - np.arange(len(never_masked))
        any_token += np.searchsorted(gaps, any_token, side="right")  # skip those never masked
        count = self._count(int(may.sum()))
        chosen = np.zeros(len(tokens), bool)
        chosen[np.where(may, order, 2.0).argsort()[:count]] = True
        tokens[chosen & (fate < self.mask_share)] = self.mask
        swapped = chosen & (fate >= self.mask_share) & (fate < self.mask_share + self.random)
        tokens[swapped] = any_token[swapped]
        return chosen

    def _count(self, tokens: int) -> int:
        """Return how many of `tokens` are masked: at least one, if there is one."""
        return min(tokens, max(1, round(self.mask_rate * tokens)))

    def checked_model(self, model: Model) -> Encoder:
        if not isinstance(model, Encoder):
            raise ConfigError("objective", want="an encoder for masked_token", got=type(model).__name__)
        if self.output not in model.outputs:
            want = f"{self.output} among them, as in the preset bert-base-masked"
            raise ConfigError("model.outputs", want=want, got=list(model.outputs))
        return model

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        model = self.checked_model(model)
        if not isinstance(batch, MaskedBatch):
            raise ConfigError("batch", want="one with hidden tokens, made by `prepare`", got=type(batch).__name__)
        x, ctx = model.run(batch.inputs, Context(documents=batch.documents, positions=batch.positions))
        # only hidden tokens meet the head; as many places for every row, so that shapes do not depend on the draw
        places = batch.weights.topk(self._count(batch.inputs.shape[1]), dim=1).indices
        vectors = x.take_along_dim(places[..., None], dim=1)
        targets, weights = (tensor.gather(1, places) for tensor in (batch.targets, batch.weights))
        loss = model.output(self.output).weighted_nll(vectors, targets, weights, ctx)
        return add_auxiliary_losses(model, loss, batch)
