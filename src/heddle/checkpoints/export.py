"""Export: any source's model as a Hugging Face folder, its adapters as a PEFT folder, or a run of Heddle."""

import json
from pathlib import Path
from typing import Any

from heddle.checkpoints.hf import GENERATION, refuse_nonempty, save_adapter, save_model
from heddle.checkpoints.model_card import ModelCard, describe_budget, describe_data, read_scores, run_folder_of
from heddle.checkpoints.source import AdapterSource, ForeignSource, RunSource, Source
from heddle.checkpoints.store import CHECKPOINTS, CONFIG, CONFIG_FORMAT, Snapshot, Store
from heddle.core import Config, UsageError, encode, find, replace, swap, user_code
from heddle.core.system import new_folder, write_json
from heddle.models.networks import Model
from heddle.models.surgery import rebuild
from heddle.nn.base import Adapter
from heddle.nn.ends import SegmentedEmbeddingConfig
from heddle.nn.positions import LearnedPositionConfig
from heddle.text.chat import TEMPLATE
from heddle.text.formats import write_tokenizer
from heddle.text.tokenizers import TOKENIZER, SpecialTokens, Tokenizer

CARD = "README.md"


def to_hugging_face(
    source: Source, model: Model, path: Path, *, family: str | None = None, licence: str = "other"
) -> str:
    """Write a Hugging Face folder: model, tokenizer, chat template, generation config and card; return its family."""
    refuse_nonempty(path)
    with new_folder(path) as new:
        return _write_hugging_face(source, model, new, family, licence)


def _write_hugging_face(source: Source, model: Model, path: Path, family: str | None, licence: str) -> str:
    special_tokens, tokenizer = source.special_tokens(), source.tokenizer()
    model, ids = _with_bert_positions(model, tokenizer, family), _token_ids(special_tokens, model)
    written = save_model(model, path, ids, wanted=family).name
    if tokenizer is not None:
        special = tokenizer.special_tokens
        sequence = special.source if model.reads_source else special.text
        segments = any(table.segments > 1 for table in find(model.config.expand(), SegmentedEmbeddingConfig))
        template = source.template()
        write_tokenizer(tokenizer, path, sequence=sequence, template=template, limit=model.context, segments=segments)
    kept = source.generation() if isinstance(source, ForeignSource) else {}
    pad = {} if special_tokens is None else {"pad_token_id": _pad(special_tokens)}
    if (generation := {**ids, **pad, **kept}) and model.can_generate:
        write_json(path / GENERATION, generation)
    (path / CARD).write_text(_model_card(source, model, written, licence).text(), encoding="utf-8")
    return written


def _with_bert_positions(model: Model, tokenizer: Tokenizer | None, family: str | None) -> Model:
    """Return an encoder whose positions Hugging Face numbers as Heddle does.

    RoBERTa's code gives no position to the padding token, whose id is one less than the first row of positions used.
    Where that id is an ordinary token, the unused rows are cut off and the model is written as a BERT.
    """
    first = next((table.first for table in find(model.config.expand(), LearnedPositionConfig)), 0)
    if model.can_generate or not first or tokenizer is None or first - 1 in tokenizer.special.values():
        return model
    if family == "roberta":
        found = tokenizer.token(first - 1)
        raise UsageError(f"roberta: cannot express this model: it pads with id {first - 1}, which is {found!r} here")
    config = swap(LearnedPositionConfig, lambda table: replace(table, first=0))(model.config.expand())
    made, cut = rebuild(model, config)
    for name, weight in cut.items():
        weight.data = model.get_parameter(name).detach()[first:]
    return made


def _token_ids(special: SpecialTokens | None, model: Model) -> dict[str, Any]:
    """Return special tokens under Hugging Face's keys; padding of a language model is for generation only."""
    if special is None or not model.can_generate:
        return {}
    ends, start = list(special.ends), special.decoder_start
    ids: dict[str, Any] = {"bos_token_id": special.begin, "eos_token_id": ends if len(ends) > 1 else ends[0]}
    if model.reads_source:
        ids |= {"pad_token_id": _pad(special), "decoder_start_token_id": start[0]}
        ids |= {"forced_bos_token_id": start[1]} if len(start) > 1 else {}
    return ids


def _pad(special: SpecialTokens) -> int:
    return special.end if special.pad is None else special.pad


def _plain_size(model: Model) -> int:
    """Count the parameters without those of adapters, which are merged on export."""
    merged = {id(p) for module in model.modules() if isinstance(module, Adapter) for p in module.parameters()}
    return sum(p.numel() for p in model.parameters() if id(p) not in merged)


def _model_card(source: Source, model: Model, family: str, licence: str) -> ModelCard:
    name, kind, size = source.path.resolve().name, type(model).__name__, _plain_size(model)
    if not isinstance(source, RunSource):
        return ModelCard(name, kind, size, family, licence, (f"imported: {source.describe()}",))
    run, settings = run_folder_of(source.checkpoint.path), source.settings()
    data, budget = describe_data(settings), describe_budget(settings, source.checkpoint.step, run)
    return ModelCard(run.resolve().name, kind, size, family, licence, data, budget, read_scores(run))


def to_adapter(source: Source, model: Model, path: Path, *, family: str | None = None) -> str:
    """Write a PEFT folder with the adapters alone; return the family of the model that they were trained for."""
    refuse_nonempty(path)
    settings = source.settings()
    if settings.get("unfrozen"):
        raise UsageError(f"{source.path}: the run also trained base weights, so an adapter is not enough; use --to hf")
    base = str(source.base.path) if isinstance(source, AdapterSource) else settings.get("init")
    with new_folder(path) as new:
        return save_adapter(model, new, base=base or None, wanted=family).name


def to_run(source: Source, model: Model, path: Path) -> None:
    """Write a model as a run of Heddle at step 0, to train from or to use."""
    save_run(model, source.tokenizer(), source.template(), path, str(source.path))


def save_run(model: Model, tokenizer: Tokenizer | None, template: str | None, path: Path, name: str) -> None:
    """Write a model with its tokenizer as a run at step 0; the user's own code that it is made of is kept with it."""
    refuse_nonempty(path)
    if tokenizer is None:
        raise UsageError(f"{name}: has no tokenizer files, and a run has a tokenizer")
    with new_folder(path) as new:
        _write_run(model, tokenizer, template, new, path.resolve().name)


def _write_run(model: Model, tokenizer: Tokenizer, template: str | None, path: Path, name: str) -> None:
    full, weights = model.config.expand(), model.weights()
    config: dict[str, Any] = {"format": CONFIG_FORMAT, "name": name, "model": encode(full)}
    if used := user_code.record((), [type(one) for one in find(full, Config)], path):
        config["use"] = list(used)
    write_json(path / CONFIG, config)
    tokenizer.save(path / TOKENIZER)
    if template is not None:
        (path / TEMPLATE).write_text(template, encoding="utf-8")
    texts = {file.name: file.read_text(encoding="utf-8") for file in path.iterdir() if file.is_file()}
    texts[CONFIG] = json.dumps(config, indent=1, ensure_ascii=False)
    Store(path / CHECKPOINTS).save(Snapshot(0, {"model": weights}, {}, texts))
