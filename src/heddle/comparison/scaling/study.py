"""Studies of scaling: architectures, compute budgets, and sizes around the middle of each budget (IsoFLOP profiles).

A study is data. Its architectures share data, tokenizer, rows and objective, so that their losses mean the same.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from heddle.comparison.suites import Variant, changed
from heddle.core import (
    Config,
    ConfigError,
    Positive,
    UsageError,
    decode,
    fields_of,
    hint,
    override,
    replace,
    settings,
    within,
)
from heddle.core.system import parse_overrides
from heddle.models import shape_of
from heddle.models.presets import PresetConfig
from heddle.recipes import RECIPES
from heddle.training import RunConfig, resolve_run

MIN_BUDGETS, MIN_SIZES = 3, 3  # one may be left out, and a parabola has three constants
MAX_WARMUP = 0.05  # of the steps: longer ones favour large models (Porian et al. 2024)
DECAYED = 0.5  # of the peak rate, at most, that is left in the last step
SHARED = ("data", "tokenizer", "rows", "objective", "validation_rows", "hardware")

AboveZero = Annotated[float, within("above 0", lambda value: 0 < value < math.inf)]
Warmup = Annotated[float, within(f"0 to {MAX_WARMUP}, of the steps", lambda share: 0 <= share <= MAX_WARMUP)]
Rule = Literal["power", "width", "fixed"]


@settings
class LargerConfig(Config):
    """The larger run whose loss is predicted, and measured after that.

    parameters: its size; null: the best for ten times the largest budget.
    tokens: what it is trained on; null: as many as ten times the largest budget pays for, one epoch at most.
    seeds: how many runs of it.
    """

    parameters: AboveZero | None = None
    tokens: AboveZero | None = None
    seeds: Positive = 1


@settings
class ScaleConfig(Config):
    """The grid of a study of scaling.

    budgets: training FLOPs, for each of which several sizes are trained.
    sizes: sizes at a budget of C FLOPs, as ratios of sqrt(C / 60): there each parameter has ten tokens.
    seeds: runs of the middle size at the smallest, the middle and the largest budget; other sizes have one.
    rates: ratios of the recipe's learning rate that the search tries at the smallest and the middle size.
    rule: how the rate follows the width: by a power from the search, by width^-1 (as in muP), or fixed.
    warmup: warm-up as a share of the steps.
    depth: layers grow as width to this power; null: 1, and 0 for stacks without residual connections.
    draws: fits to resampled runs (bootstrap), for intervals.
    larger: the larger run that is predicted.
    """

    budgets: tuple[float, ...] = (1e11, 3e11, 1e12, 3e12)
    sizes: tuple[float, ...] = (0.25, 0.44, 0.76, 1.3, 2.3, 4.0)
    seeds: Positive = 2
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    rule: Rule = "power"
    warmup: Warmup = MAX_WARMUP
    depth: Annotated[float, within("0 to 2", lambda power: 0 <= power <= 2)] | None = None
    draws: Annotated[int, within("at least 20", lambda count: count >= 20)] = 1000
    larger: LargerConfig = LargerConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("budgets", "sizes", "rates"):
            for value in fields_of(self)[name]:
                if not 0 < value < math.inf:
                    raise ConfigError(name, want="numbers above 0", got=f"{value:g}")
        for name, least in (("budgets", MIN_BUDGETS), ("sizes", MIN_SIZES)):
            given = fields_of(self)[name]
            if len(set(given)) < max(least, len(given)):
                raise ConfigError(name, want=f"at least {least}, each once", got=", ".join(f"{x:g}" for x in given))
        if self.rule == "power" and (len(set(self.rates)) < max(3, len(self.rates)) or 1.0 not in self.rates):
            got = ", ".join(f"{x:g}" for x in self.rates) or "none"
            raise ConfigError("rates", want="at least 3, 1 among them, to find the best; or rule=fixed", got=got)


@dataclass(frozen=True)
class Architecture:
    """A run that is trained at many sizes; edits of the model come after its size."""

    name: str
    base: RunConfig
    edits: tuple[Variant, ...] = ()

    def edited(self, config: RunConfig) -> RunConfig:
        """Return a run with the edits."""
        for variant in self.edits:
            config = variant.edit(config)
        return config


@dataclass(frozen=True)
class Study:
    """What to scale: architectures on one text, and the grid."""

    name: str
    architectures: tuple[Architecture, ...]
    scale: ScaleConfig = dataclasses.field(default_factory=ScaleConfig)

    def __post_init__(self) -> None:
        names = [one.name for one in self.architectures]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"scale: want at least one architecture, each once, got {', '.join(names) or 'none'}")
        for one in self.architectures:
            _check(one)

    @property
    def first(self) -> RunConfig:
        """Return the run whose data the others share."""
        return self.architectures[0].base


SETTINGS = {field.name for field in dataclasses.fields(ScaleConfig)}


def choose_study(targets: Sequence[str], given: Iterable[tuple[str, Any]] = ()) -> Study:
    """Return the study that the words of a command mean.

    Targets are recipes or config files, and changes of the first: model:lstm_lm is another preset, norm:layer_norm
    another norm. Without any, the first recipe learns bytes.
    """
    given = list(given)
    plain: dict[str, Any] = {}
    for path, value in given:
        if path.split(".")[0] in SETTINGS:
            _put(plain, path, value)
    rest = [(path, value) for path, value in given if path.split(".")[0] not in SETTINGS]
    if not targets:
        rest = [("tokenizer", "byte"), *rest]
    scale = decode(ScaleConfig, plain)
    bases, edits = [t for t in targets or ("first",) if ":" not in t], [t for t in targets if ":" in t]
    if not bases:
        raise UsageError(f"scale: want a recipe or a config file first, which {edits[0]} changes")
    own = [(path, value) for path, value in rest if path.split(".")[0] not in SHARED]
    found = [_architecture(name, own if number else rest) for number, name in enumerate(bases)]
    found += [_changed(found[0], word, own) for word in edits]
    first = found[0].base
    shared = {name: fields_of(first)[name] for name in SHARED}
    others = [dataclasses.replace(one, base=replace(one.base, **shared)) for one in found[1:]]
    return Study(found[0].name, (found[0], *others), scale)


def _put(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set a setting; lists of numbers may be separated by commas."""
    key, _, inner = path.partition(".")
    if inner:
        inside = plain.setdefault(key, {})
        if isinstance(inside, dict):
            inside[inner] = value
        return
    listed = key in ("budgets", "sizes", "rates") and not isinstance(value, list)
    plain[key] = [_number(word) for word in str(value).split(",")] if listed else value


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word  # refused by name


def _architecture(target: str, given: list[tuple[str, Any]]) -> Architecture:
    path = Path(target)
    is_file = path.suffix in (".yaml", ".yml", ".json")
    if not is_file and target not in RECIPES:
        known = hint(target, RECIPES, f"; recipes: {', '.join(RECIPES)}")
        raise UsageError(f"no recipe or config file is called {target!r}{known}")
    if is_file and not path.is_file():
        raise UsageError(f"{target}: no such file")
    try:
        config = resolve_run(target, given, Path("runs"), RECIPES).config
    except ConfigError as error:
        raise UsageError(f"{target}: {error}") from None
    return Architecture(path.stem if is_file else target, config)


def _changed(first: Architecture, word: str, given: list[tuple[str, Any]]) -> Architecture:
    """Return a change of the first architecture: another preset, with the settings of its model, or other parts."""
    variant = changed(word)
    family, _, kind = word.partition(":")
    if family == "model":
        base = replace(first.base, model=PresetConfig(name=kind))
        for path, value in given:
            if path.startswith("model.") and path != "model.name":
                try:
                    base = override(base, path, value)
                except ConfigError as error:
                    raise UsageError(f"{word}: {error}") from None
        return Architecture(kind, base)
    return Architecture(word, first.base, (variant,))


def _check(one: Architecture) -> None:
    """Refuse what has no scaling law by this method, before any data are read."""
    config, name = one.base, one.name
    if config.mix or config.init is not None or config.adapters is not None:
        raise UsageError(f"{name}: want one corpus and new weights, got mix, init or adapters")
    if config.rows.paired or config.rows.labelled:
        raise UsageError(f"{name}: rows.kind: want rows of plain text, to count its tokens, got {config.rows.kind}")
    schedule, steps = config.training.schedule, 1000
    if schedule.factor(steps - 1, steps) > DECAYED:
        want = "want one that decays, for a loss in the middle of a schedule is no result"
        raise UsageError(f"{name}: training.schedule: {want}, got {schedule.kind}")
    if not isinstance(fields_of(config.training.optimizer).get("learning_rate"), float):
        got = config.training.optimizer.kind
        raise UsageError(f"{name}: training.optimizer: want one with a learning_rate, got {got}")
    try:
        shape_of(config.model)
    except ConfigError as error:
        raise UsageError(f"{name}: {error}") from None


def parse_words(words: Sequence[str]) -> Study:
    """Return the study that words and settings of a command line mean."""
    given = parse_overrides([word for word in words if "=" in word])
    return choose_study([word for word in words if "=" not in word], given)
