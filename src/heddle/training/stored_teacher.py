"""Stored teacher outputs in training: what a run must have alike, its rows with them, and how they are written."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.checkpoints import BaseModel, BaseReference, FrozenModel
from heddle.checkpoints.store import Checkpoint
from heddle.core import ConfigError, DamageError, UsageError, encode
from heddle.core.system import Hardware
from heddle.data.rows import Batch
from heddle.data.shards import (
    TeacherOutput,
    TeacherOutputs,
    has_outputs,
    key_of,
    read_outputs_manifest,
)
from heddle.models.networks import Model
from heddle.objectives import DistillationBatch, DistillationConfig
from heddle.text.tokenizers import Tokenizer
from heddle.training.run_config import RunConfig

Show = Callable[[Batch], Batch]


class StoredOutputs(BaseModel):
    """A folder of stored outputs in the place of the teacher that they are of."""

    def __init__(self, path: Path, outputs: TeacherOutputs) -> None:
        self.path, self.outputs = path, outputs

    def model(self, hardware: Hardware | None = None) -> Model:
        """Refuse: the teacher itself is not here."""
        raise UsageError(f"{self.path}: holds the outputs of a teacher, not the teacher")


def stored_name(config: RunConfig, name: str | None) -> Path | None:
    """Return the folder of stored outputs that is named as the teacher; None: the name is that of a model."""
    stored = isinstance(config.objective, DistillationConfig) and name is not None and has_outputs(name)
    return Path(str(name)) if stored else None


def facts_of(config: RunConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """Return what a run must have alike to read stored outputs, by its keys."""
    assert isinstance(config.objective, DistillationConfig)
    plain = {
        "seed": config.seed,
        "rows": encode(config.rows),
        "mix": [share.weight for share in config.mix],
        "objective": {
            "temperature": config.objective.temperature,
            "hard_targets": encode(config.objective.hard_targets),
        },
    }
    return {"tokenizer": tokenizer.fingerprint, **dict(_flat(plain))}


def _flat(plain: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(plain, Mapping):
        for name, value in plain.items():
            yield from _flat(value, f"{path}.{name}".lstrip("."))
    else:
        yield path, json.dumps(plain)


def was_stored(state: Any, found: Checkpoint, folder: Path) -> bool:
    """Tell whether a checkpoint refers to stored outputs: one of the places where they may be has some."""
    return any(has_outputs(place) for place in BaseReference.from_state(state, found.path).places(folder))


def check_stored(config: RunConfig, tokenizer: Tokenizer, folder: Path) -> None:
    """Refuse stored outputs of other rows, of another tokenizer or seed, of too few rows, or without hidden states."""
    manifest, _ = read_outputs_manifest(folder)
    facts, objective = facts_of(config, tokenizer), config.objective
    assert isinstance(objective, DistillationConfig)
    for name in sorted(facts.keys() | manifest.facts.keys(), key=lambda name: (name != "tokenizer", name)):
        want, got = manifest.facts.get(name, "nothing"), facts.get(name, "nothing")
        if want != got:
            shown = ("that of the teacher", "another") if name == "tokenizer" else (want, got)
            raise ConfigError(name, want=f"{shown[0]}, as the outputs in {folder} have it", got=_raw(shown[1]))
    needed = config.training.steps * config.training.batch
    if needed > manifest.rows:
        want = (
            f"at most {manifest.rows // config.training.batch}, because {folder} has outputs for {manifest.rows} rows"
        )
        raise ConfigError("training.steps", want=want, got=config.training.steps)
    model = config.model.expand()
    if objective.cosine_weight and manifest.hidden != model.width:
        found = f"those of width {manifest.hidden}" if manifest.hidden else "no hidden states"
        want = f"0, because {folder} has {found}"
        raise ConfigError("objective.cosine_weight", want=want, got=objective.cosine_weight)
    if model.vocab != manifest.vocab:
        want = f"a model of {manifest.vocab} ids, as the outputs in {folder} are"
        raise ConfigError("model.vocab", want=want, got=model.vocab)


def _raw(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def open_stored(found: Checkpoint | None, name: str, folder: Path, state: Any) -> FrozenModel:
    """Return stored outputs in the place of the teacher; of a resumed run, the very ones that it began with."""
    if found is None or state is None:
        source = StoredOutputs(Path(name), TeacherOutputs.open(Path(name)))
        return FrozenModel(None, BaseReference.of(name, source, folder, source.outputs.sha256), source)
    reference = BaseReference.from_state(state, found.path)
    places = reference.places(folder) if name == reference.name else [name]
    for place in (place for place in places if has_outputs(place)):
        outputs = TeacherOutputs.open(Path(place))
        if outputs.sha256 != reference.sha256:
            raise DamageError(f"{folder}: {place} has other teacher outputs than those that the run began with")
        source = StoredOutputs(Path(place), outputs)
        return FrozenModel(None, BaseReference.of(name, source, folder, outputs.sha256), source)
    raise UsageError(
        f"{folder}: its teacher outputs are {reference.name}, which is not at {places[0]}; put them back, or "
        "name their place: objective.teacher=PATH"
    )


def with_outputs(show: Show, frozen: FrozenModel | None) -> Show:
    """Return how batches are prepared, with the stored outputs of the teacher where there are any."""
    if frozen is None or not isinstance(frozen.source, StoredOutputs):
        return show
    return partial(_shown, show, frozen.source.outputs)


def _shown(show: Show, outputs: TeacherOutputs, batch: Batch) -> Batch:
    made = show(batch)
    assert isinstance(made, DistillationBatch)
    return attach(made, lambda index: outputs.row(int(made.rows[index]), row_key(made, index)))


def attach(batch: DistillationBatch, output: Callable[[int], TeacherOutput]) -> DistillationBatch:
    """Return a batch with what a teacher says to each row; positions of padding have zeros."""
    rows = [output(index) for index in range(len(batch))]

    def spread(parts: list[NDArray[Any] | None], dtype: Any) -> torch.Tensor | None:
        if any(part is None for part in parts):
            return None
        first = parts[0]
        assert first is not None and batch.real is not None
        whole = np.zeros((*batch.inputs.shape, first.shape[1]), dtype or first.dtype)
        for index, part in enumerate(parts):
            whole[index][batch.real[index].numpy() > 0] = part
        return torch.from_numpy(whole)

    return replace(
        batch,
        stored=spread([row.logprobs for row in rows], None),
        stored_ids=spread([row.ids for row in rows], np.int32),
        stored_hidden=spread([row.hidden for row in rows], None),
    )


def row_key(batch: DistillationBatch, index: int) -> int:
    """Return a digest of what the teacher reads of a row, padding aside."""
    assert batch.real is not None
    real = batch.real[index].numpy() > 0
    parts = [
        None if one is None else one[index].numpy()[real] for one in (batch.inputs, batch.documents, batch.positions)
    ]
    if batch.source is not None and batch.source_lengths is not None:
        parts.append(batch.source[index, : int(batch.source_lengths[index])].numpy())
    return key_of(parts)


def placeholder(batch: Batch, frozen: FrozenModel) -> Batch:
    """Return a batch with outputs of the right shapes, to time a step without data."""
    assert isinstance(batch, DistillationBatch) and isinstance(frozen.source, StoredOutputs) and batch.real is not None
    manifest = frozen.source.outputs.manifest

    def output(index: int) -> TeacherOutput:
        assert batch.real is not None
        count = int((batch.real[index] > 0).sum())
        shapes = {name: (dtype, columns) for name, (dtype, _, columns) in manifest.arrays().items()}
        parts = {name: np.zeros((count, shapes[name][1]), shapes[name][0]) for name in shapes}
        return TeacherOutput(parts["logprobs.bin"], parts.get("ids.bin"), parts.get("hidden.bin"))

    return attach(batch, output)
