"""Precheck: keys and plain values of a config against the catalog, so that a typo is told before torch is imported.

What it cannot judge it leaves to the full check: unknown kinds and recipes, which user code may add, and keys that had
another name in an earlier format.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from heddle.cli.catalog import PRESET, ROOT, Catalog, Key, Table, catalog

CHECKSUM = "checksum"  # of a run's config.json, which is no key of a config
SEVERAL = {
    "data": "; several files are one path (data=FOLDER or 'data=*.txt') or a list of sources "
    "(data.sources=[{kind: text, path: a.txt}, {kind: text, path: b.txt}])"
}
NO_OPTIONS = ("name", "dials", "edits")  # the fields of a preset that are not options of some presets
SHORT = ("data", "model", "tokenizer", "init", "use")  # keys that also take a path or a name instead of a table


def split_target(target: str | None, words: list[str]) -> tuple[str, list[str]]:
    """Return what is to be trained and the overrides; without a target, the first recipe."""
    return ("first", [*([target] if target else []), *words]) if target is None or "=" in target else (target, words)


def precheck(target: str | None, words: list[str], runs: Path = Path("runs")) -> None:
    """Refuse a wrong key or value in what `heddle train` is given: a recipe, a config file or a run, and overrides."""
    from heddle.core.system import parse_overrides, read_config

    name, words = split_target(target, words)
    overrides = list(parse_overrides(words, SEVERAL))
    if name in catalog().recipes:
        precheck_overrides(catalog().recipes[name]["config"], overrides)
        return
    written = Path(name).suffix in (".yaml", ".yml", ".json")
    files = (Path(name),) if written else (Path(name) / "config.json", runs / name / "config.json")
    found = next((path for path in files if path.is_file()), None)
    if found is not None:
        data = {key: value for key, value in read_config(found).items() if key != CHECKSUM}
        if written:
            precheck_table(data)
        precheck_overrides(data, overrides)


def precheck_overrides(base: Any, overrides: Iterable[tuple[str, Any]]) -> None:
    """Refuse a wrong key or value among overrides of a config that is given as plain data."""
    known = catalog()
    if not _is_current(known, base):
        return
    for path, value in overrides:
        keys = path.split(".")
        if any(key in known.old_keys for key in keys):
            return
        if path not in SHORT:
            _check_path(known, known.tables[ROOT], base, keys, value)
        if path == "data":  # a path, of which only the full check knows the sources
            base = _with(base, ["data", "sources"], None)
        else:
            base = _with(base, keys, {"kind": "preset", "name": value} if path == "model" else value)


def precheck_table(data: Any) -> None:
    """Refuse a wrong key or value in a config file."""
    known = catalog()
    if _is_current(known, data):
        _check_table(known, known.tables[ROOT], data, "")


def _is_current(known: Catalog, data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("format") == known.format


def _with(node: Any, keys: list[str], value: Any) -> Any:
    """Return plain data with the value at a path; a path that leads nowhere changes nothing."""
    if not keys:
        if isinstance(node, Mapping) and isinstance(value, str):
            return {"kind": value}  # a slot by the name of a kind
        merged = isinstance(node, Mapping) and isinstance(value, Mapping) and "kind" not in value
        return {**node, **value} if merged else value
    if isinstance(node, list) and keys[0].isdecimal() and int(keys[0]) < len(node):
        index = int(keys[0])
        return [*node[:index], _with(node[index], keys[1:], value), *node[index + 1 :]]
    if isinstance(node, Mapping):
        return {**node, keys[0]: _with(node.get(keys[0]), keys[1:], value)}
    return value if len(keys) == 1 and keys[0] == "kind" else node


def _check_path(known: Catalog, table: Table, node: Any, keys: list[str], value: Any, path: str = "") -> None:
    key, rest = keys[0], keys[1:]
    inner = f"{path}.{key}" if path else key
    if key == "kind":
        return
    if key not in table.keys or (table.name == PRESET and key not in NO_OPTIONS and value is not None):
        _check_shorthand(known, table, node, key, inner)
    if key not in table.keys:
        return
    found, node = table.keys[key], node.get(key) if isinstance(node, Mapping) else None
    while rest and isinstance(node, list) and rest[0].isdecimal() and int(rest[0]) < len(node):
        node, inner, rest = node[int(rest[0])], f"{inner}.{rest[0]}", rest[1:]
    if not rest:
        _check_value(known, found, value, inner)
    elif (below := _chosen(known, found, node)) is not None:
        _check_path(known, below, node, rest, value, inner)


def _check_shorthand(known: Catalog, table: Table, node: Any, key: str, path: str) -> None:
    """Refuse an unknown key; a preset also has those of its options, and of the model that it stands for."""
    from heddle.core import ConfigError, nearest

    names: list[str] = list(table.keys)
    if table.name == PRESET:
        preset = known.presets.get(node.get("name", "first") if isinstance(node, Mapping) else "")
        if preset is None:
            return
        of_model = () if key in table.keys else known.tables[preset["model"]].keys
        names = list(dict.fromkeys((*preset["options"], *of_model)))
        if key in names:
            return
    want = f"one of {', '.join(names)}" if names else "nothing, because it has no settings"
    raise ConfigError(path, want=want, got=key, near=nearest(key, names))


def _chosen(known: Catalog, key: Key, node: Any) -> Table | None:
    """Return the table that a slot holds, if its kind tells."""
    held = known.held(key)
    if not isinstance(node, Mapping):
        return None
    if len(held) == 1 and node.get("kind", held[0].kind) == held[0].kind:
        return held[0]
    return next((table for table in held if table.kind is not None and table.kind == node.get("kind")), None)


def _check_value(known: Catalog, key: Key, value: Any, path: str) -> None:
    """Check a scalar by its type, and of a table its keys."""
    from heddle.core import decode_value
    from heddle.core.describe import scalar_hint

    hint = scalar_hint(key.hint)
    if hint is not None:
        decode_value(hint, value, path)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            _check_value_table(known, key, one, f"{path}.{index}")
    else:
        _check_value_table(known, key, value, path)


def _check_value_table(known: Catalog, key: Key, value: Any, path: str) -> None:
    table = _chosen(known, key, value)
    if table is not None:
        _check_table(known, table, value, path)


def _check_table(known: Catalog, table: Table, data: Mapping[str, Any], path: str) -> None:
    from heddle.core import ConfigError, nearest

    for key, value in data.items():
        inner = f"{path}.{key}" if path else str(key)
        if key == "kind" and table.kind is not None:
            continue
        if key in known.old_keys and key not in table.keys:
            continue
        if key not in table.keys:
            want = f"one of {', '.join(table.keys)}" if table.keys else "nothing, because it has no settings"
            raise ConfigError(inner, want=want, got=key, near=nearest(str(key), table.keys))
        _check_value(known, table.keys[key], value, inner)
