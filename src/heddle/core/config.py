"""Configs: frozen, typed trees tagged by kind; decoded strictly, encoded and overridden."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

from heddle.core.errors import ConfigError, brief, nearest
from heddle.core.numbers import check_fields
from heddle.core.raw_value import typed_value

C = TypeVar("C", bound="Config")
T = TypeVar("T", bound="Config")
Plain = Any  # what JSON can hold: None, bool, int, float, str, list, dict

MAX_DEPTH = 60  # levels of nesting; real configs have far fewer, and recursion stays safe


_renamed: ContextVar[list[str] | None] = ContextVar("_renamed", default=None)


class Config:
    """Base of every config. A direct abstract subclass is a family; `@part` gives a member its kind."""

    kind: ClassVar[str | None] = None
    old_kind: ClassVar[str | None] = None  # what the kind was called before; still accepted
    old_fields: ClassVar[Mapping[str, str]] = {}  # former names of fields, still accepted: the names of today

    def __post_init__(self) -> None:
        """Check the ranges of the fields; a class with a check of its own calls this first."""
        check_fields(self)

    def expand(self) -> "Config":
        """Return the tree that this config stands for; a shorthand (such as a preset) overrides it."""
        return self

    @staticmethod
    @contextmanager
    def old_names() -> Iterator[list[str]]:
        """Collect a hint for each former name of a kind or field that is decoded meanwhile."""
        token = _renamed.set(hints := list[str]())
        try:
            yield hints
        finally:
            _renamed.reset(token)

    def left_out(self) -> list[str]:
        """Return the fields that mean nothing in this config, such as options that a preset does not have."""
        return []

    def with_override(self, path: str, value: Plain) -> "Config":
        """Return a shorthand with a change in the tree that it stands for; a preset stores the override."""
        return override(self.expand(), path, value)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only config without a kind."""
    return dataclass(frozen=True, kw_only=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def part(kind: str, was: str | None = None) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen, keyword-only config, filed in its family under a kind; `was`: the kind's former name."""

    def mark(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, kw_only=True)(cls)
        _refuse_taken(made, kind)
        made.kind, made.old_kind = kind, was
        return made

    return mark


def _refuse_taken(cls: type[Config], kind: str) -> None:
    """Refuse a kind of a user's own that would take the place of one of the library's."""
    families = [one for one in cls.__mro__[1:] if issubclass(one, Config) and one is not Config]
    taken = [kinds(one)[kind] for one in families if kind in kinds(one)]
    for own in taken if not cls.__module__.startswith("heddle.") else ():
        if own.__module__.startswith("heddle."):
            raise ConfigError(f"{cls.__name__}.kind", f"{kind!r} is taken by the library's {own.__name__}")


def kinds(family: type[T]) -> dict[str, type[T]]:
    """Return every kind of a family by name, the family itself included when it has a kind."""
    found = {family.kind: family} if family.kind is not None and "kind" in family.__dict__ else {}
    for child in family.__subclasses__():
        found |= kinds(child)
    return found


def field_types(cls: type[Config]) -> dict[str, Any]:
    """Return the declared type of each field."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


# --- to and from plain data -------------------------------------------------------------------------------------------


def encode(config: Config) -> dict[str, Plain]:
    """Return a config as plain data; `decode` is its inverse."""
    tag = {} if config.kind is None else {"kind": config.kind}
    return tag | {name: _encode_value(value) for name, value in fields_of(config).items()}


def _encode_value(value: object) -> Plain:
    if isinstance(value, Config):
        return encode(value)
    if isinstance(value, tuple):
        return [_encode_value(v) for v in value]
    if isinstance(value, dict):
        return {k: _encode_value(v) for k, v in value.items()}
    return value


def decode(cls: type[T], data: Plain, path: str = "") -> T:
    """Build a config from plain data, refusing every key and value that the class does not declare."""
    return typing.cast(T, _decode_config(cls, data, path, 0))


def _decode_config(cls: type[Config], data: Plain, path: str, depth: int) -> Config:
    _check_depth(path, depth)
    if isinstance(data, Config):
        data = encode(data)
    known = kinds(cls)
    if isinstance(data, str) and known:
        data = {"kind": data}
    plain = dataclasses.is_dataclass(cls)
    if not isinstance(data, Mapping) or not (known or plain):
        want = f"a {cls.__name__} (keys {', '.join(field_types(cls))})" if plain else _expected(known)
        raise ConfigError(path, want=want, got=data)
    keys = dict(data)
    if known:
        cls = _choose_kind(cls, known, keys, path)
    keys = _current_fields(cls, keys, path)
    hints = field_types(cls)
    for key in keys:
        if key not in hints:
            near = nearest(str(key)[:80], hints)
            raise ConfigError(_inner(path, key), want=_fields(hints), got=key, near=near)
    values = {k: decode_value(hints[k], v, _inner(path, k), depth + 1) for k, v in keys.items()}
    return _construct(cls, values, path)


def _check_depth(path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(path[:200], want=f"at most {MAX_DEPTH} levels of nesting", got="more")


def _fields(hints: Mapping[str, Any]) -> str:
    """Return which fields there are."""
    return f"one of {', '.join(hints)}" if hints else "nothing, because it has no settings"


def _inner(path: str, key: object) -> str:
    """Extend a path by a key, in one short line even where the key is neither."""
    name = key if isinstance(key, str) and key.isprintable() and len(key) <= 80 else brief(key)
    return f"{path}.{name}" if path else name


def _choose_kind(cls: type[Config], known: dict[str, type[Config]], keys: dict[str, Plain], path: str) -> type[Config]:
    where = f"{path}.kind" if path else "kind"
    if "kind" not in keys:
        if "kind" in cls.__dict__ and cls.kind is not None:
            return cls
        if len(known) == 1:  # there is nothing else that it could be
            return next(iter(known.values()))
        raise ConfigError(where, want=_expected(known), got="nothing")
    kind = keys.pop("kind")
    old = {one.old_kind: new for new, one in known.items()}
    if isinstance(kind, str) and kind not in known and kind in old:
        _note_renamed(f"{where}={kind}", f"{where}={old[kind]}")
        kind = old[kind]
    if not isinstance(kind, str) or kind not in known:
        raise ConfigError(where, want=_expected(known), got=kind, near=nearest(str(kind)[:80], known))
    return known[kind]


def _current_fields(cls: type[Config], keys: Mapping[str, Plain], path: str) -> dict[str, Plain]:
    """Return plain data with former names of fields replaced by those of today."""
    if not any(key in cls.old_fields for key in keys):
        return dict(keys)
    return {_current_field(cls, key, path) if isinstance(key, str) else key: value for key, value in keys.items()}


def _current_field(cls: type[Config], key: str, path: str) -> str:
    if key not in cls.old_fields:
        return key
    _note_renamed(_inner(path, key), _inner(path, cls.old_fields[key]))
    return cls.old_fields[key]


def _note_renamed(old: str, new: str) -> None:
    if (hints := _renamed.get()) is not None:
        hints.append(f"{old} is now called {new}")


def _expected(known: Mapping[str, object]) -> str:
    return f"one of {', '.join(sorted(known))}" if known else "a kind that your own code defines (--use FILE.py)"


def _construct(cls: type[T], values: Mapping[str, object], path: str) -> T:
    missing = [f.name for f in dataclasses.fields(cls) if f.name not in values and _required(f)]  # type: ignore[arg-type]
    if missing:
        raise ConfigError(f"{path}.{missing[0]}" if path else missing[0], want="a value", got="nothing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise error.with_prefix(path) from None


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def decode_value(hint: Any, value: Plain, path: str, depth: int = 0) -> object:
    """Return a value as a type hint wants it, or refuse it by its path: what `decode` does for each field."""
    value = typed_value(value, hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(arguments, value, path, depth)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool):
            names = [str(a) for a in arguments]
            raise ConfigError(path, want=f"one of {', '.join(names)}", got=value, near=nearest(str(value)[:80], names))
        return value
    if origin is tuple:
        return _decode_tuple(arguments, value, path, depth)
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            raise ConfigError(path, want="a mapping with names as keys", got=value)
        return {k: decode_value(arguments[1], v, _inner(path, k), depth + 1) for k, v in value.items()}
    if isinstance(hint, type) and issubclass(hint, Config):
        return _decode_config(hint, value, path, depth)
    if hint is Any:
        return _plain(value, path, depth)
    return _decode_scalar(hint, value, path)


def _plain(value: Plain, path: str, depth: int) -> Plain:
    """Return plain data as it is, after a check that it nests no deeper than configs may."""
    _check_depth(path, depth)
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _plain(inner, path, depth + 1)
    return value


def _decode_union(options: tuple[Any, ...], value: Plain, path: str, depth: int) -> object:
    if value is None and types.NoneType in options:
        return None
    chosen = [o for o in options if o is not types.NoneType]
    if len(chosen) == 1:
        return decode_value(chosen[0], value, path, depth)
    for option in chosen:  # unions of several scalars only: the first that takes the value
        try:
            return decode_value(option, value, path, depth)
        except ConfigError:
            continue
    raise ConfigError(path, want=" or ".join(SCALARS.get(o, str(o)) for o in chosen), got=value)


def _decode_tuple(arguments: tuple[Any, ...], value: Plain, path: str, depth: int) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(path, want="a list", got=value)
    if arguments[-1] is Ellipsis:
        hints = [arguments[0]] * len(value)
    elif len(arguments) == len(value):
        hints = list(arguments)
    else:
        raise ConfigError(path, want=f"a list of {len(arguments)}", got=value)
    pairs = enumerate(zip(hints, value, strict=True))
    return tuple(decode_value(h, v, f"{path}.{i}", depth + 1) for i, (h, v) in pairs)


SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", types.NoneType: "nothing"}


def _decode_scalar(hint: type, value: Plain, path: str) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e300 or isinstance(value, float) else math.inf
        if math.isfinite(number):
            return number
    elif type(value) is hint:
        return value
    raise ConfigError(path, want=SCALARS.get(hint, str(hint)), got=value)


# --- trees ------------------------------------------------------------------------------------------------------------


def fields_of(config: Config) -> dict[str, Any]:
    """Return a config's fields and their values, in order."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]


def replace(config: T, **changes: object) -> T:
    """Return a copy with some fields changed; an unknown field is refused by name."""
    known = fields_of(config)
    for name in changes:
        if name not in known:
            raise ConfigError.unknown(name, name, known)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def walk(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yield every config of the tree with its path, the root first."""
    yield path, config
    for name, value in fields_of(config).items():
        inner = f"{path}.{name}" if path else name
        if isinstance(value, Config):
            yield from walk(value, inner)
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if isinstance(item, Config):
                    yield from walk(item, f"{inner}.{i}")


def find(config: Config, family: type[T]) -> list[T]:
    """Return every config of a family in the tree."""
    return [found for _, found in walk(config) if isinstance(found, family)]


def override(config: T, path: str, value: Plain) -> T:
    """Return a copy with the value at a dotted path changed: `override(run, "model.width", 256)`."""
    return typing.cast(T, _override(config, path.split("."), value, "", type(config)))


def _override(node: Any, keys: list[str], value: Plain, path: str, hint: Any) -> Any:
    if not keys:
        return decode_value(hint, _merge_kind(node, typed_value(value, hint), path), path)
    key, rest = keys[0], keys[1:]
    inner = f"{path}.{key}" if path else key
    if isinstance(node, Config):
        return _override_field(node, keys, value, path, hint)
    if isinstance(node, tuple):
        if not re.fullmatch("[0-9]{1,9}", key) or int(key) >= len(node):
            raise ConfigError(inner, want=f"an index below {len(node)}", got=key)
        index = int(key)
        changed = _override(node[index], rest, value, inner, _item(hint, index))
        return (*node[:index], changed, *node[index + 1 :])
    if isinstance(node, dict):
        name = ".".join(keys)  # which may have dots of its own; what comes last stands last
        given = decode_value(typing.get_args(hint)[1], value, f"{path}.{name}")
        return {**{other: node[other] for other in node if other != name}, name: given}
    if node is None and types.NoneType in typing.get_args(hint):
        return decode_value(hint, _nested(keys, value), path)
    raise ConfigError(inner, want=f"nothing below {path}", got=key)


def _override_field(node: Config, keys: list[str], value: Plain, path: str, hint: Any) -> Any:
    key, hints = keys[0], field_types(type(node))
    inner = f"{path}.{key}" if path else key
    key = _current_field(type(node), key, path)
    if keys == ["kind"] and node.kind is not None:
        return decode_value(hint, value, path)
    if key in hints:
        changed = _override(getattr(node, key), keys[1:], value, inner, hints[key])
        return _construct(type(node), fields_of(node) | {key: changed}, path)
    try:
        if node.expand() is not node:
            return node.with_override(".".join(keys), typed_value(value, Any))
    except ConfigError as error:
        raise error.with_prefix(path) from None
    raise ConfigError(inner, want=_fields(hints), got=key, near=nearest(key, hints))


def _item(hint: Any, index: int) -> Any:
    """Return what a list holds at an index, also where nothing may stand instead of the list."""
    lists = [option for option in (hint, *typing.get_args(hint)) if typing.get_origin(option) is tuple]
    items = typing.get_args(lists[0])
    return items[0] if items[-1] is Ellipsis else items[index]


def _nested(keys: list[str], value: Plain) -> Plain:
    """Return nested dicts for a path whose parents do not exist."""
    return {keys[0]: _nested(keys[1:], value)} if keys else value


def _merge_kind(node: object, value: Plain, path: str) -> Plain:
    """Let `{width: 3}` without a kind mean "this part with another width"."""
    if isinstance(node, Config) and isinstance(value, Mapping) and "kind" not in value:
        return encode(node) | _current_fields(type(node), value, path)
    return value
