"""The plan of a comparison: which runs there are, each with a config and a key that says exactly what it is."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from heddle.comparison.suites import VALIDATION_ROWS, Suite, Variant, check_comparable, describe
from heddle.core import Config, ConfigError, UsageError, fields_of, find, replace, user_code
from heddle.core.system import read_text
from heddle.data.shards import Prepared, open_prepared, prepare
from heddle.data.sources import CorpusConfig, PreparedSource
from heddle.models import build_meta, training_flops
from heddle.models.networks import ModelConfig
from heddle.text.tokenizers import Tokenizer
from heddle.training import EveryConfig, KeepConfig, RunConfig, guess_vocab, resolve_model, with_control_tokens

CONTROL_SAME, CONTROL_LESS = "control: base again", "control: 90 % of the tokens"
CONTROLS = (CONTROL_SAME, CONTROL_LESS)
LESS = 0.9
VALIDATIONS, POINTS = 5, 20  # of a run: held-out losses, and lines in its log
OTHER_WEIGHTS = 1000  # added to the seed of the second base: other weights and dropout, the same data
TOKENS = "tokens"
NOT_HASHED = ("name", "seed", "weight_seed", "data", "every", "keep", "stop", "hardware", "use", "tensorboard")


@dataclass(frozen=True)
class PlannedRun:
    """One run: a variant, a seed, an arm, and the whole config."""

    variant: str
    seed: int
    arm: str  # tokens, time, rate, or in the search for a rate: rate x 0.5
    config: RunConfig
    config_hash: str
    key: str
    note: str = ""
    changes: tuple[str, ...] = ()  # the printed difference from the base
    cost: float = 0.0  # FLOPs


@dataclass(frozen=True)
class Hashes:
    """Names for exactly this data: what is learned from, what is held out, the tokenizer."""

    data: str
    valid: str
    tokenizer: str

    @classmethod
    def of(cls, prepared: Prepared) -> "Hashes":
        """Return the hashes of prepared data, by the checksums of its files; where they lie does not matter."""
        return cls(_side_hash(prepared.train), _side_hash(prepared.valid), prepared.tokenizer_fingerprint[:12])


def _side_hash(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("manifest.json")):
        files = json.loads(read_text(path))["files"]
        found.update(json.dumps([path.parent.name, [file["sha256"] for file in files]]).encode())
    return found.hexdigest()[:12]


@dataclass(frozen=True)
class Plan:
    """The base and the variants of a suite with their data, from which runs are made."""

    suite: Suite
    base: RunConfig
    variants: tuple[tuple[Variant, RunConfig], ...]  # the base first
    hashes: Hashes

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens that a step of the base reads."""
        return self.base.training.batch * self.base.rows.max_length

    def configs(self) -> dict[str, RunConfig]:
        """Return the configs by variant."""
        return {variant.name: config for variant, config in self.variants}

    def runs(self, variant: Variant, config: RunConfig, arm: str, steps: int, seeds: Iterable[int]) -> list[PlannedRun]:
        """Return one run for each seed; the same seed means the same data order and masks in every variant."""
        changes, cost = tuple(describe(self.base, config)), run_flops(config, steps)
        found = []
        for seed in seeds:
            full = run_of_seed(config, steps, seed)
            name = config_hash(full)
            parts = [name, self.hashes.data, self.hashes.valid, str(seed), arm.replace(" ", ""), str(steps)]
            weights = [] if config.weight_seed is None else [f"w{full.weight_seed}"]
            key = "-".join([*parts, *weights])
            found.append(PlannedRun(variant.name, seed, arm, full, name, key, variant.note, changes, cost))
        return found


def prepare_base(suite: Suite, folder: Path) -> tuple[RunConfig, Prepared]:
    """Tokenize the data once for all runs; return the base on it, with its model written out for this vocabulary."""
    config, ready = prepare_data(suite.base, folder)
    return replace(config, model=resolve_model(config, ready.load_tokenizer().vocab, None)), ready


def prepare_data(config: RunConfig, folder: Path) -> tuple[RunConfig, Prepared]:
    """Tokenize the data of a run once; return the run on it."""
    config = config.absolute()
    if config.data.prepared is not None:
        ready = open_prepared(config.data.prepared)
        if ready is None:
            raise UsageError(f"{config.data.prepared}: not a finished folder of prepared data")
    else:
        place = folder / "data" / "tokens"  # its parent is locked while it is written: not the folder of the suite
        ready = open_prepared(place)
        tokenizer = ready.load_tokenizer() if ready is not None else _tokenizer(config)
        ready = prepare(config.data.resolve(), tokenizer, place)
    if config.rows.paired != ready.pairs or config.rows.reads_media != (ready.media is not None):
        kinds = {True: "pairs of source and target", False: "texts without targets"}
        wanted = "media with texts" if config.rows.reads_media else kinds[config.rows.paired]
        found = kinds[ready.pairs] if ready.media is None else "media with texts"
        raise ConfigError("data", want=f"{wanted}, because rows.kind is {config.rows.kind}", got=found)
    data = CorpusConfig(sources=(PreparedSource(path=str(ready.folder.resolve())),))
    return replace(config, data=data), ready


def _tokenizer(config: RunConfig) -> Tokenizer:
    try:
        return with_control_tokens(config).train(config.data.sample())
    except ConfigError as error:
        raise error.with_prefix("tokenizer") from None


def check_suite(suite: Suite) -> None:
    """Refuse what could not be compared, before the data are read: with about as many tokens as there will be."""
    base = suite.base
    if base.mix or base.init is not None:
        raise ConfigError("base", want="one corpus and new weights, to compare architectures", got="mix or init")
    make_plan(suite, replace(base, model=resolve_model(base, guess_vocab(base), None)), Hashes("", "", ""))


def make_plan(suite: Suite, base: RunConfig, hashes: Hashes) -> Plan:
    """Return the plan of a suite; refuse variants that are equal, or could not be compared."""
    base = replace(base, validation_rows=base.validation_rows or VALIDATION_ROWS)
    first = Variant(suite.base_name, lambda config: config)
    found: list[tuple[Variant, RunConfig]] = []
    names: dict[str, str] = {}
    for variant in (first, *suite.variants):
        config = _edited(variant, base, is_base=variant is first)
        budget_steps(suite, config, variant.name)
        name = config_hash(config)
        if name in names:
            raise UsageError(f"{variant.name}: equal to {names[name]}; want each variant once")
        names[name] = variant.name
        found.append((variant, config))
    return Plan(suite, base, tuple(found), hashes)


def _edited(variant: Variant, base: RunConfig, is_base: bool) -> RunConfig:
    try:
        config = variant.edit(base)
        if not is_base:
            check_comparable(base, config, variant.name)
        config.objective.checked_model(build_meta(config.model))
    except ConfigError as error:
        raise UsageError(f"{variant.name}: {error}") from None
    return config


def run_of_seed(config: RunConfig, steps: int, seed: int) -> RunConfig:
    """Return the run of one seed, with as many validations and lines whatever its length; on a CPU with one thread.

    Threads would otherwise follow what other processes leave free, and the last bits with them.
    """
    hardware = config.hardware
    on_cpu = hardware.device == "cpu" or (hardware.device == "auto" and not torch.cuda.is_available())
    if hardware.threads is None and on_cpu:
        hardware = replace(hardware, threads=1)
    every = max(1, steps // VALIDATIONS)
    return replace(
        config,
        name="run",
        seed=seed,
        weight_seed=None if config.weight_seed is None else config.weight_seed + seed,
        training=replace(config.training, steps=steps),
        every=EveryConfig(log=max(1, steps // POINTS), validate=every, save=config.every.save, sample=steps + 1),
        keep=KeepConfig(last=1, best=0),
        hardware=hardware,
    )


def config_hash(config: RunConfig) -> str:
    """Return a name for what is trained: all but the seed, the steps, the data, and where and how it is logged.

    What is as usual is left out, so that a later version with further settings finds the same name.
    """
    kept = {name: value for name, value in chosen(config).items() if name not in NOT_HASHED}
    kept["training"] = {name: value for name, value in chosen(config.training).items() if name != "steps"}
    kept["numbers"] = [config.hardware.dtype, config.hardware.matmul]
    kept["code"] = [entry.rpartition("#")[2] for entry in own_code(config)]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def chosen(config: Config) -> dict[str, Any]:
    """Return the kind of a config and the fields that are not as their class has them, as plain data."""
    usual = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    found: dict[str, Any] = {"kind": type(config).__name__ if config.kind is None else config.kind}
    for name, value in fields_of(config).items():
        field = usual[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if default is dataclasses.MISSING or default != value:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return chosen(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def own_code(config: RunConfig) -> tuple[str, ...]:
    """Return the user's own code that a run needs, as a worker can load it."""
    return user_code.entries_for(type(one) for one in find(config, Config))


# --- budgets and arms -------------------------------------------------------------------------------------------------


def step_flops(config: RunConfig) -> float:
    """Return the FLOPs of one training step."""
    tokens = config.training.batch * config.rows.max_length
    return float(_token_flops(config.model, config.rows.max_length) * tokens)


@cache
def _token_flops(model: ModelConfig, length: int) -> int:
    return training_flops(build_meta(model), length)


def run_flops(config: RunConfig, steps: int) -> float:
    """Return the FLOPs of a run, those of its validations included: a third of a training step's for each row."""
    rows = (VALIDATIONS + 1) * (config.validation_rows or VALIDATION_ROWS)
    return step_flops(config) * (steps + rows / config.training.batch / 3)


def budget_steps(suite: Suite, config: RunConfig, name: str, seconds: float | None = None) -> int:
    """Return the steps that a budget pays for; one in seconds needs those of a step."""
    budget, tokens = suite.budget, config.training.batch * config.rows.max_length
    if budget.steps is not None:
        return budget.steps
    if budget.tokens is not None:
        return _whole_steps(budget.tokens / tokens, name, f"{budget.tokens:,} tokens, {tokens:,} a step,")
    if budget.flops is not None:
        return _whole_steps(budget.flops / step_flops(config), name, f"{budget.flops:.3g} FLOPs")
    if budget.seconds is not None:
        return 1 if seconds is None else _whole_steps(budget.seconds / seconds, name, f"{budget.seconds:g} seconds")
    return config.training.steps


def _whole_steps(steps: float, name: str, budget: str) -> int:
    if steps < 1:
        raise UsageError(f"{name}: a budget of {budget} does not pay for one step")
    return int(steps)


def control_runs(plan: Plan, steps: int) -> list[PlannedRun]:
    """Return the runs of both controls: the base with other weights, and the base with fewer tokens."""
    same, less = (Variant(name, lambda config: config) for name in CONTROLS)
    seeds = plan.suite.seeds
    other = replace(plan.base, weight_seed=OTHER_WEIGHTS)
    return [
        *plan.runs(same, other, TOKENS, steps, seeds),
        *plan.runs(less, plan.base, TOKENS, max(1, round(LESS * steps)), seeds),
    ]
