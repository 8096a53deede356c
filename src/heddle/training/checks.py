"""Checks: errors in a run's config that are found before its text is read."""

from collections.abc import Sequence

from heddle.checkpoints.store import Checkpoint, run_config_of
from heddle.core import ConfigError, decode, diff, fields_of, find
from heddle.models import build_meta
from heddle.models.networks import Model
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import PartConfig
from heddle.nn.recurrent import RecurrentConfig
from heddle.objectives import PURPOSES, NextTokenConfig
from heddle.text.tokenizers import MASK, BpeTokenizer
from heddle.training.callbacks import NoWindowWarmupConfig
from heddle.training.loop import Callback
from heddle.training.run_config import RunConfig, TrainingConfig
from heddle.training.trainable import choose_trainable


def check_fit(config: RunConfig, world: int = 1) -> None:
    """Refuse what does not fit together: rows, objective, model and number of processes."""
    _check_reduction(config, world)
    if config.init_layers is not None and config.init is None:
        raise ConfigError("init_layers", want="null where no init names another model", got=config.init_layers)
    if config.init_vocabulary.changes and config.init is None:
        want = "kept where no init names another model"
        raise ConfigError("init_vocabulary", want=want, got=config.init_vocabulary.kind)
    _check_rows(config)
    _check_examples(config, world)
    _check_sight(config)
    check_window_warmup(config)


def check_model(config: RunConfig) -> None:
    """Refuse a model that cannot be built, read the rows, or learn what it is to learn; no weight is made for it."""
    try:
        model = build_meta(config.model)
    except ConfigError as error:
        raise error.with_prefix("model") from None
    model.reserve(config.model_length)
    config.objective.checked_model(model)
    _check_source(config, model)
    choose_trainable(model, config.frozen, config.unfrozen, config.objective.new_weights)


def _check_source(config: RunConfig, model: Model) -> None:
    """Refuse a model that reads text for rows of media, or the other way around, or features of another shape."""
    wanted = config.rows.source_shape
    reader = model.towers[0]
    if (wanted is None) != (model.reads == "ids"):
        want = "one of ids, because the rows are text" if wanted is None else "frames, because the rows are media"
        raise ConfigError("model.embedding", want=want, got=reader.embedding_kind)
    found = reader.item_shape
    if wanted is not None and found is not None and found != wanted:
        raise ConfigError("model.embedding.features", want=f"{wanted[0]}, as rows.features gives", got=found[0])


def guess_vocab(config: RunConfig) -> int:
    """Return the vocabulary size that the model or the tokenizer declares, or an estimate of it."""
    sizes = [fields_of(config.model).get("vocab"), fields_of(config.tokenizer).get("vocab")]
    if config.data.prepared is None:  # the tokenizer will have exactly as many as it is to have
        sizes.reverse()
    guess = 4096 if isinstance(config.tokenizer, BpeTokenizer) else 256
    return next((number for number in sizes if isinstance(number, int)), guess)


def guess_control_tokens(config: RunConfig, vocab: int) -> dict[str, int]:
    """Return ids for the control tokens that the objective needs, before there is a tokenizer that has them."""
    names = (*PURPOSES, MASK, *config.objective.control_tokens)
    return {name: max(0, vocab - 1 - number) for number, name in enumerate(names)}


def rows_per_process(training: TrainingConfig, world: int) -> tuple[int, int]:
    """Return the rows of a step that each process has, and how many of them it works on at once."""
    share = training.batch // world
    if training.micro_batch is not None and training.micro_batch > training.batch:
        want = f"at most training.batch, {training.batch}"
        raise ConfigError("training.micro_batch", want=want, got=training.micro_batch)
    micro = min(training.micro_batch or share, share)
    if training.batch % world:
        raise ConfigError("training.batch", want=f"a multiple of the {world} processes", got=training.batch)
    if share % micro:
        each = f"training.batch, {share}" if world == 1 else f"the {share} rows that each of {world} processes has"
        want = f"a divisor of {each}"
        raise ConfigError("training.micro_batch", want=want, got=micro)
    return share, micro


def _check_reduction(config: RunConfig, world: int) -> None:
    """Refuse deterministic reduction of micro-batches that another number of processes would split differently."""
    share, micro = rows_per_process(config.training, world)
    if config.training.reduction == "fast":
        return
    if config.training.micro_batch is None or config.training.micro_batch > share:
        want = f"1 to {share}, the rows of a process, with training.reduction=deterministic"
        raise ConfigError("training.micro_batch", want=want, got=config.training.micro_batch)
    pieces = share // micro
    if world > 1 and pieces & (pieces - 1):
        want = "a number that gives each process 1, 2, 4, ... micro-batches with training.reduction=deterministic"
        raise ConfigError("training.micro_batch", want=want, got=micro)


def check_window_warmup(config: RunConfig) -> None:
    """Refuse window warm-up for a model without full attention."""
    seeing = [attention for attention in find(config.model, AttentionConfig) if attention.mask.is_full]
    if not seeing and not isinstance(config.training.window_warmup, NoWindowWarmupConfig):
        want = "none, because the model has no full attention"
        raise ConfigError("training.window_warmup", want=want, got=config.training.window_warmup.kind)


def _check_sight(config: RunConfig) -> None:
    """Refuse to let a model learn the next token that sees it."""
    if find(config.objective, NextTokenConfig) and config.model.expand().sees_next_token:
        raise ConfigError("model.sight", want="past, because the objective predicts the next token", got="all")


def _check_examples(config: RunConfig, world: int) -> None:
    """Refuse labelled rows for an objective that reads none, other rows for one that does, and a divided unit."""
    rows, objective = config.rows, config.objective
    if objective.reads_examples and not rows.labelled:
        raise ConfigError("rows.kind", want=f"examples, because the objective is {objective.kind}", got=rows.kind)
    if rows.labelled and not objective.reads_examples:
        want = "classify, tag, span, similarity or contrastive, because the rows are examples"
        raise ConfigError("objective.kind", want=want, got=objective.kind)
    batch, micro = config.training.batch, config.training.micro_batch
    if objective.batch_is_unit and (world > 1 or micro not in (None, batch)):
        why = f"because {objective.kind} compares the rows of a whole batch"
        found = micro if world == 1 else f"{world} processes"
        raise ConfigError("training.micro_batch", want=f"null on one process, {why}", got=found)


def _check_rows(config: RunConfig) -> None:
    """Refuse rows that the model cannot use: sources without an encoder, or state carried by more than recurrence."""
    rows, batch = config.rows, config.training.batch
    config.objective.check_rows(rows)
    if config.mix and not rows.mixable:
        raise ConfigError("rows.kind", want="packed, to mix several corpora", got=rows.kind)
    if rows.paired and not config.model.expand().reads_source:
        want = "encoder_decoder, because rows are pairs of source and target"
        raise ConfigError("model.kind", want=want, got=config.model.kind)
    if rows.carries_state:
        mixers = [p for p in find(config.model, PartConfig) if p.slot == "mixer"]
        if not all(isinstance(m, RecurrentConfig) for m in mixers):
            want = "packed, because attention carries no state between rows"
            raise ConfigError("rows.kind", want=want, got=rows.kind)
    if rows.required_batch not in (None, batch):
        want = f"{batch}, the value of training.batch"
        raise ConfigError(f"rows.{rows.batch_field}", want=want, got=rows.required_batch)


def check_resumed(config: RunConfig, found: Checkpoint) -> None:
    """Refuse to put a checkpoint's weights into another model."""
    before = decode(RunConfig, run_config_of(found))
    if config.training.steps < found.step:
        want = f"at least {found.step}, the steps that the run has done"
        raise ConfigError("training.steps", want=want, got=config.training.steps)
    if changed := diff(before.model, config.model):
        first = changed[0]
        raise ConfigError(f"model.{first.path}", want=f"{first.before}, the value of the resumed run", got=first.after)
    if before.keep.weights != config.keep.weights:
        all_weights = f"heddle convert {found.path.parent.parent} writes all weights"
        want = f"{before.keep.weights}, the value of the resumed run; {all_weights}"
        raise ConfigError("keep.weights", want=want, got=config.keep.weights)
    for name, was, now in (("frozen", before.frozen, config.frozen), ("unfrozen", before.unfrozen, config.unfrozen)):
        if was != now:
            raise ConfigError(name, f"cannot change from {list(was)} in a resumed run; start a new run with init=RUN")


def check_saved_names(callbacks: Sequence[Callback]) -> None:
    """Refuse two callbacks whose states would be one in a checkpoint."""
    names = [one.saved_as for one in callbacks if one.saved_as]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("callbacks", want="a saved_as of its own for each", got=name)
