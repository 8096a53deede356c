"""Export: a model from wherever it lies, as a folder of Hugging Face's ready to be handed on, or as a run of ours."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heddle.checkpoints.card import Card, budget_of, data_of, run_of, scores_of
from heddle.checkpoints.hf import save_model
from heddle.checkpoints.run import CHECKPOINTS, CONFIG, CONFIG_FORMAT, TOKENIZER
from heddle.checkpoints.snapshot import Snapshot
from heddle.checkpoints.source import ForeignSource, RunSource, Source
from heddle.checkpoints.store import Store
from heddle.core import UsageError, encode, write_json
from heddle.models import EncoderDecoder, Model, Predictor, parameters_of
from heddle.text import Roles, write_tokenizer

GENERATION, CARD, TEMPLATE = "generation_config.json", "README.md", "chat_template.jinja"


def refuse_full(path: Path) -> None:
    """Refuse to write into a folder that holds something, or over a file."""
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UsageError(f"{path}: exists already; want a new or an empty folder")


def to_hugging_face(
    source: Source, model: Model, path: Path, *, family: str | None = None, licence: str = "other"
) -> str:
    """Write a model with its tokenizer, template, settings of generation and card; return the family it became."""
    refuse_full(path)
    roles, tokenizer = source.roles(), source.tokenizer()
    ids = _ids_of(roles, model)
    written = save_model(model, path, ids, wanted=family).name
    if tokenizer is not None:
        frame = tokenizer.roles.source if isinstance(model, EncoderDecoder) else tokenizer.roles.text
        write_tokenizer(tokenizer, path, frame=frame, template=source.template(), limit=model.context)
    kept = source.generation() if isinstance(source, ForeignSource) else {}
    told = {**ids, **({} if roles is None else {"pad_token_id": _pad(roles)}), **kept}
    if told and isinstance(model, Predictor):
        write_json(path / GENERATION, told)
    (path / CARD).write_text(_card(source, model, written, licence).text(), encoding="utf-8")
    return written


def _ids_of(roles: Roles | None, model: Model) -> dict[str, Any]:
    """Return roles in their words; what pads a language model's rows only generation is told, or it would warn."""
    if roles is None or not isinstance(model, Predictor):
        return {}
    ends = list(roles.ends)
    told: dict[str, Any] = {"bos_token_id": roles.begin, "eos_token_id": ends if len(ends) > 1 else ends[0]}
    if isinstance(model, EncoderDecoder):
        told |= {"pad_token_id": _pad(roles), "decoder_start_token_id": roles.start[0]}
        told |= {"forced_bos_token_id": roles.start[1]} if len(roles.start) > 1 else {}
    return told


def _pad(roles: Roles) -> int:
    return roles.end if roles.pad is None else roles.pad


def _card(source: Source, model: Model, family: str, licence: str) -> Card:
    name, kind, size = source.path.resolve().name, type(model).__name__, parameters_of(model)
    if not isinstance(source, RunSource):
        return Card(name, kind, size, family, licence, (f"as its makers had it: {source.kind()}",))
    run, settings = run_of(source.checkpoint.path), source.settings()
    budget = budget_of(settings, source.checkpoint.step, run)
    return Card(run.resolve().name, kind, size, family, licence, data_of(settings), budget, scores_of(run))


def to_run(source: Source, model: Model, path: Path) -> None:
    """Write a model as a run of ours, at step 0: to start from, to use and to look into."""
    refuse_full(path)
    tokenizer = source.tokenizer()
    if tokenizer is None:
        raise UsageError(f"{source.path}: has no tokenizer files, and a run has a tokenizer")
    path.mkdir(parents=True, exist_ok=True)
    config: Mapping[str, Any] = {"format": CONFIG_FORMAT, "name": path.name, "model": encode(model.config.expand())}
    write_json(path / CONFIG, dict(config))
    tokenizer.save(path / TOKENIZER)
    template = source.template()
    if template is not None:
        (path / TEMPLATE).write_text(template, encoding="utf-8")
    texts = {file.name: file.read_text(encoding="utf-8") for file in path.iterdir() if file.is_file()}
    texts[CONFIG] = json.dumps(config, indent=1, ensure_ascii=False)
    Store(path / CHECKPOINTS).save(Snapshot(0, {"model": model.weights()}, {}, texts))
