"""Pieces: tokenizer, data and model of a run, built or found again from its config."""

import dataclasses
import hashlib
import json
from pathlib import Path

from heddle.checkpoints import config_of, find_run, load_run, open_run
from heddle.core import ConfigError, DataError, choose_hardware, decode, encode, replace
from heddle.data import (
    CorpusConfig,
    Mixed,
    PackedRows,
    PairRows,
    Plan,
    Prepared,
    RowsConfig,
    Shards,
    StreamRows,
    open_prepared,
    prepare,
)
from heddle.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, Model, ModelConfig, PresetConfig
from heddle.text import Tokenizer, TokenizerConfig, load_tokenizer
from heddle.training.callbacks import HeldOut
from heddle.training.run import RunConfig


def find_tokenizer(config: RunConfig, folder: Path) -> Tokenizer:
    """Return the run's tokenizer: its own from before, that of the run it starts from, or a newly trained one."""
    path = folder / "tokenizer.json"
    if path.exists():
        return load_tokenizer(path)
    if config.init is not None:
        tokenizer = load_tokenizer(open_run(find_run(config.init)).path / "tokenizer.json")
    elif config.data.prepared is not None:
        tokenizer = load_tokenizer(config.data.prepared / "tokenizer.json")
    else:
        texts = config.data.sample()
        try:
            tokenizer = with_controls(config).train(texts)
        except ConfigError as error:
            raise error.inside("tokenizer") from None
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    return tokenizer


def with_controls(config: RunConfig) -> TokenizerConfig:
    """Return the run's tokenizer with the control tokens that its objective needs."""
    needed = [name for name in config.objective.controls if name not in config.tokenizer.special]
    return replace(config.tokenizer, special=(*config.tokenizer.special, *needed))


def resolve_model(config: RunConfig, vocab: int, begun: bool) -> ModelConfig:
    """Return the full model config: a preset filled in with the vocabulary and the row length of the run.

    A run that has begun no longer needs the one that it started from.
    """
    model = config.model
    if config.init is not None and not begun:
        return decode(ModelConfig, config_of(open_run(find_run(config.init)))["model"], "model")
    if isinstance(model, PresetConfig):
        length = row_length(config.rows)
        model = replace(model, vocab=model.vocab or vocab, context=model.context or length)
    full = model.expand()
    if isinstance(full, LanguageModelConfig | EncoderDecoderConfig | EncoderConfig) and (full.vocab or 0) < vocab:
        raise ConfigError("model.vocab", want=f"at least the tokenizer's {vocab}", got=full.vocab)
    return full


def build_model(config: RunConfig, begun: bool) -> Model:
    """Build the model with fresh weights, or those of the run it starts from."""
    model = config.model.build(config.seed)
    if config.init is not None and not begun:
        parent = load_run(find_run(config.init), hardware=choose_hardware("cpu", "float32"))
        model.load_weights(parent.model.weights())
    return model


def row_length(rows: RowsConfig) -> int:
    """Return how long a row is at most, of pairs the longer side."""
    if isinstance(rows, PackedRows | StreamRows):
        return rows.length
    if isinstance(rows, PairRows):
        return max(rows.length, rows.source_length)
    raise ConfigError("rows.kind", want="packed, streams or pairs, to train a model", got=rows.kind)


def prepare_data(corpus: CorpusConfig, tokenizer: Tokenizer, root: Path) -> Prepared:
    """Prepare a corpus under `root`, or find it prepared; the folder is named by what went into it."""
    if corpus.prepared is not None:
        return _ready(corpus.prepared, tokenizer)
    words = json.dumps([encode(corpus), tokenizer.fingerprint], sort_keys=True)
    return prepare(corpus, tokenizer, root / hashlib.sha256(words.encode()).hexdigest()[:16])


def _ready(folder: Path, tokenizer: Tokenizer) -> Prepared:
    found = open_prepared(folder)
    if found is None:
        raise DataError(f"{folder}: not a finished folder of prepared data")
    if load_tokenizer(found.tokenizer).fingerprint != tokenizer.fingerprint:
        raise DataError(f"{folder}: prepared with another tokenizer than the run's")
    return found


def training_plan(config: RunConfig, prepared: list[Prepared]) -> Plan:
    """Return the plan of training rows, of one corpus or of several mixed by weight."""
    plans = [_plan(config.rows, p.train, p.pairs, config.seed) for p in prepared]
    if len(plans) == 1:
        return plans[0]
    if not isinstance(config.rows, PackedRows):
        raise ConfigError("rows.kind", want="packed, to mix several corpora", got=config.rows.kind)
    weights = [1.0, *(share.weight for share in config.also)]
    return Mixed(list(zip(plans, weights, strict=True)), config.seed)


def _plan(rows: RowsConfig, side: Path, pairs: bool, seed: int) -> Plan:
    """Return the plan of one side of a split; a corpus of pairs has shards of sources and of targets."""
    if pairs:
        return rows.build(Shards.open(side / "target"), seed, Shards.open(side / "source"))
    return rows.build(Shards.open(side), seed)


def held_out(config: RunConfig, prepared: Prepared) -> HeldOut:
    """Return the held-out rows: in stored order (pairs by their lengths), cut as in training, each target once."""
    shards = Shards.open(prepared.valid / "target" if prepared.pairs else prepared.valid)
    rows, batch = config.rows, config.training.micro or min(config.training.batch, 32)
    if isinstance(rows, PackedRows):
        rows = dataclasses.replace(rows, shuffle=False, length=min(rows.length, shards.tokens))
    elif isinstance(rows, StreamRows):
        lanes = max(1, min(rows.lanes, shards.tokens // rows.length))
        rows = dataclasses.replace(rows, shuffle=False, lanes=lanes, length=min(rows.length, shards.tokens))
    elif isinstance(rows, PairRows):
        rows = dataclasses.replace(rows, jitter=0.0, batch=batch)
    plan = _plan(rows, prepared.valid, prepared.pairs, config.seed)
    return HeldOut(plan, batch, shards.bytes / shards.tokens, config.validation_rows)
