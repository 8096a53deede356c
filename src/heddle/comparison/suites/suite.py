"""Suites: a base run, variants as edits of it, a budget, seeds and arms; from Python, from YAML, or from names.

A suite is data. Its variants are functions from one run config to another; what a variant is, is printed as the
difference of the two configs, so that its description cannot lie.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from heddle.core import (
    Config,
    ConfigError,
    Positive,
    UsageError,
    check_at_least,
    decode,
    decode_value,
    diff,
    find,
    hint,
    replace,
    settings,
    swap,
    within,
)
from heddle.core.system import parse_overrides, read_config
from heddle.models.laws import FAMILIES
from heddle.models.networks import ModelConfig
from heddle.models.presets import PresetConfig, preset
from heddle.recipes import RECIPES
from heddle.training import RunConfig, apply_overrides, resolve_run

Edit = Callable[[RunConfig], RunConfig]
ArmName = Literal["tokens", "rate", "time"]
BASE = "base"
NO_PART = "none"  # the kind of a part that stands for none
RATES = (0.5, 1.0, 2.0)  # of the arm `rate`, times the learning rate of the base
VALIDATION_ROWS = 256  # where the base measures all: as many again are the test rows


@settings
class BudgetConfig(Config):
    """What each run may spend; one of the four is given.

    steps: optimizer steps.
    tokens: tokens that are read in training.
    flops: floating-point operations of training, counted from the model's own products.
    seconds: seconds of training on the device, by the measured speed of each variant.
    """

    steps: Positive | None = None
    tokens: Positive | None = None
    flops: Annotated[float, within("above 0", lambda flops: flops > 0)] | None = None
    seconds: Annotated[float, within("above 0", lambda seconds: seconds > 0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) > 1:
            raise ConfigError("budget", want="one of steps, tokens, flops and seconds", got=" and ".join(given))


@dataclass(frozen=True)
class Variant:
    """An edit of the base under a name."""

    name: str
    edit: Edit
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A published loss, with its deviation over so many runs where that is known."""

    loss: float
    deviation: float | None = None
    runs: int = 1


@dataclass(frozen=True)
class Suite:
    """What to compare.

    base: the run that every variant is an edit of; its model is written out when the vocabulary is known.
    paper: figures of a publication, each by variant, to compare ranks with; lower is better.
    base_name: what the base is called in the table.
    """

    name: str
    base: RunConfig
    variants: tuple[Variant, ...]
    budget: BudgetConfig = dataclasses.field(default_factory=BudgetConfig)
    seeds: tuple[int, ...] = (0, 1, 2)
    arms: tuple[ArmName, ...] = ("tokens",)
    paper: "Mapping[str, Mapping[str, Figure]]" = dataclasses.field(default_factory=dict)
    base_name: str = BASE

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        doubled = {name for name in names if names.count(name) > 1} | ({self.base_name} & set(names))
        if doubled:
            raise UsageError(f"suite {self.name}: two variants are called {sorted(doubled)[0]!r}")
        if not names:
            raise UsageError(f"suite {self.name}: want at least one variant")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UsageError(f"suite {self.name}: want at least one seed, each once, got {list(self.seeds)}")

    def only(self, names: Iterable[str]) -> "Suite":
        """Return the suite with some of its variants; the base, which is always trained, may be among the names."""
        by_name = {variant.name: variant for variant in self.variants}
        names = [name for name in names if name != self.base_name]
        for name in names:
            if name not in by_name:
                raise UsageError(f"suite {self.name}: no variant is called {name!r}{hint(name, list(by_name))}")
        return dataclasses.replace(self, variants=tuple(by_name[name] for name in dict.fromkeys(names)))


# --- edits ------------------------------------------------------------------------------------------------------------


def set_fields(*overrides: str) -> Edit:
    """Return an edit by KEY=VALUE, as on the command line."""
    return lambda config: apply_overrides(config, parse_overrides(overrides))


def swap_parts(*swaps: str) -> Edit:
    """Return an edit by family and kind, norm=rms_norm: each replaces every part of its family in the model.

    Where there are several, those of the kind `none` stay: a layer norm is no reason to norm what was not normed.
    """
    pairs = [_swap_named(name, part) for name, part in parse_overrides(swaps)]

    def edit(config: RunConfig) -> RunConfig:
        for family, replacement in pairs:
            config = replace(config, model=_swap_all(config.model, family, replacement))
        return config

    return edit


def _swap_all(model: ModelConfig, family: type[Config], replacement: Config) -> ModelConfig:
    real = any(one.kind != NO_PART for one in find(model, family))

    def change(old: Config) -> Config:
        return old if real and old.kind == NO_PART else replacement

    return swap(family, change)(model)


def _swap_named(name: str, part: Any) -> tuple[type[Config], Config]:
    families = {family.__name__.removesuffix("Config").lower(): family for family in FAMILIES}
    if name not in families:
        raise ConfigError.unknown("swap", name, sorted(families))
    replacement = decode_value(families[name], {"kind": part} if isinstance(part, str) else part, f"swap.{name}")
    assert isinstance(replacement, Config)
    return families[name], replacement


def edit_model(edit: Callable[[Any], Any]) -> Edit:
    """Return an edit of the whole run from one of its model."""
    return lambda config: replace(config, model=edit(config.model))


def other_model(name: str, **sizes: Any) -> Edit:
    """Return an edit that takes another preset, with the vocabulary and the context of the base."""

    def edit(config: RunConfig) -> RunConfig:
        given = {"vocab": config.model.expand().vocab, "context": config.model_length}
        own = {key: value for key, value in given.items() if key in preset(name).option_names}
        return replace(config, model=PresetConfig(name=name, **own | sizes).expand())

    return edit


# --- from YAML --------------------------------------------------------------------------------------------------------


@settings
class VariantConfig(Config):
    """A variant in a file: fields to set, and parts to swap wherever they stand in the model.

    name: what the variant is called.
    set: changes of the base run, as KEY=VALUE.
    swap: parts by family, such as norm=rms_norm: each replaces every part of its family.
    note: a remark for the report.
    """

    name: str
    set: tuple[str, ...] = ()
    swap: tuple[str, ...] = ()
    note: str = ""

    def variant(self) -> Variant:
        """Return the variant."""
        edits = [set_fields(*self.set), swap_parts(*self.swap)]

        def edit(config: RunConfig) -> RunConfig:
            for one in edits:
                config = one(config)
            return config

        return Variant(self.name, edit, self.note)


@settings
class SuiteConfig(Config):
    """A suite in a file.

    name: what the suite is called; its results go to a folder of that name.
    base: the run that all variants are edits of: a recipe or a config file.
    set: changes of the base, as KEY=VALUE.
    variants: what is compared with the base.
    budget: what each run may spend; empty: the steps of the base.
    seeds: how many seeds each variant is trained with.
    arms: tokens: equal budgets; rate: half, once and twice the learning rate; time: equal seconds.
    """

    name: str
    variants: tuple[VariantConfig, ...]
    base: str = "first"
    set: tuple[str, ...] = ()
    budget: BudgetConfig = BudgetConfig()
    seeds: Positive = 3
    arms: tuple[ArmName, ...] = ("tokens",)

    def suite(self, folder: Path) -> Suite:
        """Return the suite; paths are relative to the folder of its file."""
        base = str(folder / self.base) if self.base.endswith((".yaml", ".yml", ".json")) else self.base
        config = resolve_run(base, parse_overrides(self.set), Path("runs"), RECIPES).config
        variants = tuple(variant.variant() for variant in self.variants)
        return Suite(self.name, config, variants, self.budget, tuple(range(self.seeds)), self.arms)


def read_suite(path: Path) -> Suite:
    """Read a suite from a YAML or JSON file."""
    return decode(SuiteConfig, read_config(path)).suite(path.parent)


def with_settings(suite: Suite, given: Iterable[tuple[str, Any]]) -> Suite:
    """Return the suite with settings of a command: seeds, arms and budget of its own, all else of the base run."""
    rest = []
    for key, value in given:
        if key == "seeds":
            count = typing.cast(int, decode_value(int, value, "seeds"))
            check_at_least(1, seeds=count)
            suite = dataclasses.replace(suite, seeds=tuple(range(count)))
        elif key == "arms":
            words = value.split(",") if isinstance(value, str) else value
            arms = decode_value(tuple[ArmName, ...], words, "arms")
            suite = dataclasses.replace(suite, arms=typing.cast("tuple[ArmName, ...]", arms))
        elif key == "budget" or key.startswith("budget."):
            name = key.partition(".")[2] or "tokens"
            suite = dataclasses.replace(suite, budget=decode(BudgetConfig, {name: value}, "budget"))
        else:
            rest.append((key, value))
    return dataclasses.replace(suite, base=apply_overrides(suite.base, rest))


# --- checks -----------------------------------------------------------------------------------------------------------


def describe(base: RunConfig, variant: RunConfig) -> list[str]:
    """Return the differences of a variant from its base, one line each."""
    return [str(change) for change in diff(base, variant) if change.path not in ("name", "seed", "weight_seed")]


OTHER_LOSS = {
    "data": "other text",
    "tokenizer": "other tokens",
    "rows": "other rows",
    "validation_rows": "other rows",
    "objective": "another kind",
}


def check_comparable(base: RunConfig, variant: RunConfig, name: str) -> None:
    """Refuse a variant whose loss means something else than the base's, or that is no variant at all."""
    if not describe(base, variant):
        raise UsageError(f"{name}: equal to the base; an edit that changes nothing would only measure noise")
    changed = {change.path.split(".")[0] for change in diff(base, variant)}
    for field, why in OTHER_LOSS.items():
        if field in changed:
            raise UsageError(f"{name}: changes {field}, so its loss in nats would be of {why} and cannot be compared")
