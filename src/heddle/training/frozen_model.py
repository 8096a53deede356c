"""Frozen model: what an objective reads beside the trained model (a teacher), found, verified and kept as it was."""

from pathlib import Path

import torch

from heddle.checkpoints import FROZEN_MODEL, BaseReference, FrozenModel, Source, checksum, find_source
from heddle.checkpoints.store import Checkpoint
from heddle.core import ConfigError, DamageError, UsageError, fields_of
from heddle.core.system import Hardware, choose_hardware
from heddle.models import build_meta
from heddle.models.networks import Model
from heddle.models.surgery import resize_vocab
from heddle.text.tokenizers import Tokenizer
from heddle.training.run_config import RunConfig
from heddle.training.stored_teacher import check_stored, open_stored, stored_name, was_stored


def frozen_name(config: RunConfig) -> str | None:
    """Return the frozen model that the objective names, by default that of `init`; None: it reads none."""
    field = config.objective.frozen_field
    if field is None:
        return None
    name = fields_of(config.objective)[field] or config.init
    if name is None:
        want = "a model: a run, a Hugging Face folder or a GGUF file; or init=MODEL, which is then taken"
        raise ConfigError(f"objective.{field}", want=want, got=None)
    return str(name)


def check_frozen_name(config: RunConfig) -> None:
    """Refuse a new run whose frozen model is not there, or whose tokenizer would be another."""
    name = frozen_name(config)
    if name is None:
        return
    if stored_name(config, name) is None:
        find_source(name)
    if config.init is None and config.tokenizer.pretrained is None and config.data.prepared is None:
        want = f"{name}, because both models need the same tokenizer"
        raise ConfigError("tokenizer", want=want, got=config.tokenizer.kind)


def check_frozen_model(config: RunConfig, tokenizer: Tokenizer) -> None:
    """Refuse a frozen model that has another tokenizer, or does not fit the trained model; no weight is read."""
    name = frozen_name(config)
    if name is None:
        return
    if (folder := stored_name(config, name)) is not None:
        check_stored(config, tokenizer, folder)
        return
    field, source = f"objective.{config.objective.frozen_field}", find_source(name)
    known = source.tokenizer()
    if known is None or known.fingerprint != tokenizer.fingerprint:
        found = "no tokenizer files" if known is None else f"another, of {known.vocab} tokens"
        raise ConfigError(field, want=f"a model with the run's tokenizer, of {tokenizer.vocab} tokens", got=found)
    frozen = build_meta(source.config())
    try:
        frozen.reserve(config.model_length)
    except ConfigError as error:
        raise ConfigError(field, f"cannot read the rows: {error}") from None
    config.objective.check_frozen(build_meta(config.model), frozen)


def load_frozen_model(
    config: RunConfig, found: Checkpoint | None, vocab: int, hardware: Hardware, folder: Path
) -> FrozenModel | None:
    """Return the frozen model on its device, in eval mode; of a resumed run, the very one that it began with."""
    name = frozen_name(config)
    if name is None:
        return None
    state = None if found is None else found.state.get(FROZEN_MODEL)
    if stored_name(config, name) is not None or (found is not None and was_stored(state, found, folder)):
        return open_stored(found, name, folder, state)
    if state is None:
        source = find_source(name)
        model = _load(source)
        reference = BaseReference.of(name, source, folder, _checksum(model))
    else:
        assert found is not None
        reference = BaseReference.from_state(state, found.path)
        model, source = _verified(config, reference, name, folder)
        reference = BaseReference.of(name, source, folder, reference.sha256)
    if model.vocab is not None and model.vocab < vocab:
        model = resize_vocab(model, vocab, config.seed)  # as the trained one, where it began as this one
    return FrozenModel(_frozen(model, config, hardware), reference, source)


def _frozen(model: Model, config: RunConfig, hardware: Hardware) -> Model:
    """Return a model for reading alone: in eval mode, without gradients, in the dtype of the computation."""
    model.compute = None if hardware.dtype is torch.float32 else hardware.dtype
    model.to(hardware.device).requires_grad_(False)
    model.reserve(config.model_length)
    return model.eval()


def _load(source: Source) -> Model:
    return source.model(choose_hardware("cpu", "float32"))


def _checksum(model: Model) -> str:
    weights = model.weights()
    return checksum(weights, weights)


def _verified(config: RunConfig, reference: BaseReference, name: str, folder: Path) -> tuple[Model, Source]:
    """Return the model with the weights that the run began with, and its place: where it was, or the one now named."""
    field = config.objective.frozen_field
    places = reference.places(folder) if name == reference.name else [name]
    altered = None
    for place in places:
        try:
            source = find_source(place)
            model = _load(source)
        except (UsageError, DamageError):
            if name != reference.name:
                raise
            continue
        if _checksum(model) == reference.sha256:
            return model, source
        altered = altered or place
    if altered is not None:
        raise DamageError(
            f"{folder}: its {field} is {reference.name}, but {altered} has other weights than those that the run began "
            f"with; restore them, or name the place of a copy: objective.{field}=PATH"
        )
    where = ", nor ".join(place for place in places if place != reference.name or len(places) == 1)
    raise UsageError(
        f"{folder}: its {field} is {reference.name}, which is not at {where}; put it back, or name its place: "
        f"objective.{field}=PATH"
    )
