"""Prefix language model (prefix LM, Liu et al. 2018; Raffel et al. 2020): full sight in a prefix, then next tokens."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from heddle.core import ConfigError, Share, find, part
from heddle.data.rows import Batch, RowsConfig, row_generators
from heddle.models.networks import LanguageModel, Model
from heddle.nn.base import Context, PartConfig, SelfAttentionConfig
from heddle.nn.state import State
from heddle.objectives.objective import (
    Coefficient,
    Loss,
    ObjectiveConfig,
    add_auxiliary_losses,
    after_last_target,
    head_loss,
    real_lengths,
    require_language_model,
)


@final
@dataclass(frozen=True)
class PrefixBatch(Batch):
    """A batch whose documents begin with a prefix that each of its tokens sees whole.

    prefix: True for inputs in the prefix of their document.
    """

    prefix: Bool[Tensor, "batch length"] | None = None


@part("prefix_lm")
class PrefixLMConfig(ObjectiveConfig):
    """Prefix language model: a prefix of each document is seen whole, and the tokens after it are predicted.

    Where the prefix ends is drawn evenly; the tokens inside it have no loss, because their positions see them.

    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    z_loss: coefficient of the square of the softmax's log-normalizer, which keeps logits small; 0: none.
    """

    smoothing: Share = 0.0
    z_loss: Coefficient = 0.0

    predicts_every_token: ClassVar[bool] = False

    def check_rows(self, rows: RowsConfig) -> None:
        super().check_rows(rows)
        if rows.paired or rows.carries_state:
            raise ConfigError("rows.kind", want="packed, because prefix_lm reads plain text", got=rows.kind)

    def prepare(self, batch: Batch, seed: int) -> PrefixBatch:
        """Draw the prefix of each document of each row, by the row's number; of its targets only the last counts."""
        lengths, size = real_lengths(batch), batch.inputs.shape[1]
        prefix = np.zeros(batch.inputs.shape, bool)
        draws = row_generators(seed, [("prefix", number) for number in batch.rows.tolist()])
        for row, draw in enumerate(draws):
            documents = np.zeros(size, np.int64) if batch.documents is None else batch.documents[row].numpy()
            _, starts, sizes = np.unique(documents[: lengths[row]], return_index=True, return_counts=True)
            stops = starts + 1 + (draw.random(size)[: len(starts)] * sizes).astype(np.int64)  # 1 to all of its tokens
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                prefix[row, start:stop] = True
        inside = torch.from_numpy(prefix)
        seen = torch.nn.functional.pad(inside[:, 1:], (0, 1))  # the target is an input of the prefix
        if batch.documents is not None:
            seen[:, :-1] &= batch.documents[:, 1:] == batch.documents[:, :-1]
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return PrefixBatch(**fields | {"weights": batch.weights.where(~seen, 0)}, prefix=inside)

    def checked_model(self, model: Model) -> LanguageModel:
        model = require_language_model(model, self)
        others = [
            p for p in find(model.config, PartConfig) if p.slot == "mixer" and not isinstance(p, SelfAttentionConfig)
        ]
        if others:
            raise ConfigError("model", want="attention alone, which can see a prefix whole", got=others[0].kind)
        if model.sight != "past":
            raise ConfigError("model.sight", want="past, beyond the prefix", got=model.sight)
        return model

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        model = require_language_model(model, self)
        if not isinstance(batch, PrefixBatch):
            raise ConfigError("batch", want="one with prefixes, made by `prepare`", got=type(batch).__name__)
        ignored = after_last_target(batch)
        ctx = Context(documents=batch.documents, positions=batch.positions, ignored=ignored, prefix=batch.prefix)
        hidden, _ = model.run(batch.inputs, ctx)
        total = head_loss(model, hidden, batch, self.smoothing, self.z_loss)
        return add_auxiliary_losses(model, total, batch)
