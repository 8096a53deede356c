"""The format of a run's config: its number, migrations from older ones, and the keys that have got another name."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heddle.core import UsageError, brief

CONFIG_FORMAT = 3
CHECKSUM = "checksum"  # a key of the file in a run's folder, not of the config

# Keys of format 2 and what they are called since; the rest of a path goes along.
RENAMED = {
    "also": "mix",
    "thawed": "unfrozen",
    "training.micro": "training.micro_batch",
    "training.horizon": "training.window_warmup",
    "training.optimizer.rate": "training.optimizer.learning_rate",
    "training.optimizer.decay": "training.optimizer.weight_decay",
    "training.optimizer.rest.rate": "training.optimizer.rest.learning_rate",
    "training.optimizer.rest.decay": "training.optimizer.rest.weight_decay",
    "hardware.products": "hardware.matmul",
    "hardware.recompute": "training.activation_checkpointing",
    "hardware.sums": "training.reduction",
}
NEW_VALUES: dict[str, dict[Any, Any]] = {
    "training.activation_checkpointing": {"some": "selective", "blocks": "full"},
    "training.reduction": {"fixed": "deterministic"},
    "training.window_warmup": {"whole": "none"},
    "training.window_warmup.kind": {"whole": "none"},
}


# --- from one format to the next --------------------------------------------------------------------------------------


def _dropout_as_part(config: Any) -> Any:
    """Replace the dropout number of a branch or a full embedding by a part."""
    if isinstance(config, list):
        return [_dropout_as_part(item) for item in config]
    if not isinstance(config, dict):
        return config
    moved = {key: _dropout_as_part(value) for key, value in config.items()}
    if isinstance(moved.get("dropout"), int | float) and ("part" in moved or moved.get("kind") == "full"):
        moved["dropout"] = {"kind": "element", "rate": moved["dropout"]}
    return moved


def _to_2(config: dict[str, Any]) -> dict[str, Any]:
    """Migrate to format 2: dropout is a part, and so is the average of weights, formerly the decay of a moving one."""
    moved: dict[str, Any] = _dropout_as_part(config)
    training = moved.get("training")
    if isinstance(training, dict) and isinstance(training.get("average"), int | float):
        moved["training"] = training | {"average": {"kind": "moving", "decay": training["average"]}}
    return moved


def _to_3(config: dict[str, Any]) -> dict[str, Any]:
    """Migrate to format 3: keys have the names that papers and other libraries use."""
    for old, new in RENAMED.items():
        above, _, key = old.rpartition(".")
        table = _table(config, above)
        if table is not None and key in table:
            config = _with(config, above, {name: value for name, value in table.items() if name != key})
            config = _with(config, new, _new_value(new, table[key]))
    return config


def _table(config: Any, path: str) -> Mapping[str, Any] | None:
    """Return the table at a path, if there is one."""
    for key in path.split(".") if path else ():
        config = config.get(key) if isinstance(config, Mapping) else None
    return config if isinstance(config, Mapping) else None


def _with(config: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a config with the value at a path; one that stands there already wins over none, not over a table."""
    key, _, rest = path.partition(".")
    if not path:
        return dict(value)
    inner = config.get(key)
    return {**config, key: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def _new_value(path: str, value: Any) -> Any:
    """Return a value of format 2 as it is written now."""
    if isinstance(value, Mapping):
        return {key: _new_value(f"{path}.{key}", inner) for key, inner in value.items()}
    return NEW_VALUES.get(path, {}).get(value, value) if isinstance(value, str) else value


CONFIG_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _to_2, 2: _to_3}  # to the next format


def migrate_config(config: Any, where: str) -> Any:
    """Return a run's config in the current format; a file without a format number has format 1."""
    if not isinstance(config, dict):
        return config
    number = config.get("format", 1)
    if not isinstance(number, int) or number > CONFIG_FORMAT:
        want = f"written by a newer heddle, in format {number}; this one reads up to {CONFIG_FORMAT}"
        raise UsageError(f"{where}: {want}")
    if isinstance(number, bool) or number < 1:
        raise UsageError(f"{where}: want a format of 1 to {CONFIG_FORMAT}, found {brief(number)}")
    config = {key: value for key, value in config.items() if key != CHECKSUM}
    for step in range(number, CONFIG_FORMAT):
        config = CONFIG_MIGRATIONS[step](config)
    return config | {"format": CONFIG_FORMAT}


# --- checksum of the file in a run's folder ---------------------------------------------------------------------------


def with_checksum(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as it is written to a run's folder: with a checksum, by which damage is noticed."""
    plain = {key: value for key, value in config.items() if key != CHECKSUM}
    return plain | {CHECKSUM: hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]}


def checksum_fits(config: Any) -> bool | None:
    """Tell whether a config is as it was written; None: it has no checksum, as in earlier versions."""
    if not isinstance(config, Mapping) or CHECKSUM not in config:
        return None
    return bool(with_checksum(config)[CHECKSUM] == config[CHECKSUM])


# --- keys that a user typed -------------------------------------------------------------------------------------------


def renamed_keys(config: Any) -> list[tuple[str, str]]:
    """Return the old keys that a config holds, each with its new name."""
    at = ((old, new, *old.rpartition(".")[::2]) for old, new in RENAMED.items())
    found = [(old, new) for old, new, table, key in at if key in (_table(config, table) or {})]
    return found if isinstance(config, Mapping) else []


def renamed_overrides(path: str, value: Any) -> Iterator[tuple[str, Any, str | None]]:
    """Yield an override by its new key, with a hint where it was given by an old one; a table may become several."""
    for old, new in RENAMED.items():
        if path == old or path.startswith(f"{old}."):
            now = new + path.removeprefix(old)
            yield now, _new_value(now, value), f"{path} is now called {now}"
            return
    given = _with({}, path, value)
    if not isinstance(value, Mapping) or not (renamed := renamed_keys(given)):
        yield path, value, None
        return
    hint, moved = ", ".join(f"{old} is now called {new}" for old, new in renamed), _to_3(given)
    if table := _table(moved, path):
        yield path, dict(table), hint
    for _, new in renamed:
        if not new.startswith(f"{path}."):
            above, _, key = new.rpartition(".")
            yield new, (_table(moved, above) or {})[key], hint
