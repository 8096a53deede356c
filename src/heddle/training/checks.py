"""Checks: errors in a run's config that are found before its text is read."""

from heddle.core import ConfigError, fields_of, find
from heddle.models import build_meta
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import PartConfig
from heddle.nn.recurrent import RecurrentConfig
from heddle.objectives import NextTokenConfig
from heddle.text.tokenizers import MASK, BpeTokenizer
from heddle.training.callbacks import NoWindowWarmupConfig
from heddle.training.run_config import RunConfig, TrainingConfig
from heddle.training.trainable import choose_trainable


def check_fit(config: RunConfig, world: int = 1) -> None:
    """Refuse what does not fit together: rows, objective, model and number of processes."""
    _check_reduction(config, world)
    _check_rows(config)
    _check_examples(config, world)
    _check_sight(config)
    check_window_warmup(config)


def check_model(config: RunConfig) -> None:
    """Refuse a model that cannot be built, read the rows, or learn what it is to learn; no weight is made for it."""
    try:
        model = build_meta(config.model)
    except ConfigError as error:
        raise error.inside("model") from None
    model.reserve(config.rows.max_length)
    config.objective.checked_model(model)
    choose_trainable(model, config.frozen, config.unfrozen, config.objective.new_weights)


def guess_vocab(config: RunConfig) -> int:
    """Return how many tokens there would be, as the model or the tokenizer says, or about as many as a text gives."""
    sizes = (fields_of(config.model).get("vocab"), fields_of(config.tokenizer).get("vocab"))
    guess = 4096 if isinstance(config.tokenizer, BpeTokenizer) else 256
    return next((number for number in sizes if isinstance(number, int)), guess)


def guess_control_tokens(config: RunConfig, vocab: int) -> dict[str, int]:
    """Return ids for the control tokens that the objective needs, before there is a tokenizer that has them."""
    return {name: vocab - 1 - number for number, name in enumerate((MASK, *config.objective.control_tokens))}


def rows_per_process(training: TrainingConfig, world: int) -> tuple[int, int]:
    """Return the rows of a step that each process has, and how many of them it works on at once."""
    share = training.batch // world
    micro = min(training.micro_batch or share, share)
    if training.batch % world:
        raise ConfigError("training.batch", want=f"a multiple of the {world} processes", got=training.batch)
    if share % micro:
        wish = f"a divisor of the {share} rows that each of {world} processes has"
        raise ConfigError("training.micro_batch", want=wish, got=micro)
    return share, micro


def _check_reduction(config: RunConfig, world: int) -> None:
    """Refuse sums in one order of micro-batches that another number of processes would cut, or group, otherwise."""
    share, micro = rows_per_process(config.training, world)
    if config.training.reduction == "fast":
        return
    if config.training.micro_batch is None or config.training.micro_batch > share:
        wish = f"at most the {share} rows of a process, whatever their number, for training.reduction=deterministic"
        raise ConfigError("training.micro_batch", want=wish, got=config.training.micro_batch)
    pieces = share // micro
    if world > 1 and pieces & (pieces - 1):
        wish = "one that leaves each process 1, 2, 4, 8, ... micro-batches, for training.reduction=deterministic"
        raise ConfigError("training.micro_batch", want=wish, got=micro)


def check_window_warmup(config: RunConfig) -> None:
    """Refuse window warm-up for a model without full attention."""
    seeing = [attention for attention in find(config.model, AttentionConfig) if attention.mask.is_full]
    if not seeing and not isinstance(config.training.window_warmup, NoWindowWarmupConfig):
        wish = "none, for a model without full attention"
        raise ConfigError("training.window_warmup", want=wish, got=config.training.window_warmup.kind)


def _check_sight(config: RunConfig) -> None:
    """Refuse to let a model learn the next token that sees it."""
    if isinstance(config.objective, NextTokenConfig) and config.model.expand().sees_next_token:
        raise ConfigError("model.sight", want="past, to learn the next token", got="all")


def _check_examples(config: RunConfig, world: int) -> None:
    """Refuse labelled rows for an objective that reads none, other rows for one that does, and a divided unit."""
    rows, objective = config.rows, config.objective
    if objective.reads_examples and not rows.labelled:
        raise ConfigError("rows.kind", want=f"examples, for the objective {objective.kind}", got=rows.kind)
    if rows.labelled and not objective.reads_examples:
        wish = "classify, tag, span, similarity or contrastive, for rows of the kind examples"
        raise ConfigError("objective.kind", want=wish, got=objective.kind)
    batch, micro = config.training.batch, config.training.micro_batch
    if objective.batch_is_unit and (world > 1 or micro not in (None, batch)):
        why = f"for {objective.kind} compares the rows of a whole batch"
        found = micro if world == 1 else f"{world} processes"
        raise ConfigError("training.micro_batch", want=f"null on one process, {why}", got=found)


def _check_rows(config: RunConfig) -> None:
    """Refuse rows that the model cannot use: sources without an encoder, or state carried by more than recurrence."""
    rows, batch = config.rows, config.training.batch
    if config.mix and not rows.mixable:
        raise ConfigError("rows.kind", want="packed, to mix several corpora", got=rows.kind)
    if rows.paired and not config.model.expand().reads_source:
        wish = "encoder_decoder, for pairs of source and target"
        raise ConfigError("model.kind", want=wish, got=config.model.kind)
    if rows.carries_state:
        mixers = [p for p in find(config.model, PartConfig) if p.slot == "mixer"]
        if not all(isinstance(m, RecurrentConfig) for m in mixers):
            raise ConfigError("rows.kind", want="packed, for attention carries no state between rows", got=rows.kind)
    if rows.required_batch not in (None, batch):
        wish = f"{batch}, as training.batch has it"
        raise ConfigError(f"rows.{rows.batch_field}", want=wish, got=rows.required_batch)
