"""Replaced-token detection (ELECTRA, Clark et al. 2020): tell which tokens a small generator has replaced."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.core import ConfigError, part, replace
from heddle.core.shapes import Ids, Weights
from heddle.data.rows import Batch, RowsConfig, TokenTraits, row_draws
from heddle.models.networks import Encoder, Model
from heddle.nn.base import Context, upcast
from heddle.nn.state import State
from heddle.objectives.masked_token import MASK, MaskedTokenConfig
from heddle.objectives.objective import Coefficient, Loss, ObjectiveConfig, add_auxiliary_losses


@final
@dataclass(frozen=True)
class ReplacedTokenBatch(Batch):
    """A batch in which some inputs were hidden from the generator: targets are the original tokens in their places.

    real: 1 for tokens that are not padding, whose replacement is detected.
    coins: evenly distributed numbers, by which the generator's tokens are drawn at the hidden places.
    """

    real: Weights | None = None
    coins: Float[Tensor, "batch hidden"] | None = None


@part("replaced_token")
class ReplacedTokenConfig(ObjectiveConfig):
    """Replaced-token detection (ELECTRA): tell which tokens a generator, trained on hidden tokens beside, replaced.

    A token that the generator guessed right counts as original. No gradient passes through its choice. Choices are
    drawn by numbers keyed by row, so that neither micro-batches nor resuming change them.

    masked: the objective of the generator: which tokens are hidden; 85 % become the mask, as ELECTRA's code has it.
    weight: weight of the mean loss of detection against the generator's mean loss.
    output: the output of the encoder that detects them.
    """

    masked: MaskedTokenConfig = MaskedTokenConfig(mask_share=0.85, random=0.0)
    weight: Coefficient = 50.0
    output: str = "replaced_token"

    control_tokens: ClassVar[tuple[str, ...]] = (MASK,)
    predicts_every_token: ClassVar[bool] = False

    def resolve(self, special: Mapping[str, int], vocab: int) -> "ReplacedTokenConfig":
        return replace(self, masked=self.masked.resolve(special, vocab))

    def check_rows(self, rows: RowsConfig) -> None:
        self.masked.check_rows(rows)

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        return partial(self.prepare, seed=seed, traits=self.masked.needed_traits(traits))

    def prepare(self, batch: Batch, seed: int, traits: TokenTraits | None = None) -> ReplacedTokenBatch:
        """Hide tokens of each row, and draw a number for each, by which the generator's token will be chosen."""
        made, count = self.masked.prepare(batch, seed, traits), self.masked.count(batch.inputs.shape[1])
        coins, _ = row_draws(seed, [("replace", number) for number in batch.rows.tolist()], count)
        fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
        real = (batch.weights > 0).to(batch.weights.dtype)
        return ReplacedTokenBatch(**fields, real=real, coins=torch.from_numpy(coins).float())

    def checked_model(self, model: Model) -> Encoder:
        encoder = self.masked.checked_encoder(model, self)
        if self.output not in encoder.outputs or encoder.generator is None:
            want = f"the output {self.output} and a generator, as in the preset electra-small"
            raise ConfigError("model.outputs", want=want, got=list(encoder.outputs))
        self.masked.checked_model(encoder.generator)
        return encoder

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        encoder = self.checked_model(model)
        if not isinstance(batch, ReplacedTokenBatch):
            raise ConfigError("batch", want="one with hidden tokens, made by `prepare`", got=type(batch).__name__)
        assert encoder.generator is not None and batch.real is not None
        ctx = Context(documents=batch.documents, positions=batch.positions)
        x, after = encoder.generator.run(batch.inputs, ctx)
        hidden = self.masked.hidden_loss(encoder.generator, x, batch, after)
        shown = self._replaced(encoder.generator, x.detach(), batch, after)
        labels = (shown != batch.targets).long()
        x, after = encoder.run(shown, ctx)
        detected = encoder.output(self.output).weighted_nll(x, labels, batch.real, after)
        # the trainer divides by the hidden tokens: so each mean has its weight, whatever the micro-batch
        length = batch.inputs.shape[1]
        loss = add_auxiliary_losses(model, hidden + self.weight * self.masked.count(length) / length * detected, batch)
        share = (labels * batch.real).sum() / batch.weights.sum().clamp(min=1)
        return dataclasses.replace(loss, metrics={**loss.metrics, "replaced_share": share.detach()})

    @torch.no_grad()
    def _replaced(self, generator: Encoder, x: Tensor, batch: ReplacedTokenBatch, ctx: Context) -> Ids:
        """Return the original tokens with the generator's own at the hidden places."""
        assert batch.coins is not None
        places = self.masked.hidden_places(batch)
        scores = generator.output(self.masked.output).scores(x.take_along_dim(places[..., None], dim=1), ctx)
        chosen = draw_by_coins(upcast(scores), batch.coins)
        original = batch.targets.gather(1, places)
        kept = chosen.where(batch.weights.gather(1, places) > 0, original)
        return batch.targets.scatter(1, places, kept)


def draw_by_coins(
    scores: Float[Tensor, "batch hidden vocab"], coins: Float[Tensor, "batch hidden"]
) -> Int[Tensor, "batch hidden"]:
    """Draw an id by the softmax of its scores for each number between 0 and 1: the first whose cumulated probability
    exceeds it."""
    cumulated = scores.softmax(-1).cumsum(-1)
    reached = coins[..., None].to(cumulated.dtype) * cumulated[..., -1:]  # rounding may keep the sum below 1
    return (cumulated <= reached).sum(-1).clamp(max=scores.shape[-1] - 1)
