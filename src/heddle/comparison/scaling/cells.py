"""Cells of a grid of sizes and tokens: each size of each budget, with exact FLOPs and both counts of parameters.

Sizes of all budgets lie on one ladder, so that most of them are trained at several budgets: an IsoFLOP profile is then
also a grid of sizes and tokens. Nothing is ever read twice: what one epoch does not hold is left out.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from heddle.comparison.arms import with_rate
from heddle.comparison.plan import Hashes, PlannedRun, config_hash, prepare_data, run_flops, run_of_seed
from heddle.comparison.scaling.study import MIN_BUDGETS, MIN_SIZES, Architecture, Study
from heddle.comparison.suites import VALIDATION_ROWS
from heddle.core import ConfigError, UsageError, fields_of, replace
from heddle.data.shards import Prepared, Shards
from heddle.data.sources import Split
from heddle.models import (
    Shape,
    ShapeLadder,
    build_meta,
    count_parameters,
    resize,
    stack_parameters,
    training_flops,
)
from heddle.training import RunConfig, resolve_model

T = TypeVar("T")
FLOPS_AT_CENTRE = 60.0  # C / N^2 where each parameter has ten tokens: six FLOPs each for N parameters and 10 N tokens
MIN_STEPS = 20
STRIDE, TRIALS = 3.0, 28  # how budgets that fit are looked for
GRID, LARGER = "grid", "larger"  # arms; those of the search are called rate x 0.5


@dataclass(frozen=True)
class Cell:
    """One size at one budget; `base` is its run without steps, rate and warm-up."""

    architecture: str
    shape: Shape
    budget: float
    steps: int
    tokens: int
    parameters: int
    stack_parameters: int  # without embeddings and head
    flops_token: int
    base: RunConfig = field(repr=False)

    @property
    def flops(self) -> float:
        """Return the FLOPs of training."""
        return float(self.flops_token) * self.tokens

    @property
    def variant(self) -> str:
        """Return the name of architecture and shape; runs of one variant are compiled once."""
        return f"{self.architecture} {self.shape}"


@dataclass(frozen=True)
class CellRun:
    """A run of a cell, with its seed, arm and rate."""

    cell: Cell
    run: PlannedRun
    factor: float = 1.0  # of the recipe's learning rate

    @property
    def key(self) -> str:
        """Return the name of exactly this run."""
        return self.run.key


@dataclass(frozen=True)
class Profile:
    """The sizes of one architecture at all budgets, and what was left out of the grid, with the reason."""

    architecture: Architecture
    cells: tuple[Cell, ...]
    left_out: tuple[str, ...]

    @property
    def budgets(self) -> list[float]:
        """Return the budgets, smallest first."""
        return sorted({cell.budget for cell in self.cells})

    def at(self, budget: float) -> list[Cell]:
        """Return the cells of a budget, smallest first."""
        return sorted((cell for cell in self.cells if cell.budget == budget), key=lambda cell: cell.parameters)

    @cached_property
    def smallest(self) -> Cell:
        """Return the smallest size at the smallest budget."""
        return self.at(self.budgets[0])[0]

    @cached_property
    def middle(self) -> Cell:
        """Return the middle size at the middle budget."""
        return _middle(self.at(_middle(self.budgets)))

    @property
    def repeated(self) -> list[Cell]:
        """Return the cells that have several seeds: the middle size at three budgets."""
        budgets = self.budgets
        return [_middle(self.at(budget)) for budget in dict.fromkeys((budgets[0], _middle(budgets), budgets[-1]))]


def _middle(values: list[T]) -> T:
    return values[len(values) // 2]


@dataclass(frozen=True)
class Text:
    """The data of a study, ready: names, vocabulary, and the tokens of one epoch."""

    hashes: Hashes
    vocab: int
    tokens: int

    @classmethod
    def of(cls, prepared: Prepared) -> "Text":
        """Read what is known of prepared data."""
        (folder, *_) = prepared.shard_folders(Split.TRAIN)
        shards = Shards.open(folder, verify=False)
        try:
            return cls(Hashes.of(prepared), prepared.load_tokenizer().vocab, shards.tokens)
        finally:
            shards.close()


@dataclass(frozen=True)
class Grid:
    """A study on its data: the profile of each architecture."""

    study: Study
    text: Text
    profiles: tuple[Profile, ...]

    def runs(self, cell: Cell, arm: str, seeds: Iterable[int], factor: float) -> list[CellRun]:
        """Return runs of a cell at a rate."""
        found = []
        for seed in seeds:
            config = _trained(self.study, cell, seed, factor)
            name, hashes = config_hash(config), self.text.hashes
            key = "-".join([name, hashes.data, hashes.valid, str(seed), arm.replace(" ", ""), str(cell.steps)])
            changes = (f"layers {cell.shape.layers}", f"width {cell.shape.width}", f"rate x {factor:g}")
            cost = run_flops(config, cell.steps)
            run = PlannedRun(cell.variant, seed, arm, config, name, key, "", changes, cost)
            found.append(CellRun(cell, run, factor))
        return found

    def cell(self, one: Architecture, parameters: float, tokens: float) -> Cell:
        """Return a size of an architecture with so many tokens, one epoch at most."""
        sizes = _Sizes(self.study, one, self.text.vocab)
        cell = sizes.cell(sizes.ladder.nearest(parameters), 0.0, tokens=tokens)
        check_epoch(cell, self.text.tokens)
        return cell


def _trained(study: Study, cell: Cell, seed: int, factor: float) -> RunConfig:
    """Return the config of a run: steps, warm-up as a share of them, and the learning rate."""
    config = with_rate(run_of_seed(cell.base, cell.steps, seed), factor)
    schedule = config.training.schedule
    if "warmup" in fields_of(schedule):
        schedule = replace(schedule, warmup=int(study.scale.warmup * cell.steps))
    return replace(config, training=replace(config.training, schedule=schedule))


def prepare_grid(study: Study, folder: Path) -> Grid:
    """Tokenize the data where they are not yet, and lay out the grid on them."""
    base, prepared = prepare_data(study.first, folder)
    return make_grid(study, Text.of(prepared), base)


def make_grid(study: Study, text: Text, base: RunConfig) -> Grid:
    """Return the cells of every architecture on this text; `base` has the data where they are now."""
    profiles = []
    for one in study.architectures:
        own = replace(one.base, data=base.data, validation_rows=one.base.validation_rows or VALIDATION_ROWS)
        profiles.append(_profile(study, Architecture(one.name, own, one.edits), text))
    return Grid(study, text, tuple(profiles))


def _profile(study: Study, one: Architecture, text: Text) -> Profile:
    sizes, cells, left_out = _Sizes(study, one, text.vocab), list[Cell](), list[str]()
    for budget in sorted(study.scale.budgets):
        here, unfit = sizes.at(budget, text.tokens)
        if len(here) < MIN_SIZES:
            want = f"at least {MIN_SIZES} sizes that can be trained at {budget:.3g} FLOPs, got {len(here)}"
            why = "; ".join(f"{shape}: {reason}" for shape, reason in unfit.items())
            raise UsageError(f"{one.name}: budgets: want {want} ({why}); {_advice(study, one, text, budget)}")
        cells += here
        left_out += [f"{one.name} {shape} at {budget:.3g} FLOPs: {reason}" for shape, reason in unfit.items()]
    return Profile(one, tuple(cells), tuple(left_out))


def _advice(study: Study, one: Architecture, text: Text, budget: float) -> str:
    """Return three budgets that fit, the nearest: larger ones have more steps, smaller ones fewer tokens."""
    sizes = _Sizes(study, one, text.vocab)
    too_long = any(sizes.cell(shape, budget).tokens > text.tokens for shape in sizes.at(budget, text.tokens)[1])
    for power in range(TRIALS):
        first = budget / STRIDE ** (power + 1) if too_long else budget * STRIDE**power
        budgets = tuple(float(f"{first * 2**step:.2g}") for step in range(MIN_BUDGETS))
        trial = _Sizes(dataclasses.replace(study, scale=replace(study.scale, budgets=budgets)), one, text.vocab)
        if all(len(trial.at(each, text.tokens)[0]) >= MIN_SIZES for each in budgets):
            return f"budgets={','.join(f'{each:g}' for each in budgets)} would fit"
    return "no budgets fit: give more text, sizes that differ more, or fewer tokens a step (training.batch)"


def _unfit(cell: Cell, epoch: int) -> str:
    if cell.tokens > epoch:
        return f"{cell.tokens:,} tokens are more than the {epoch:,} of one epoch"
    return f"{cell.steps} steps are fewer than {MIN_STEPS}" if cell.steps < MIN_STEPS else ""


def check_epoch(cell: Cell, epoch: int) -> None:
    """Refuse a run that would read its data twice: a law of fresh tokens says nothing of it."""
    if cell.tokens > epoch:
        raise UsageError(f"larger.tokens: want at most the {epoch:,} tokens of one epoch, got {cell.tokens:,}")


class _Sizes:
    """The shapes of one architecture, with what each costs."""

    def __init__(self, study: Study, one: Architecture, vocab: int) -> None:
        self.study, self.one, self.vocab = study, one, vocab
        self.ladder = ShapeLadder(one.base.model, lambda model: self._known(model)[0], study.scale.depth)
        self._counts: dict[Any, tuple[int, int, int]] = {}
        ratios = sorted(study.scale.sizes)
        self._step = min(math.log(b / a) for a, b in pairwise(ratios))
        self._first = math.log(ratios[0] * math.sqrt(min(study.scale.budgets) / FLOPS_AT_CENTRE))

    def rung(self, parameters: float) -> float:
        """Return the nearest size of the ladder that begins with the smallest size of all."""
        return math.exp(self._first + self._step * round((math.log(parameters) - self._first) / self._step))

    def at(self, budget: float, epoch: int) -> tuple[list[Cell], dict[Shape, str]]:
        """Return the cells of a budget, and the shapes that cannot be trained at it, with the reason."""
        centre, cells, unfit = math.sqrt(budget / FLOPS_AT_CENTRE), dict[Shape, Cell](), dict[Shape, str]()
        for ratio in sorted(self.study.scale.sizes):
            cell = self.cell(self.ladder.nearest(self.rung(ratio * centre)), budget)
            if reason := _unfit(cell, epoch):
                unfit[cell.shape] = reason
            elif cell.shape in cells:
                unfit[cell.shape] = f"also the nearest to the ratio {ratio:g}"
            else:
                cells[cell.shape] = cell
        return list(cells.values()), unfit

    def cell(self, shape: Shape, budget: float, tokens: float | None = None) -> Cell:
        """Return a shape at a budget, or with a number of tokens."""
        config = self._run(resize(self.one.base.model, shape))
        parameters, stack, flops = self._known(resize(self.one.base.model, shape))
        per_step = config.training.batch * config.rows.max_length
        steps = int((budget / flops if tokens is None else tokens) / per_step)
        return Cell(self.one.name, shape, budget, steps, steps * per_step, parameters, stack, flops, config)

    def _run(self, model: Any) -> RunConfig:
        config = replace(self.one.base, model=model)
        return self.one.edited(replace(config, model=resolve_model(config, self.vocab, None)))

    def _known(self, model: Any) -> tuple[int, int, int]:
        """Return the parameters with and without embeddings and head, and the FLOPs of a token."""
        plain = str(model)
        if plain not in self._counts:
            try:
                config = self._run(model)
                built = build_meta(config.model)
            except ConfigError as error:
                raise UsageError(f"{self.one.name}: {error}") from None
            flops = training_flops(built, config.rows.max_length)
            self._counts[plain] = count_parameters(built), stack_parameters(built), flops
        return self._counts[plain]
