"""Assembly: tokenizer, data and model of a run, built or found again from its config."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from heddle.checkpoints import Source, open_tokenizer, summary_prefix
from heddle.checkpoints.store import Checkpoint, open_regular_file, run_config_of
from heddle.core import ConfigError, DamageError, DataError, UsageError, replace
from heddle.core.system import choose_hardware, read_text, write_text
from heddle.data.rows import MeasuredText, MixedPlan, RowPlan, measured_text, token_traits
from heddle.data.shards import (
    LabelSet,
    Prepared,
    ProgressCallback,
    find_labels,
    open_prepared,
    open_split,
    prepare,
)
from heddle.data.sources import CorpusConfig, Split
from heddle.models.networks import Model, ModelConfig
from heddle.models.presets import PresetConfig, preset
from heddle.models.surgery import with_adapters
from heddle.objectives import OPTIONAL_PURPOSES, PURPOSES
from heddle.text.chat import TEMPLATE, load_template, template_control_tokens
from heddle.text.tokenizers import (
    MASK,
    TOKENIZER,
    TOKENIZER_FILES,
    Tokenizer,
    TokenizerConfig,
    load_tokenizer,
    old_pieces,
    parse_tokenizer,
)
from heddle.training.callbacks import HeldOutRows
from heddle.training.run_config import RunConfig
from heddle.training.trainable import choose_trainable, initial_config, initial_model

CACHE = ".data"  # the folder of token shards, beside the runs

log = logging.getLogger("heddle")


def find_tokenizer(config: RunConfig, folder: Path, init: Source | None, found: Checkpoint | None = None) -> Tokenizer:
    """Return the tokenizer of the checkpoint, the folder, the model it starts from or a given one, or a new one."""
    path = folder / TOKENIZER
    if found is not None:
        return _checkpoint_tokenizer(folder, found)
    if path.exists():
        return load_tokenizer(path)
    if init is not None and not config.init_vocabulary.replaces:
        tokenizer = _extended(config.init_vocabulary.tokenizer(_inherited(init, folder), config.data.sample), config)
    elif config.tokenizer.pretrained is not None:
        tokenizer, template = open_tokenizer(config.tokenizer.pretrained)
        _keep_template(template, folder)
        tokenizer = _extended(tokenizer, config)
    elif config.data.prepared is not None:
        tokenizer = _opened(config.data.prepared).load_tokenizer()
    else:
        texts = config.data.sample()
        try:
            tokenizer = with_control_tokens(config).train(texts)
        except ConfigError as error:
            raise error.with_prefix("tokenizer") from None
    if prefix := config.objective.source_prefix("" if init is None else summary_prefix(init.settings())):
        tokenizer = tokenizer.with_source_prefix(prefix)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    return tokenizer


def _checkpoint_tokenizer(folder: Path, found: Checkpoint) -> Tokenizer:
    """Return the tokenizer of a checkpoint; the folder's must be the same, and is restored where it is gone."""
    run_config_of(found)  # raises if files are missing
    tokenizer, fix = parse_tokenizer(found.texts, found.path / TOKENIZER), "remove it to take the checkpoint's"
    path, template = folder / TOKENIZER, found.texts.get(TEMPLATE)
    if not path.exists():
        for name in (name for name in TOKENIZER_FILES if name in found.texts):
            write_text(folder / name, found.texts[name])
    elif load_tokenizer(path).fingerprint != tokenizer.fingerprint:
        raise DamageError(f"{path}: not the tokenizer of {found.path.name}, with which the run was trained; {fix}")
    if template is not None and not (folder / TEMPLATE).exists():
        write_text(folder / TEMPLATE, template)
    elif template is None and (folder / TEMPLATE).exists():
        log.warning("changed: %s was put into the folder of the run; later checkpoints have it too", TEMPLATE)
    elif template is not None and read_text(folder / TEMPLATE) != template:
        raise DamageError(f"{folder / TEMPLATE}: not the chat template of {found.path.name}; {fix}")
    return tokenizer


def _inherited(init: Source, folder: Path) -> Tokenizer:
    """Return the tokenizer of the model that a run starts from, and copy its chat template."""
    tokenizer, template = init.tokenizer(), init.template()
    if tokenizer is None:
        raise UsageError(f"{init.path}: has no tokenizer files, so nothing can be trained from it")
    _keep_template(template, folder)
    return tokenizer


def _extended(tokenizer: Tokenizer, config: RunConfig) -> Tokenizer:
    """Return a trained tokenizer with the control tokens that the objective needs and it lacks."""
    missing = config.objective.missing_control_tokens(tokens_by_purpose(tokenizer))
    return tokenizer.with_special(missing) if missing else tokenizer


def _keep_template(template: str | None, folder: Path) -> None:
    if template is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TEMPLATE, template)


def tokens_by_purpose(tokenizer: Tokenizer) -> dict[str, int]:
    """Return control tokens by name, and those that objectives look for by their purpose; the mask by our name."""
    special = tokenizer.special_tokens
    mask = {} if special.mask is None else {MASK: special.mask}
    found = (special.end, special.decoder_start[0])
    some = zip(OPTIONAL_PURPOSES, (special.source.before[:1], special.decoder_start[1:2]), strict=True)
    optional = {name: ids[0] for name, ids in some if ids}
    return {**tokenizer.special, **mask, **dict(zip(PURPOSES, found, strict=True)), **optional}


def tokenizer_files(folder: Path) -> dict[str, str]:
    """Return the texts about a run's tokenizer that go into every checkpoint."""
    found = {}
    for path in (folder / name for name in (*TOKENIZER_FILES, TEMPLATE)):
        if path.exists():
            with open_regular_file(path) as file:
                found[path.name] = file.read().decode()
    return found


def with_control_tokens(config: RunConfig) -> TokenizerConfig:
    """Return the run's tokenizer with the control tokens that its objective and a built-in chat template need."""
    wanted = (*config.objective.control_tokens, *template_control_tokens(config.data.template or ""))
    needed = [name for name in wanted if name not in config.tokenizer.special]
    return replace(config.tokenizer, special=(*config.tokenizer.special, *needed))


def resolve_model(config: RunConfig, vocab: int, init: Source | None) -> ModelConfig:
    """Return the full model config: a preset filled in with the vocabulary and the row length of the run.

    `init` is the model that the run starts from; a resumed run no longer needs it.
    """
    model = config.model
    if init is not None:
        return initial_config(init.config(), config, vocab)
    if isinstance(model, PresetConfig):
        options = preset(model.name).option_names
        given = {"vocab": model.vocab or vocab, "context": model.context or config.model_length}
        model = replace(model, **{name: given[name] for name in given if name in options})
        shape = config.rows.source_shape or ()
        known = dict(zip({1: ("features",), 3: ("channels", "side")}.get(len(shape), ()), shape, strict=False))
        dials = {name: size for name, size in known.items() if name in options and name not in model.dials}
        model = replace(model, dials=model.dials | dials)
    full = config.objective.model_for(model.expand())
    if full.vocab is None and config.rows.source_shape is None:
        raise ConfigError("model", want="one that reads tokens, to train on text", got=f"{full.kind} of images")
    if full.vocab is not None and full.vocab < vocab:
        raise ConfigError("model.vocab", want=f"at least the tokenizer's {vocab}", got=full.vocab)
    return full if config.adapters is None else with_adapters(full, config.adapters)


def build_model(config: RunConfig, init: Source | None) -> Model:
    """Build the model with new weights, or those of the model that the run starts from."""
    return build_over_parent(config, init)[0]


def exchanged_pieces(config: RunConfig, init: Source | None, tokenizer: Tokenizer) -> list[tuple[int, ...]] | None:
    """Return which tokens of `init` each token of the run begins as the mean of; None: it has those of `init`."""
    given = None if init is None or not config.init_vocabulary.changes else init.tokenizer()
    return None if given is None else old_pieces(given, tokenizer)


def build_over_parent(
    config: RunConfig, init: Source | None, pieces: Sequence[Sequence[int]] | None = None
) -> tuple[Model, Mapping[str, Tensor]]:
    """Build the model; return it with the weights of the model that the run starts from, which it may share."""
    parent: Mapping[str, Tensor] = {}
    if init is None:
        model = config.model.build(config.seed_of_weights)
    else:
        started = init.model(choose_hardware("cpu", "float32"))
        parent, model = started.weights(), initial_model(started, config, pieces)
    choose_trainable(model, config.frozen, config.unfrozen, config.objective.new_weights)
    return model, parent


def training_labels(config: RunConfig) -> LabelSet:
    """Return the labels of the training split, of prepared data as they were stored."""
    wanted = config.objective.label_kind
    if config.data.prepared is None:
        return find_labels(config.data, wanted)
    found = _opened(config.data.prepared).labels
    if found is None:
        raise DataError(f"{config.data.prepared}: prepared without labels, and {config.objective.kind} learns {wanted}")
    return found


def prepare_data(
    config: RunConfig,
    tokenizer: Tokenizer,
    folder: Path,
    on_progress: ProgressCallback | None = None,
    known: Sequence[str] = (),
) -> list[Prepared]:
    """Prepare the corpora of a run; the template of its own conversations becomes the run's.

    `known` are the fingerprints of the data that a resumed run was trained on.
    """
    template = load_template(folder)
    made: list[Prepared] = []
    for path, corpus in [("data", config.data), *((f"mix.{i}.data", s.data) for i, s in enumerate(config.mix))]:
        try:
            place = folder.parent / CACHE, template, config.rows.labelled
            made.append(_prepared(corpus, tokenizer, place, on_progress, known))
        except ConfigError as error:
            raise error.with_prefix(path) from None
        template = made[0].template or template
    if template is not None and template != load_template(folder):
        write_text(folder / TEMPLATE, template)
    return made


def _prepared(
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    place: tuple[Path, str | None, bool],
    on_progress: ProgressCallback | None,
    known: Sequence[str],
) -> Prepared:
    """Prepare a corpus in a folder that is named by what went into it, or find it prepared.

    `place` is where that folder is, the chat template, and whether each text is an example. Where the text is gone, the
    shards that the run was trained on are enough.
    """
    root, template, examples = place
    if corpus.prepared is not None:
        return _ready(corpus.prepared, tokenizer)
    chat_encoder = corpus.chat_encoder(tokenizer, template)
    marks = [tokenizer.fingerprint, *([] if chat_encoder is None else [chat_encoder.template])]
    marks += ["examples"] if examples and not corpus.labelled else []
    words = json.dumps([corpus.identity(), *marks], sort_keys=True)
    folder = root / hashlib.sha256(words.encode()).hexdigest()[:16]
    try:
        return prepare(corpus, tokenizer, folder, on_progress, template, examples)
    except UsageError as error:
        ready = open_prepared(folder)
        if ready is None or ready.fingerprint not in known:
            raise
        log.warning("%s; the run goes on with its token shards in %s", error, folder)
        return ready


def discard_damaged(config: RunConfig, prepared: list[Prepared], folder: Path) -> bool:
    """Remove damaged token shards that can be built again, since their text is there; tell whether there were any."""
    found = False
    for corpus, made in zip([config.data, *(share.data for share in config.mix)], prepared, strict=True):
        try:
            for split in Split:
                open_split(made, split)
        except DamageError:
            if made.folder.parent == folder.parent / CACHE:
                for source in corpus.every:
                    source.stamps()  # raises if the text is gone
                shutil.rmtree(made.folder)
                found = True
    return found


def _ready(folder: Path, tokenizer: Tokenizer) -> Prepared:
    found = _opened(folder)
    if found.load_tokenizer().fingerprint != tokenizer.fingerprint:
        raise DataError(f"{folder}: prepared with another tokenizer than the run's")
    return found


def _opened(folder: Path) -> Prepared:
    found = open_prepared(folder)
    if found is None:
        raise DataError(f"{folder}: not a finished folder of prepared data")
    return found


def build_training_plan(config: RunConfig, prepared: list[Prepared]) -> RowPlan:
    """Return the plan of training rows, of one corpus or of several mixed by weight."""
    opened = [open_split(one, Split.TRAIN) for one in prepared]
    plans = [config.rows.build(shards, config.seed, source) for shards, source in opened]
    if len(plans) == 1:
        return plans[0]
    weights = [1.0, *(share.weight for share in config.mix)]
    return MixedPlan(list(zip(plans, weights, strict=True)), config.seed)


def build_held_out(config: RunConfig, prepared: Prepared) -> HeldOutRows:
    """Return the held-out rows: in stored order (pairs by their lengths), cut as in training, each target once."""
    shards, source = open_split(prepared, Split.VALID)
    batch = config.training.micro_batch or min(config.training.batch, 32)
    plan = config.rows.for_validation(shards, batch).build(shards, config.seed, source)

    def text_of(rows: range) -> MeasuredText:
        return measured_text(plan, rows, shards, lambda: load_tokenizer(prepared.tokenizer))

    lanes = config.training.micro_batch if config.training.reduction == "deterministic" else None
    prepare = config.objective.preparer(0, lambda: token_traits(load_tokenizer(prepared.tokenizer)))
    return HeldOutRows(plan, batch, text_of, config.validation_rows, lanes, prepare)


def plan_rows(config: RunConfig, prepared: list[Prepared]) -> tuple[RowPlan, HeldOutRows]:
    """Return the rows of training and those that are held out."""
    return build_training_plan(config, prepared), build_held_out(config, prepared[0])
