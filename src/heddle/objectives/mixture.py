"""Mixture of denoisers (UL2, Tay et al. 2022): each row by one of several objectives, which a mode token names."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from heddle.core import Config, ConfigError, Share, part, replace, settings, within
from heddle.data.rows import Batch, RowsConfig, TokenTraits, row_draws
from heddle.models.networks import EncoderDecoder, Model
from heddle.nn.state import State
from heddle.objectives.objective import Coefficient, Loss, ObjectiveConfig, require_encoder_decoder, sequence_loss
from heddle.objectives.span_corruption import SENTINEL_NAMES, SpanCorruptionConfig, sentinels_in

Mode = Literal["r", "s", "x"]
MODES: dict[str, str] = {mode: f"<|mode_{mode}|>" for mode in ("r", "s", "x")}
Weight = Annotated[float, within("above 0", lambda weight: weight > 0)]


@settings
class MixedObjectiveConfig(Config):
    """One objective of a mixture.

    objective: makes source and target of a row of plain text.
    weight: how often it is taken, against the weights of the others.
    mode: the mode token at the beginning of its sources: r (regular), s (sequential) or x (extreme); None: none.
    """

    objective: ObjectiveConfig
    weight: Weight = 1.0
    mode: Mode | None = None


def _denoiser(mode: Mode, mean_span: float | None, rate: float) -> MixedObjectiveConfig:
    return MixedObjectiveConfig(objective=SpanCorruptionConfig(corruption_rate=rate, mean_span=mean_span), mode=mode)


UL2 = (
    _denoiser("r", 3.0, 0.15),
    _denoiser("r", 8.0, 0.15),
    _denoiser("s", None, 0.25),
    _denoiser("x", 3.0, 0.5),
    _denoiser("x", 8.0, 0.5),
    _denoiser("x", 64.0, 0.15),
    _denoiser("x", 64.0, 0.5),
)


@part("mixture")
class MixtureConfig(ObjectiveConfig):
    """Mixture of denoisers (UL2): each row by an objective that is drawn by weight, after its mode token.

    All rows are padded to the longest source and target that an objective makes, so that batches have one shape.

    objectives: what is mixed; by default UL2's seven denoisers.
    smoothing: label smoothing of all: share of each target's probability that is spread over all tokens.
    z_loss: coefficient of the square of the softmax's log-normalizer, which keeps logits small; 0: none.
    modes: ids of the mode tokens r, s and x; None: as the run's tokenizer has them.
    """

    objectives: tuple[MixedObjectiveConfig, ...] = UL2
    smoothing: Share = 0.0
    z_loss: Coefficient = 0.0
    modes: tuple[int, ...] | None = None

    control_tokens: ClassVar[tuple[str, ...]] = ("<|mask|>", *MODES.values(), *SENTINEL_NAMES)
    predicts_every_token: ClassVar[bool] = False
    makes_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.objectives:
            raise ConfigError("objectives", want="at least one objective", got=[])
        for number, one in enumerate(self.objectives):
            if not one.objective.makes_source or one.objective.kind == self.kind:
                want = "one that makes source and target of plain text: span_corruption or denoising"
                raise ConfigError(f"objectives.{number}.objective", want=want, got=one.objective.kind)

    def resolve(self, special: Mapping[str, int], vocab: int) -> "MixtureConfig":
        objectives = tuple(replace(one, objective=one.objective.resolve(special, vocab)) for one in self.objectives)
        missing = [name for name in MODES.values() if name not in special]
        if self.modes is None and missing:
            raise ConfigError("tokenizer.special", want=f"{missing[0]} among them, to name a mode", got="none")
        modes = tuple(special[name] for name in MODES.values()) if self.modes is None else self.modes
        return replace(self, objectives=objectives, modes=modes)

    def missing_control_tokens(self, special: Mapping[str, int]) -> tuple[str, ...]:
        sentinels = SENTINEL_NAMES if sentinels_in(special) else ()
        return tuple(name for name in super().missing_control_tokens(special) if name not in sentinels)

    def side_lengths(self, length: int) -> tuple[int, int]:
        sides = [one.objective.side_lengths(length) for one in self.objectives]
        return 1 + max(source for source, _ in sides), max(target for _, target in sides)

    def check_rows(self, rows: RowsConfig) -> None:
        super().check_rows(rows)
        for one in self.objectives:
            one.objective.check_rows(rows)

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        each = tuple(one.objective.preparer(seed, traits) for one in self.objectives)
        return partial(self._prepare, seed=seed, each=each)

    def _prepare(self, batch: Batch, seed: int, each: tuple[Callable[[Batch], Batch], ...]) -> Batch:
        """Let each row be made by an objective that is drawn by the row's number, and pad all to one shape."""
        if self.modes is None:
            raise ConfigError("objective.modes", want="ids, which `resolve` fills in", got=None)
        weights = np.array([one.weight for one in self.objectives])
        edges = np.cumsum(weights) / weights.sum()
        coins, _ = row_draws(seed, [("mixture", number) for number in batch.rows.tolist()], 1)
        chosen = np.minimum(np.searchsorted(edges, coins[:, 0], side="right"), len(edges) - 1)
        made = {number: each[number](_take(batch, chosen == number)) for number in np.unique(chosen).tolist()}
        sizes = self.side_lengths(batch.targets.shape[1])
        return _joined(batch, chosen, made, sizes, [self._mode(one.mode) for one in self.objectives])

    def _mode(self, mode: Mode | None) -> tuple[int, ...]:
        assert self.modes is not None
        return () if mode is None else (self.modes[list(MODES).index(mode)],)

    def checked_model(self, model: Model) -> EncoderDecoder:
        return require_encoder_decoder(model, self)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        if batch.source is None:
            raise ConfigError("batch", want="one with sources, made by a preparer", got="plain text")
        return sequence_loss(self.checked_model(model), batch, self.smoothing, self.z_loss)


def _take(batch: Batch, rows: np.ndarray) -> Batch:
    """Return some rows of a batch."""
    return batch.select(torch.from_numpy(np.flatnonzero(rows)))


def _joined(
    batch: Batch, chosen: np.ndarray, made: Mapping[int, Batch], sizes: tuple[int, int], modes: list[tuple[int, ...]]
) -> Batch:
    """Return one batch of what objectives made of its rows, each source after its mode token, padded at the end."""
    rows = len(chosen)
    source, lengths = torch.zeros(rows, sizes[0], dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    sides = {name: torch.zeros(rows, sizes[1], dtype=torch.int64) for name in ("inputs", "targets")}
    weights = torch.zeros(rows, sizes[1])
    for number, part_of in made.items():
        where, before = torch.from_numpy(np.flatnonzero(chosen == number)), modes[number]
        assert part_of.source is not None
        own, written = part_of.source.shape[1], part_of.targets.shape[1]
        source[where[:, None], torch.arange(len(before))] = torch.tensor(before, dtype=torch.int64)
        source[where, len(before) : len(before) + own] = part_of.source
        lengths[where] = len(before) + (own if part_of.source_lengths is None else part_of.source_lengths)
        sides["inputs"][where, :written], sides["targets"][where, :written] = part_of.inputs, part_of.targets
        weights[where, :written] = part_of.weights
    return Batch(sides["inputs"], sides["targets"], weights, batch.rows, source=source, source_lengths=lengths)
