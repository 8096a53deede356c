"""Masked language modelling (MLM): predict hidden tokens or whole words (Devlin 2018), dynamic (Liu 2019) or static."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import ConfigError, Positive, check_at_least, part
from heddle.core.shapes import Stream
from heddle.data.rows import Batch, RowsConfig, TokenTraits, row_draws
from heddle.models.networks import Encoder, Model
from heddle.nn.base import Context
from heddle.nn.state import State
from heddle.objectives.objective import (
    OPTIONAL_PURPOSES,
    PURPOSES,
    Loss,
    ObjectiveConfig,
    TokenObjective,
    add_auxiliary_losses,
    control_ids,
)

MASK = "<|mask|>"


@final
@dataclass(frozen=True)
class MaskedBatch(Batch):
    """A batch in which some inputs were hidden: targets stand in their own places, and only the hidden ones count."""


@part("masked_token")
class MaskedTokenConfig(TokenObjective):
    """Predict hidden tokens: of those chosen, most become the mask, some any token, and the rest stay as they are.

    A row is hidden by its number in the whole run, so each epoch hides other tokens (dynamic masking), and resuming
    changes nothing. Static masking has a few fixed masks for each text. Whole-word masking hides all of a word or none.

    mask_rate: share of a row's tokens that are chosen.
    mask_share: share of those chosen that become the mask.
    random: share of those chosen that become any token.
    unit: what is hidden as one: a token, or a word with all its pieces, which share their fate.
    static: static masking: how many fixed masks each row has, 10 in BERT; None: dynamic, another mask each time.
    output: the output of the encoder that predicts them.
    mask: the mask's id; None: as the run's tokenizer has it.
    vocab: how many ids there are; None: as the run's tokenizer has it.
    never_masked: ids never hidden and never drawn; None: the tokenizer's control tokens.
    """

    old_fields = {"share": "mask_rate", "masked": "mask_share", "spared": "never_masked"}

    mask_rate: float = 0.15
    mask_share: float = 0.8
    random: float = 0.1
    unit: Literal["token", "word"] = "token"
    static: Positive | None = None
    output: str = "masked_token"
    mask: int | None = None
    vocab: int | None = None
    never_masked: tuple[int, ...] | None = None

    control_tokens: ClassVar[tuple[str, ...]] = (MASK,)
    predicts_every_token: ClassVar[bool] = False
    verb: ClassVar[str | None] = "fill"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_rate <= 1:
            raise ConfigError("mask_rate", want="above 0 and at most 1", got=self.mask_rate)
        if min(self.mask_share, self.random) < 0 or self.mask_share + self.random > 1 + 1e-9:
            raise ConfigError("mask_share", want="0 or more, with random at most 1", got=self.mask_share)
        check_at_least(1, vocab=self.vocab)
        check_at_least(0, never_masked=min(self.never_masked or (0,)))

    def resolve(self, special: Mapping[str, int], vocab: int) -> "MaskedTokenConfig":
        if self.mask is None and MASK not in special:
            raise ConfigError(
                "tokenizer.special",
                want=f"{MASK} among them, to hide tokens",
                got=sorted(set(special) - {*PURPOSES, *OPTIONAL_PURPOSES}),
            )
        mask = special[MASK] if self.mask is None else self.mask
        never_masked = control_ids(special) if self.never_masked is None else self.never_masked
        size = self.vocab or vocab
        if not 0 <= mask < vocab:
            raise ConfigError("objective.mask", want=f"an id of the tokenizer, 0 to {vocab - 1}", got=mask)
        if size > vocab or len({number for number in never_masked if number < size}) == size:
            want = f"at most the tokenizer's {vocab} ids, and one that may be masked"
            raise ConfigError("objective.vocab", want=want, got=size)
        return dataclasses.replace(self, mask=mask, vocab=size, never_masked=never_masked)

    def check_rows(self, rows: RowsConfig) -> None:
        super().check_rows(rows)
        if self.static is not None and not rows.repeats_rows:
            want = "false, because static masks belong to rows that come again"
            raise ConfigError("rows.recut", want=want, got=True)

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        return partial(self.prepare, seed=seed, traits=self.needed_traits(traits))

    def needed_traits(self, traits: Callable[[], TokenTraits]) -> TokenTraits | None:
        """Return facts about the tokenizer's ids, where words are hidden."""
        return traits() if self.unit == "word" else None

    def prepare(self, batch: Batch, seed: int, traits: TokenTraits | None = None) -> MaskedBatch:
        """Hide tokens of each row; one that does not count (padding) is neither hidden nor seen."""
        padding = (batch.weights == 0).long()
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        fields |= self.masked_fields(batch, seed, traits)
        return MaskedBatch(**fields | {"documents": padding if batch.documents is None else batch.documents})

    def masked_fields(self, batch: Batch, seed: int, traits: TokenTraits | None = None) -> dict[str, Tensor]:
        """Return inputs with hidden tokens, their targets, and weights of 1 where a token is hidden."""
        if self.mask is None or self.vocab is None:
            raise ConfigError("objective.mask", "not set; call `objective.resolve(special_tokens, vocab)` first")
        inputs, real = batch.inputs.numpy().copy(), batch.weights.numpy() > 0
        never_masked = np.unique([number for number in self.never_masked or () if number < self.vocab]).astype(np.int64)
        may = real & (inputs < self.vocab) & ~_among(inputs, never_masked, self.vocab)
        units = self._units(inputs, may, traits)
        places = [("mask", *self._key(number, row)) for number, row in zip(batch.rows.tolist(), inputs, strict=True)]
        length, limit = inputs.shape[1], self.vocab - len(never_masked)
        shares, any_token = row_draws(seed, places, 2 * length, length, limit)
        order, fate = shares[:, :length], shares[:, length:]
        if self.unit == "token":
            chosen = lowest(np.where(may, order, 2.0), self._counts(may))
        else:
            fate = np.take_along_axis(fate, units, axis=1)
            words = chosen_words(_sizes(units, may), order, self._counts(may))
            chosen = may & np.take_along_axis(words, units, axis=1)
        inputs[chosen & (fate < self.mask_share)] = self.mask
        swapped = chosen & (fate >= self.mask_share) & (fate < self.mask_share + self.random)
        gaps, drawn = never_masked - np.arange(len(never_masked)), any_token[swapped]
        inputs[swapped] = drawn + np.searchsorted(gaps, drawn, side="right")  # skip those never masked
        weights = torch.from_numpy(chosen.astype(np.float32))
        return {"inputs": torch.from_numpy(inputs), "weights": weights, "targets": batch.inputs}

    def _key(self, number: int, tokens: NDArray[Any]) -> tuple[int | str, ...]:
        """Return what the noise of a row depends on: its number or, of static masks, its text and which mask it is."""
        if self.static is None:
            return (number,)
        return hashlib.blake2b(tokens.tobytes(), digest_size=8).hexdigest(), number % self.static

    def _units(self, tokens: NDArray[Any], may: NDArray[np.bool_], traits: TokenTraits | None) -> NDArray[np.int64]:
        """Return the number of the unit that each token belongs to: its own, or its word's."""
        if self.unit == "token":
            return np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        if traits is None:
            raise ConfigError("objective.unit", want="token, where no tokenizer says where words begin", got=self.unit)
        starts = traits.word_starts(tokens)
        starts[:, 1:] |= may[:, 1:] != may[:, :-1]  # control tokens and padding are apart
        return starts.cumsum(axis=1) - 1

    def _counts(self, may: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many tokens of each row are masked, of those that may be."""
        return np.array([self.count(tokens) for tokens in may.sum(axis=1).tolist()])

    def count(self, tokens: int) -> int:
        """Return how many of `tokens` are masked: at least one, if there is one."""
        return min(tokens, max(1, round(self.mask_rate * tokens)))

    def checked_encoder(self, model: Model, objective: ObjectiveConfig) -> Encoder:
        """Return the model as an encoder, or refuse it."""
        if not isinstance(model, Encoder):
            raise ConfigError("objective", want=f"an encoder for {objective.kind}", got=type(model).__name__)
        return model

    def checked_model(self, model: Model) -> Encoder:
        model = self.checked_encoder(model, self)
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
        x, ctx = self.read(model, batch)
        return add_auxiliary_losses(model, self.hidden_loss(model, x, batch, ctx), batch)

    def read(self, model: Model, batch: Batch) -> tuple[Stream, Context]:
        ctx = Context(documents=batch.documents, positions=batch.positions)
        return self.checked_model(model).run(batch.inputs, ctx)

    def loss_from_hidden(self, model: Model, hidden: Stream, batch: Batch, ctx: Context) -> Tensor:
        return self.hidden_loss(self.checked_model(model), hidden, batch, ctx)

    def logits_function(self, model: Model) -> Callable[[Tensor], Tensor]:
        return partial(self.checked_model(model).output(self.output).scores, ctx=Context())

    def target_share(self, length: int) -> float:
        return self.count(length) / length

    def hidden_places(self, batch: Batch) -> Int[Tensor, "batch hidden"]:
        """Return the places of the hidden tokens of each row, filled up with others to one number."""
        return batch.weights.topk(self.count(batch.inputs.shape[1]), dim=1).indices

    def hidden_loss(self, model: Encoder, x: Stream, batch: Batch, ctx: Context) -> Tensor:
        """Return the loss of the hidden tokens, from the last layer's vectors.

        Only they meet the head; as many places for every row, so that shapes do not depend on the draw.
        """
        places = self.hidden_places(batch)
        vectors = x.take_along_dim(places[..., None], dim=1)
        targets, weights = (tensor.gather(1, places) for tensor in (batch.targets, batch.weights))
        return model.output(self.output).weighted_nll(vectors, targets, weights, ctx)


def lowest(order: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Choose as many of each row as are counted: those that come first in an order."""
    bounds = np.take_along_axis(np.sort(order, axis=1), np.maximum(counts - 1, 0)[:, None], axis=1)
    return np.asarray((order <= bounds) & (counts > 0)[:, None])


def chosen_words(sizes: NDArray[np.int64], order: NDArray[np.float64], budgets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Choose words of each row in an order until their sizes fill its budget; one too large is passed over."""
    chosen, left, rows = np.zeros(sizes.shape, bool), budgets.copy(), np.arange(len(sizes))
    ranked = np.where(sizes > 0, order, 2.0).argsort(axis=1)
    for word in ranked.T:
        size = sizes[rows, word]
        fits = (size > 0) & (size <= left)
        chosen[rows[fits], word[fits]] = True
        left -= np.where(fits, size, 0)
        if not (left > 0).any():
            break
    return chosen


def _sizes(units: NDArray[np.int64], may: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the tokens of each unit of each row that may be masked."""
    flat = (units + np.arange(len(units))[:, None] * units.shape[1])[may]
    return np.bincount(flat, minlength=units.size).reshape(units.shape)


def _among(tokens: NDArray[Any], ids: NDArray[np.int64], vocab: int) -> NDArray[np.bool_]:
    """Tell which tokens are among a few ids; one beyond the vocabulary is none of them."""
    table = np.zeros(vocab + 1, bool)
    table[ids] = True
    return np.asarray(table[np.minimum(tokens, vocab)])
