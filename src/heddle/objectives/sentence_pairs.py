"""Next-sentence prediction (NSP, Devlin et al. 2018) and sentence order (Lan et al. 2020), beside masked tokens."""

import dataclasses
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from heddle.core import ConfigError, part, replace, settings
from heddle.data.rows import Batch, RowsConfig, SentencePairBatch, TokenTraits
from heddle.models.networks import Encoder, Model
from heddle.nn.base import Context
from heddle.nn.state import State
from heddle.objectives.masked_token import MASK, MaskedTokenConfig
from heddle.objectives.objective import Coefficient, Loss, ObjectiveConfig, add_auxiliary_losses


@final
@dataclass(frozen=True)
class MaskedPairBatch(SentencePairBatch):
    """Rows of two texts in which some inputs were hidden: targets stand in their own places."""


@settings
class SentencePairConfig(ObjectiveConfig, ABC):
    """What next-sentence prediction and sentence order share."""

    masked: MaskedTokenConfig = MaskedTokenConfig()
    weight: Coefficient = 1.0
    output: str = "next_sentence"

    control_tokens: ClassVar[tuple[str, ...]] = (MASK,)
    predicts_every_token: ClassVar[bool] = False
    second: ClassVar[str]  # what the second text of a row is where it does not follow

    def resolve(self, special: Mapping[str, int], vocab: int) -> Self:
        return replace(self, masked=self.masked.resolve(special, vocab))

    def check_rows(self, rows: RowsConfig) -> None:
        if rows.second_text is None:
            raise ConfigError(
                "rows.kind", want=f"sentence_pairs, because {self.kind} reads two texts a row", got=rows.kind
            )
        if rows.second_text != self.second:
            raise ConfigError(
                "rows.second", want=f"{self.second}, because the objective is {self.kind}", got=rows.second_text
            )
        if self.masked.static is not None:
            raise ConfigError(
                "objective.masked.static", want="null, because pairs are drawn anew", got=self.masked.static
            )

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        return partial(self.prepare, seed=seed, traits=self.masked.needed_traits(traits))

    def prepare(self, batch: Batch, seed: int, traits: TokenTraits | None = None) -> MaskedPairBatch:
        """Hide tokens of both texts of each row."""
        if not isinstance(batch, SentencePairBatch):
            raise ConfigError(
                "rows.kind", want=f"sentence_pairs, because {self.kind} reads two texts a row", got="another kind"
            )
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return MaskedPairBatch(**fields | self.masked.masked_fields(batch, seed, traits))

    def checked_model(self, model: Model) -> Encoder:
        encoder = self.masked.checked_model(model)
        if self.output not in encoder.outputs:
            want = f"{self.output} among them, as in the preset bert-base-pretraining"
            raise ConfigError("model.outputs", want=want, got=list(encoder.outputs))
        return encoder

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder = self.checked_model(model)
        if not isinstance(batch, MaskedPairBatch):
            raise ConfigError("batch", want="one with hidden tokens, made by `prepare`", got=type(batch).__name__)
        assert batch.labels is not None
        x, ctx = encoder.run(batch.inputs, Context(lengths=batch.lengths, segments=batch.segments))
        hidden = self.masked.hidden_loss(encoder, x, batch, ctx)
        output, vectors = encoder.output(self.output), encoder.pool(x, ctx)
        sentences = output.weighted_nll(vectors, batch.labels, torch.ones_like(vectors[:, 0]), ctx)
        # the trainer divides by the hidden tokens: so each mean has its weight, whatever the micro-batch
        total = hidden + self.weight * self.masked.count(batch.inputs.shape[1]) * sentences
        loss = add_auxiliary_losses(model, total, batch)
        right = (output.scores(vectors.detach(), ctx).argmax(-1) == batch.labels).float().mean()
        return dataclasses.replace(loss, metrics={**loss.metrics, "sentence_accuracy": right.detach()})


@part("next_sentence")
class NextSentenceConfig(SentencePairConfig):
    """Next-sentence prediction (NSP) beside masked tokens: does the second text follow, or is it of another document?

    masked: the objective of masked tokens beside it.
    weight: weight of the mean loss of sentences against the mean loss of hidden tokens.
    output: the output of the encoder that predicts it.
    """

    second: ClassVar[str] = "random"


@part("sentence_order")
class SentenceOrderConfig(SentencePairConfig):
    """Sentence-order prediction (SOP) beside masked tokens: are two texts that follow each other swapped?

    masked: the objective of masked tokens beside it.
    weight: weight of the mean loss of sentences against the mean loss of hidden tokens.
    output: the output of the encoder that predicts it.
    """

    second: ClassVar[str] = "swapped"
