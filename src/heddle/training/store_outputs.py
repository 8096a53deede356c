"""Writing stored teacher outputs: a teacher reads the rows of a run to come, once, and what it says goes to disk."""

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.checkpoints import FrozenModel, find_source
from heddle.core import ConfigError, UsageError, check_at_least
from heddle.data.rows import Loader, token_traits
from heddle.data.shards import (
    Precision,
    TeacherOutput,
    TeacherOutputs,
    TeacherOutputsManifest,
    TeacherOutputsWriter,
)
from heddle.models.networks import Model
from heddle.objectives import DistillationBatch, DistillationConfig
from heddle.text.tokenizers import Tokenizer
from heddle.training.frozen_model import frozen_name, load_frozen_model
from heddle.training.run_config import RunConfig
from heddle.training.setup import RunEnvironment, open_data, resolve
from heddle.training.stored_teacher import facts_of, row_key, stored_name

Progress = Callable[[int, int], None]


def store_teacher_outputs(
    config: RunConfig,
    out: Path,
    top_k: int | None = 64,
    precision: Precision = "float16",
    runs: Path = Path("runs"),
    progress: Progress = lambda done, total: None,
) -> TeacherOutputs:
    """Write what the teacher of a distillation run says to all rows of its steps; return it, open for reading.

    `top_k` is how many ids of each position are stored, the most probable ones; None: all of the vocabulary.
    """
    check_at_least(1, top_k=top_k)
    if not isinstance(config.objective, DistillationConfig):
        raise ConfigError("objective.kind", want="distillation, which has a teacher", got=config.objective.kind)
    if (folder := stored_name(config, frozen_name(config))) is not None:
        raise ConfigError("objective.teacher", want="a model, to store its outputs", got=str(folder))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists already, and teacher outputs are written once; remove it first")
    place = runs / f".teach-{secrets.token_hex(4)}"  # beside the runs, whose token shards are shared
    try:
        env = RunEnvironment(place)
        init = None if config.init is None else find_source(config.init)
        config, tokenizer = resolve(config, env, None, init)
        _, plan, _ = open_data(config, tokenizer, env, None)
        show = config.objective.preparer(config.seed, partial(token_traits, tokenizer))
        workers = config.hardware.workers
        loader = Loader(plan, config.training.batch, workers=workers, transform=show)
        hardware = config.hardware.choose()
        teacher = load_frozen_model(config, None, tokenizer.vocab, hardware, place)
        assert teacher is not None
        _write(config, tokenizer, teacher, loader, Storing(out, top_k, precision, progress))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return TeacherOutputs.open(out, verify=False)


@dataclass(frozen=True)
class Storing:
    """Where outputs go, and what is kept of them."""

    out: Path
    top_k: int | None
    precision: Precision
    progress: Progress


def _write(config: RunConfig, tokenizer: Tokenizer, teacher: FrozenModel, loader: Loader, storing: Storing) -> None:
    """Let the teacher read batch after batch, each row that reads otherwise than those before once."""
    objective, model = config.objective, teacher.model
    assert isinstance(objective, DistillationConfig) and model is not None
    student = config.model.expand()
    vocab = student.vocab or 0
    if vocab > (model.vocab or 0):
        want = f"at most {model.vocab} ids, those of the teacher, to store its outputs"
        raise ConfigError("model.vocab", want=want, got=vocab)
    whole = storing.top_k is None or storing.top_k >= vocab - 1  # all but one, and the rest: that is all of them
    top_k = None if whole else storing.top_k
    manifest = TeacherOutputsManifest(
        teacher=teacher.reference.name,
        sha256=teacher.reference.sha256,
        facts=facts_of(config, tokenizer),
        precision=storing.precision,
        vocab=vocab,
        columns=vocab if top_k is None else top_k + 1,
        hidden=student.width if objective.cosine_weight else 0,
    )
    rows, micro = config.training.steps * config.training.batch, config.training.micro_batch or config.training.batch
    with TeacherOutputsWriter(storing.out, manifest) as writer:
        for number, batch in enumerate(loader, 1):
            assert isinstance(batch, DistillationBatch)
            keys = [row_key(batch, index) for index in range(len(batch))]
            new = [keys.index(key) for key in dict.fromkeys(keys) if not writer.knows(key)]
            outputs: dict[int, TeacherOutput] = {}
            for start in range(0, len(new), micro):
                chosen = new[start : start + micro]
                found = _outputs(objective, model, batch.select(torch.tensor(chosen)), vocab, top_k)
                outputs |= dict(zip((keys[index] for index in chosen), found, strict=True))
            for key in keys:
                writer.add(key, partial(outputs.__getitem__, key))
            storing.progress(number, config.training.steps)
            if number * config.training.batch >= rows:
                break


def _outputs(
    objective: DistillationConfig, teacher: Model, batch: DistillationBatch, vocab: int, top_k: int | None
) -> list[TeacherOutput]:
    """Return what a teacher says to the real positions of each row."""
    assert batch.real is not None
    counts = (batch.real > 0).sum(1).tolist()
    device = next(teacher.parameters()).device
    parts = objective.outputs_of(teacher, batch.to(device), vocab, top_k)
    split = [[None] * len(counts) if part is None else _arrays(part, counts) for part in parts]
    return [TeacherOutput(*row) for row in zip(*split, strict=True)]


def _arrays(part: torch.Tensor, counts: list[int]) -> list[NDArray[Any]]:
    whole = (part.float() if part.is_floating_point() else part).cpu().numpy()
    return np.split(whole, np.cumsum(counts)[:-1])
