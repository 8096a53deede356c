"""YAML and JSON without surprises: no code, no aliases, no repeated keys, no NaN, bounded size and depth."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import yaml

from heddle.core.errors import ConfigError, UsageError, brief, first_line, system_faults
from heddle.core.raw_value import RawValue
from heddle.core.system.encodings import decode_text

MAX_BYTES = 4 << 20  # bytes
MAX_CONFIG_BYTES = 256 << 10  # bytes; ours are a few kilobytes, and parsed text can take twenty times its size
MAX_MARKS = 10_000  # marks of structure in a YAML text: its parser takes some 25 microseconds for each


class StrictLoader(yaml.SafeLoader):
    """YAML's core schema: only true and false are booleans, 1e-3 is a number; aliases and repeated keys are errors."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ConfigError("yaml", want="no aliases", got="*" + str(self.peek_event().anchor))
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise ConfigError("yaml", want="each key once", got=key.value)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: Any) -> int:
        return int(self.construct_scalar(node))


class StrictDumper(yaml.SafeDumper):
    """Writes what StrictLoader reads back, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


FLOAT = r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
WORDS = [
    ("null", r"^(~|null|)$", ["~", "n", ""]),
    ("bool", r"^(true|false)$", list("tf")),
    ("int", r"^[-+]?[0-9]{1,18}$", list("-+0123456789")),
    ("float", FLOAT, list("-+.0123456789")),
]
StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_decimal)  # 0100 is a hundred, not octal
for schema in (StrictLoader, StrictDumper):
    schema.yaml_implicit_resolvers = {}
    for word, pattern, starts in WORDS:
        schema.add_implicit_resolver(f"tag:yaml.org,2002:{word}", re.compile(pattern), starts)


def parse_yaml(text: str, name: str = "yaml") -> Any:
    """Parse YAML strictly; every fault is a ConfigError of one line."""
    marks = sum(text.count(mark) for mark in ",[]{}:-?\n")
    if len(text) > MAX_CONFIG_BYTES or marks > MAX_MARKS:
        want = f"at most {MAX_CONFIG_BYTES} characters and {MAX_MARKS} lines, keys and values"
        raise ConfigError(name, want=want, got=f"{len(text)} and {marks}")
    try:
        data = yaml.load(text, Loader=StrictLoader)  # noqa: S506 - StrictLoader is a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise ConfigError(name, want="valid YAML", got=_yaml_fault(error)) from None
    _refuse_half_characters(text, data, name)
    return data


def _yaml_fault(error: Exception) -> str:
    """Say what is wrong with a YAML text, and where."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None or error.problem_mark is None:
        return first_line(error)
    return f"{error.problem} in line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"


def parse_json(text: str, name: str = "json") -> Any:
    """Parse JSON strictly; every fault is a ConfigError of one line."""

    def refuse(constant: str) -> None:
        raise ConfigError(name, want="finite numbers", got=constant)

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(name, want="each key once", got=key)
            found[key] = value
        return found

    try:
        data = json.loads(text, parse_constant=refuse, object_pairs_hook=table)
    except (ValueError, RecursionError) as error:
        raise ConfigError(name, want="valid JSON", got=first_line(error)) from None
    _refuse_half_characters(text, data, name)
    return data


def _refuse_half_characters(text: str, data: Any, name: str) -> None:
    """Refuse escapes such as a lone `\\ud800`, which could be read but never written again."""
    if "\\u" not in text and "\\U" not in text:
        return
    try:
        json.dumps(data, ensure_ascii=False, skipkeys=True, default=str).encode()
    except (UnicodeEncodeError, RecursionError):
        raise ConfigError(name, want="text that UTF-8 can hold", got="half a surrogate pair") from None


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Read a small text file whole, in UTF-8 or by its byte-order mark."""
    try:
        if path.stat().st_size > limit:
            raise UsageError(f"{path}: larger than {limit} bytes, too large for a file of this kind")
        return decode_text(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: want a file, found a folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def read_table(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Read a small JSON file that holds a table."""
    return parse_table(read_text(path, limit), str(path))


def parse_table(text: str, name: str) -> dict[str, Any]:
    """Parse JSON that holds a table."""
    found = parse_json(text, name)
    if not isinstance(found, dict):
        raise UsageError(f"{name}: want an object, found {brief(found)}")
    return found


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file as plain data, chosen by its ending."""
    parse = parse_json if path.suffix == ".json" else parse_yaml
    data = parse(read_text(path, MAX_CONFIG_BYTES), str(path))
    if not isinstance(data, dict):
        found = "an empty file" if data is None else brief(data)
        raise UsageError(f"{path}: want a mapping of settings, as heddle train --print writes it, found {found}")
    return data


def parse_overrides(words: Iterable[str], several: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, Any]]:
    """Return the key and the value of each `key=value`, in order; a key that is given twice is refused.

    A table is parsed as YAML; any other value is raw, and the field that it is for decides what it means. `several`
    tells by key how more than one value is given.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"want key=value, got {word!r}")
        if key in found:
            raise UsageError(f"{key}: given twice; want each key once{several.get(key, '')}")
        raw = RawValue.of(value, partial(parse_yaml, name=key))
        found[key] = parse_yaml(value, key) if re.fullmatch(r"\s*\{.*\}\s*", value, re.DOTALL) else raw
    return list(found.items())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write, which takes the path's place when all of it is on the disk; after a fault nothing is left.

    So a crash leaves either the old file or the new one, and what is read meanwhile may be the old one itself.
    """
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.absolute().parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):  # None: a full disk names no file
            error.filename, error.filename2 = str(path), None  # what the user knows of
        raise


def check_writable(path: Path) -> None:
    """Refuse a path at which nothing can be written, before the work whose result it is to hold."""
    with system_faults(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.lstat()  # a name that is too long fails here
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot be created: {nearest} is not a writable folder")


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file so that a crash leaves either the old or the new one."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a crash leaves either the old or the new one; a link is replaced, not followed."""
    with replacing(path) as file:
        file.write(text.encode())


def open_to_append(path: Path) -> IO[str]:
    """Open a text file to write at its end; a link is refused, since it may lead anywhere."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    return os.fdopen(handle, "a", encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the medium, so that what was renamed in it stays so."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_yaml(data: Any) -> str:
    """Write plain data as YAML that `parse_yaml` reads back."""
    return str(yaml.dump(data, Dumper=StrictDumper, sort_keys=False, allow_unicode=True, width=120))
