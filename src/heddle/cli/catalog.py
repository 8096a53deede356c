"""The catalog: every config key, recipe, preset and kind by name, so that help and lists need not import torch.

`make reference` writes it from the code, together with docs/reference.md; a test fails when it is out of date.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.core import Config

FILE = Path(__file__).parent / "catalog.json"
ROOT = "RunConfig"
COMMANDS = {"heddle compare": "SuiteConfig", "heddle scale": "ScaleConfig"}  # commands with keys of their own
PRESET = "PresetConfig"
SCALARS = {"none": "null", "str": "text", "bool": "true or false", "float": "number", "int": "integer"}


@dataclass(frozen=True)
class Key:
    """One field of a config: its type in words and as data, its default as YAML (None: required), its sentence."""

    name: str
    type: str
    hint: Any
    default: str | None
    about: str


@dataclass(frozen=True)
class Table:
    """One config: its class, its kind if it has one, its sentence and its fields."""

    name: str
    kind: str | None
    about: str
    keys: dict[str, Key]


@dataclass(frozen=True)
class Catalog:
    """Everything by name.

    slots: by the class of a slot, the classes that it may hold. old_keys: names that keys had in earlier formats.
    """

    format: int
    tables: dict[str, Table]
    slots: dict[str, list[str]]
    recipes: dict[str, dict[str, Any]]  # about, config
    presets: dict[str, dict[str, Any]]  # about, parameters, options, model
    old_keys: list[str]

    def held(self, key: Key) -> list[Table]:
        """Return the tables that a field may hold."""
        return [self.tables[name] for slot in _slots(key.hint) for name in self.slots[slot]]

    @cached_property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """Return, by table, where it stands in a run's config, by the shortest way, N for an index.

        The keys that only a command has stand below the name of the command.
        """
        found: dict[str, tuple[str, ...]] = {ROOT: ()} | {name: (command,) for command, name in COMMANDS.items()}
        todo = list(found)
        while todo:
            table = self.tables[todo.pop(0)]
            for key in table.keys.values():
                index = ("N",) if _is_list(key.hint) else ()
                for inner in self.held(key):
                    if inner.name not in found:
                        found[inner.name] = (*found[table.name], key.name, *index)
                        todo.append(inner.name)
        return found


def join(path: Sequence[str]) -> str:
    """Write a path with dots; the name of a command stands apart: heddle scale larger.tokens."""
    command = path[0] if path and path[0] in COMMANDS else ""
    return " ".join(filter(None, (command, ".".join(path[1:] if command else path))))


def _slots(hint: Any) -> list[str]:
    if not isinstance(hint, list) or hint[0] == "literal":
        return []
    return [hint[1]] if hint[0] == "config" else [slot for inner in hint[1:] for slot in _slots(inner)]


def _is_list(hint: Any) -> bool:
    """Tell whether a field holds a list, perhaps beside null."""
    options = hint[1:] if isinstance(hint, list) and hint[0] == "union" else [hint]
    return any(isinstance(one, list) and one[0] == "tuple" for one in options)


@cache
def catalog() -> Catalog:
    """Read the catalog."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    tables = {
        name: Table(name, kind, about, {key[0]: Key(*key) for key in keys})
        for name, (kind, about, keys) in data["tables"].items()
    }
    return Catalog(data["format"], tables, data["slots"], data["recipes"], data["presets"], data["old_keys"])


# --- from the code ----------------------------------------------------------------------------------------------------


def build_catalog() -> dict[str, Any]:
    """Return the catalog as plain data; building every preset to count its parameters takes seconds."""
    from heddle.checkpoints.store import CONFIG_FORMAT, RENAMED
    from heddle.comparison.scaling import ScaleConfig
    from heddle.comparison.suites import SuiteConfig
    from heddle.core import encode, kinds
    from heddle.core.describe import field_types, first_sentence, members, reachable, slots
    from heddle.models import build_meta, count_parameters
    from heddle.models.presets import PRESETS
    from heddle.recipes import RECIPES, RunConfig

    roots = (RunConfig, SuiteConfig, ScaleConfig)
    classes = list(dict.fromkeys(cls for root in roots for cls in reachable(root) if _own(cls)))
    held = [slot for cls in classes for hint in field_types(cls).values() for slot in slots(hint)]
    presets = {}
    for name, preset in PRESETS.items():
        config = preset.config()
        presets[name] = {
            "about": preset.description,
            "parameters": count_parameters(build_meta(config)),
            "options": preset.option_names,
            "model": type(config).__name__,
        }
    return {
        "format": CONFIG_FORMAT,
        "tables": {
            cls.__name__: [cls.kind if kinds(cls) else None, first_sentence(cls), _keys(cls)] for cls in classes
        },
        "slots": {slot.__name__: [cls.__name__ for cls in members(slot) if _own(cls)] for slot in dict.fromkeys(held)},
        "recipes": {name: {"about": first_sentence(make), "config": encode(make())} for name, make in RECIPES.items()},
        "presets": presets,
        "old_keys": sorted({old.rpartition(".")[2] for old in RENAMED}.union(*(cls.old_fields for cls in classes))),
    }


def _own(cls: type) -> bool:
    """Tell whether a class is the library's; a user's own are not in its catalog."""
    return cls.__module__.startswith("heddle.")


def _keys(cls: "type[Config]") -> list[list[Any]]:
    from heddle.core.describe import defaults, field_types, plain_hint, sentences

    about, given = sentences(cls), defaults(cls)
    return [
        [name, _words(plain_hint(hint)), plain_hint(hint), _default(given, name), _yaml_words(about.get(name, ""))]
        for name, hint in field_types(cls).items()
    ]


def _yaml_words(sentence: str) -> str:
    """Say null where the code says None."""
    return sentence.replace("None:", "null:")


def _words(hint: Any) -> str:
    """Write a type as users know it."""
    if not isinstance(hint, list):
        return SCALARS.get(hint, str(hint))
    what, *inner = hint
    if what == "union":
        return " or ".join(map(_words, inner))
    if what == "literal":
        return ", ".join(map(str, inner))
    if what == "config":
        return "table"
    return f"list of {_words(inner[0])}" if what == "tuple" else "table of names"


def _default(given: dict[str, Any], name: str) -> str | None:
    from heddle.core import Config, encode
    from heddle.core.system import to_yaml

    if name not in given:
        return None
    value = given[name]
    if isinstance(value, Config):
        return value.kind or "table"
    if isinstance(value, tuple):
        if value and not any(isinstance(one, Config) for one in value):
            return "[" + ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value) + "]"
        value = [encode(one) if isinstance(one, Config) else one for one in value]
    words = to_yaml({"value": value}).partition(":")[2].split()
    return " ".join(words) if len(words) < 8 else "list"


def to_text(data: dict[str, Any]) -> str:
    """Write the catalog with one line for each name, so that changes can be read."""
    sections = []
    for title, section in data.items():
        if isinstance(section, dict):
            rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in section.items())
            sections.append(f'"{title}": {{\n{rows}\n}}')
        else:
            sections.append(f'"{title}": {json.dumps(section)}')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> int:
    """Write the catalog and docs/reference.md."""
    from heddle.cli.reference import reference

    FILE.write_text(to_text(build_catalog()), encoding="utf-8")
    catalog.cache_clear()
    Path("docs/reference.md").write_text(reference(catalog()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
