"""The plan of a comparison: which runs there are, each with a config and a key that says exactly what it is."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.comparison.suite import BASE, RATES, ArmName, Suite, Variant, check_comparable, describe
from heddle.core import ConfigError, UsageError, encode, fields_of, replace
from heddle.data.shards import Prepared, open_prepared, prepare
from heddle.data.sources import CorpusConfig, PreparedSource
from heddle.models import build_meta, training_flops
from heddle.models.networks import Model
from heddle.models.presets import PresetConfig, preset
from heddle.text.tokenizers import Tokenizer
from heddle.training import EveryConfig, KeepConfig, RunConfig, with_control_tokens

CONTROL_SAME, CONTROL_LESS = "control: base again", "control: 90 % of the tokens"
LESS = 0.9
POINTS = 20  # of the curve of held-out losses


@dataclass(frozen=True)
class PlannedRun:
    """One run: a variant, a seed, an arm, and the whole config."""

    variant: str
    seed: int
    arm: str  # tokens, time, or rate x 0.5
    config: RunConfig
    key: str
    note: str = ""
    changes: tuple[str, ...] = ()  # the printed difference from the base


@dataclass(frozen=True)
class Plan:
    """All runs of a suite, and what they share."""

    suite: str
    base: RunConfig
    runs: tuple[PlannedRun, ...]
    data_hash: str
    tokenizer_hash: str
    tokens_per_step: int


def prepare_base(suite: Suite, folder: Path) -> tuple[RunConfig, Prepared]:
    """Tokenize the data once for all runs; return the base on it, with its model written out for this vocabulary."""
    config = suite.base.absolute()
    if config.mix or config.init is not None:
        raise ConfigError("base", want="one corpus and new weights, to compare architectures", got="mix or init")
    if config.data.prepared is not None:
        ready = open_prepared(config.data.prepared)
        if ready is None:
            raise UsageError(f"{config.data.prepared}: not a finished folder of prepared data")
    else:
        place = folder / "data" / "tokens"  # its parent is locked while it is written
        ready = open_prepared(place)
        tokenizer = ready.load_tokenizer() if ready is not None else _tokenizer(config)
        ready = prepare(config.data.resolve(), tokenizer, place)
    tokenizer = ready.load_tokenizer()
    data = CorpusConfig(sources=(PreparedSource(path=str(ready.folder.resolve())),))
    return replace(config, data=data, model=_written_out(config, tokenizer.vocab)), ready


def _tokenizer(config: RunConfig) -> Tokenizer:
    try:
        return with_control_tokens(config).train(config.data.sample())
    except ConfigError as error:
        raise error.inside("tokenizer") from None


def _written_out(config: RunConfig, vocab: int) -> Any:
    """Return the model with all its parts, so that edits reach them."""
    model = config.model
    if isinstance(model, PresetConfig):
        given = {"vocab": model.vocab or vocab, "context": model.context or config.rows.max_length}
        model = replace(model, **{name: given[name] for name in given if name in preset(model.name).option_names})
    return model.expand()


def make_plan(suite: Suite, base: RunConfig, prepared: Prepared, controls: bool = True) -> Plan:
    """Return every run of a suite; refuse what could not be compared, before anything trains."""
    tokens = base.training.batch * base.rows.max_length
    runs: list[PlannedRun] = []
    variants = [Variant(BASE, lambda config: config), *suite.variants]
    for arm in suite.arms:
        for variant in variants:
            config = _edited(variant, base)
            for label, tuned in _of_arm(arm, config):
                arm_of_variant = _Arm(variant, label, tuned, _steps(suite, tuned, variant.name))
                runs += _seeded(suite, arm_of_variant, base, prepared)
    if controls and "tokens" in suite.arms:
        steps = _steps(suite, base, BASE)
        same, less = Variant(CONTROL_SAME, lambda c: c), Variant(CONTROL_LESS, lambda c: c)
        runs += _seeded(suite, _Arm(same, "tokens", base, steps, weight_seed=1000), base, prepared)
        runs += _seeded(suite, _Arm(less, "tokens", base, max(1, round(LESS * steps))), base, prepared)
    unique = {run.key: run for run in runs}
    return Plan(suite.name, base, tuple(unique.values()), prepared.fingerprint, prepared.tokenizer_fingerprint, tokens)


def _edited(variant: Variant, base: RunConfig) -> RunConfig:
    try:
        config = variant.edit(base)
        if variant.name != BASE:
            check_comparable(base, config, variant.name)
        config.objective.checked_model(build_meta(config.model))
    except ConfigError as error:
        raise UsageError(f"{variant.name}: {error}") from None
    return config


def _of_arm(arm: ArmName, config: RunConfig) -> list[tuple[str, RunConfig]]:
    """Return the settings that an arm trains: one, or one for each learning rate."""
    if arm != "rate":
        return [(arm, config)]
    optimizer = config.training.optimizer
    rate = fields_of(optimizer).get("learning_rate")
    if rate is None:
        raise UsageError(f"arm rate: the optimizer {optimizer.kind} has no learning_rate")
    return [
        (f"rate x {factor:g}", replace(config, training=replace(config.training, optimizer=replace(
            optimizer, learning_rate=rate * factor))))
        for factor in RATES
    ]  # fmt: skip


@dataclass(frozen=True)
class _Arm:
    """One variant in one arm, before its seeds."""

    variant: Variant
    label: str
    config: RunConfig
    steps: int
    weight_seed: int | None = None


def _seeded(suite: Suite, arm: _Arm, base: RunConfig, prepared: Prepared) -> list[PlannedRun]:
    """Return one run for each seed; the same seed means the same data order in every variant."""
    seeds = suite.seeds[:1] if arm.label.startswith("rate") else suite.seeds
    steps, variant = arm.steps, arm.variant
    quarter = max(1, steps // 4)
    runs = []
    for seed in seeds:
        full = replace(
            arm.config,
            name="run",
            seed=seed,
            weight_seed=None if arm.weight_seed is None else arm.weight_seed + seed,
            training=replace(arm.config.training, steps=steps),
            every=EveryConfig(log=max(1, steps // POINTS), validate=quarter, save=quarter, sample=steps + 1),
            keep=KeepConfig(last=1, best=0),
        )
        key = run_key(full, prepared, arm.label, variant.name)
        changes = tuple(describe(base, arm.config))
        runs.append(PlannedRun(variant.name, seed, arm.label, full, key, variant.note, changes))
    return runs


def run_key(config: RunConfig, prepared: Prepared, arm: str, variant: str) -> str:
    """Return a name for exactly this run: config, data, seed, arm; where its data lie does not matter."""
    plain: Any = encode(replace(config, data=CorpusConfig()))
    marks = [plain, prepared.fingerprint, prepared.tokenizer_fingerprint, arm, variant]
    return hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:16]


# --- budgets ----------------------------------------------------------------------------------------------------------


def _steps(suite: Suite, config: RunConfig, name: str) -> int:
    """Return the steps that a budget pays for."""
    budget, tokens = suite.budget, config.training.batch * config.rows.max_length
    if budget.steps is not None:
        return budget.steps
    if budget.tokens is not None:
        return _whole_steps(budget.tokens / tokens, name, f"{budget.tokens:,} tokens")
    if budget.flops is not None:
        model: Model = build_meta(config.model)
        cost = training_flops(model, config.rows.max_length) * tokens
        return _whole_steps(budget.flops / cost, name, f"{budget.flops:.3g} FLOPs")
    if budget.seconds is not None:
        raise UsageError("budget.seconds: speeds are measured first; run with --pilot")
    return config.training.steps


def _whole_steps(steps: float, name: str, budget: str) -> int:
    if steps < 1:
        raise UsageError(f"{name}: a budget of {budget} does not pay for one step")
    return int(steps)
