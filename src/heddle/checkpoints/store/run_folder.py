"""Run folder: finds a run by name and loads its newest good checkpoint as a model with its tokenizer."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from heddle.checkpoints.store.checkpoint import Checkpoint, open_checkpoint
from heddle.checkpoints.store.config_format import migrate_config
from heddle.checkpoints.store.manifest import CONFIG, MANIFEST, limit_of, read_manifest, read_text_file
from heddle.checkpoints.store.safetensors_io import get_tensor, open_tensors
from heddle.checkpoints.store.store import DamagedCheckpoint, Store
from heddle.core import ConfigError, DamageError, UsageError, decode, find, hint, system_faults, user_code
from heddle.core.system import Hardware, choose_hardware, parse_json
from heddle.models import build_meta
from heddle.models.networks import Model, ModelConfig
from heddle.nn.ends import EmbeddingConfig
from heddle.text.tokenizers import TOKENIZER, Tokenizer

CHECKPOINTS = "checkpoints"
RUNS = "runs"  # the folder of runs, in the working directory
WEIGHTS, AVERAGE = "model", "average"
HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # owner/name

log = logging.getLogger("heddle")


def load_checkpoint_model(
    checkpoint: Checkpoint,
    config: ModelConfig,
    hardware: Hardware | None = None,
    frozen: Mapping[str, Tensor] = MappingProxyType({}),
) -> Model:
    """Build a model and load its weights from a checkpoint: the moving average if the run has one.

    Weights are float32 unless `hardware` says otherwise, so that results do not depend on the chip. `frozen` are those
    that the checkpoint does not hold; the model takes their memory where it can.
    """
    chosen = choose_hardware(dtype="float32") if hardware is None else hardware
    model = build_meta(config).to(chosen.dtype)
    model.materialize(chosen.device)
    for name, weight in model.named_parameters():
        if name in frozen and (weight.device, weight.dtype) == (frozen[name].device, frozen[name].dtype):
            weight.data = frozen[name]  # no second copy
    model.copy_weights(_CheckpointTensors(checkpoint, frozen, model.config.training_only))
    model.eval()
    return model


def missing_weights(checkpoint: Checkpoint, config: ModelConfig) -> frozenset[str]:
    """Return the names of the model's weights that a checkpoint does not hold."""
    return frozenset(name for name, _ in build_meta(config).named_parameters()) - checkpoint.names(WEIGHTS)


def open_run(path: Path, *, best: bool = False) -> Checkpoint:
    """Open the newest good checkpoint of a run (or its best), or the checkpoint at the path itself.

    A damaged checkpoint is skipped with a warning.
    """
    if (path / MANIFEST).is_file():
        return open_checkpoint(path)
    store = Store(path / CHECKPOINTS)
    found = store.best() if best else store.newest()
    skipped = store.damaged
    if found is None and best:  # nothing was ever validated, so take the newest
        found, skipped = store.newest(), store.damaged
    if found is None:
        raise _no_checkpoint(path, skipped)
    for damage in skipped:
        log.warning("%s; using %s instead", damage.reason, found.path.name)
    return found


def _no_checkpoint(path: Path, skipped: tuple[DamagedCheckpoint, ...]) -> Exception:
    if skipped:
        newest = skipped[0].reason
        return DamageError(f"{path}: no good checkpoint is left, {len(skipped)} damaged; the newest: {newest}")
    return UsageError(f"{path}: holds no checkpoint; want a run folder with {CHECKPOINTS}/step-…")


def run_config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the run's config that is saved in a checkpoint; the code of the user's own that it names is loaded."""
    if CONFIG not in checkpoint.texts or TOKENIZER not in checkpoint.texts:
        held = ", ".join(checkpoint.texts) or "neither"
        raise UsageError(f"{checkpoint.path}: want {CONFIG} and {TOKENIZER} beside the weights, found {held}")
    where = str(checkpoint.path / CONFIG)
    config = migrate_config(parse_json(checkpoint.texts[CONFIG], where), where)
    if not isinstance(config, dict) or "model" not in config:
        raise ConfigError(f"{checkpoint.path / CONFIG}", want="a table with the key model", got=config)
    user_code.load_recorded(config.get("use", []), checkpoint.path.parent.parent)
    return config


def newest_config(run: Path) -> tuple[dict[str, Any], str] | None:
    """Return the run's config in its newest checkpoint whose config verifies, and where that is; no weight is read."""
    for entry in reversed(Store(run / CHECKPOINTS).list()):
        path, config = entry.path / CONFIG, None
        with contextlib.suppress(DamageError, ConfigError):
            digest = read_manifest(entry.path)[0].files.get(CONFIG)
            if digest is not None:
                text = read_text_file(path, limit_of(CONFIG), digest)
                config = migrate_config(parse_json(text, str(path)), str(path))
        if config is not None:
            user_code.load_recorded(config.get("use", []), run)
            return config, entry.path.name
    return None


def load_config(data: Any, path: Path) -> Any:
    """Return the data of a config file in the current format; the code of the user's own that it names is loaded."""
    config = migrate_config(data, str(path))
    if not isinstance(config, dict) or "use" not in config:
        return config
    return config | {"use": user_code.load_recorded(config["use"], path.parent)}


def model_config(checkpoint: Checkpoint, config: Mapping[str, Any], tokenizer: Tokenizer) -> ModelConfig:
    """Return the full config of a run's model; the tokenizer must not be larger than its vocabulary."""
    full = decode(ModelConfig, config["model"], "model").expand().finished()
    if full.vocab is None and all(one.reads == "ids" for one in find(full, EmbeddingConfig)):
        raise ConfigError("model.vocab", want="a number, because the model has a tokenizer", got=None)
    if full.vocab is None:  # of images, with classes
        return full
    if tokenizer.vocab > full.vocab:
        want = f"a tokenizer of at most {full.vocab} ids, as the model has"
        raise ConfigError(f"{checkpoint.path / TOKENIZER}", want=want, got=tokenizer.vocab)
    return full


class _CheckpointTensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint, each read when needed, so that loading a model makes no second copy of it."""

    def __init__(self, checkpoint: Checkpoint, frozen: Mapping[str, Tensor], left_out: tuple[str, ...]) -> None:
        self._frozen = frozen
        self._path = checkpoint.weights(AVERAGE if AVERAGE in checkpoint.groups else WEIGHTS)
        self._file = open_tensors(self._path)
        names = frozenset(self._file.keys()) | frozen.keys()
        self._names = frozenset(name for name in names if not name.startswith(left_out))

    def __getitem__(self, name: str) -> Tensor:
        return self._frozen[name] if name in self._frozen else get_tensor(self._file, name, self._path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# --- finding a run ----------------------------------------------------------------------------------------------------


def find_run(name: str | Path | None = None, runs: str | Path = RUNS) -> Path:
    """Return the folder of a run, given a path or a name in `runs`; None means the newest run with a checkpoint."""
    known = list_runs(Path(runs))
    if name is None:
        if not known:
            raise UsageError(f"{runs}: holds no run yet; type: heddle train")
        saved = [run for run in known if any((run / CHECKPOINTS).glob("step-*"))]
        newest = (saved or known)[-1]  # a run that has just begun has nothing to load
        refuse_links(newest)
        return newest
    path = Path(name)
    for folder in (path, Path(runs) / path):
        with system_faults(folder):
            if (folder / MANIFEST).is_file():
                return folder
        if _is_run(folder):
            refuse_links(folder)
            return folder
    if path.is_dir():
        raise UsageError(f"{path}: not a run: it has neither {CONFIG} nor {CHECKPOINTS}/")
    near = hint(path.name, [folder.name for folder in known])
    if HUB.fullmatch(str(name)) and not path.parent.is_dir():
        near = "; models are not downloaded from a hub: give the folder of a saved model"
    raise UsageError(f"no run is called {str(name)!r}, here or in {runs}{near}")


def refuse_links(run: Path) -> None:
    """Refuse a run that holds a link: what is written, pruned or copied through it would lie outside the folder.

    What is inside a checkpoint is read by its manifest, and never through a link.
    """
    for folder, inner, files in os.walk(run):
        linked = [path for path in (Path(folder, name) for name in (*inner, *files)) if path.is_symlink()]
        if linked:
            raise DamageError(f"{linked[0]}: a link; a run folder must hold the files themselves")
        if Path(folder) == run and CHECKPOINTS in inner:
            inner.remove(CHECKPOINTS)


def list_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder, the one saved last at the end."""
    found = [path for path in folder.iterdir() if _is_run(path)] if folder.is_dir() else []
    return sorted(found, key=lambda path: (_saved(path), path.name))


def _is_run(path: Path) -> bool:
    with contextlib.suppress(PermissionError):  # one folder that cannot be read is no reason to stop
        return (path / CONFIG).is_file() or (path / CHECKPOINTS).is_dir()
    return False


def _saved(path: Path) -> int:
    """Return when a run last saved a checkpoint."""
    found = [mark for mark in (path / CHECKPOINTS, path / CONFIG) if mark.exists()]
    return max(mark.stat().st_mtime_ns for mark in found)
