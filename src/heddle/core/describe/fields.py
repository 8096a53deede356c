"""Fields of configs: the sentence of each, from the docstring of its class, its type and default."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from heddle.core.config import Config, Plain, field_types, kinds

SENTENCE = re.compile(r"([a-z_][a-z0-9_]*): (.*)")  # how a line of a docstring begins that describes a field
SCALAR_NAMES = {bool: "bool", int: "int", float: "float", str: "str", types.NoneType: "none", Any: "any"}


def first_sentence(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def sentences(cls: type[Config]) -> dict[str, str]:
    """Return what docstrings say of each field: lines `field: sentence`, of the class and of those it inherits from."""
    known, found = field_types(cls), dict[str, str]()
    for base in reversed(cls.__mro__):
        entry = None
        for line in inspect.cleandoc(base.__dict__.get("__doc__") or "").splitlines():
            match = SENTENCE.match(line)
            if match and match[1] in known:
                entry, found[match[1]] = match[1], match[2]
            elif not line or match:
                entry = None
            elif entry is not None:  # a sentence of several lines
                found[entry] += f" {line.strip()}"
    return found


def members(cls: type[Config]) -> list[type[Config]]:
    """Return what a slot of this type may hold: the kinds of a family (perhaps none yet), or the one class."""
    return list(kinds(cls).values()) or [cls] * dataclasses.is_dataclass(cls)


def reachable(root: type[Config]) -> list[type[Config]]:
    """Return every class that a config may hold, the root first, in the order in which fields name them."""
    found: dict[type[Config], None] = {}
    todo = [root]
    while todo:
        cls = todo.pop(0)
        if cls not in found:
            found[cls] = None
            for hint in field_types(cls).values():
                todo += [one for slot in slots(hint) for one in members(slot)]
    return list(found)


def slots(hint: Any) -> Iterator[type[Config]]:
    """Yield the configs that a type speaks of."""
    if isinstance(hint, type) and issubclass(hint, Config):
        yield hint
    for inner in typing.get_args(hint):
        yield from slots(inner)


def plain_hint(hint: Any) -> Plain:
    """Return a type as plain data: a name, or a list that begins with union, literal, tuple, dict or config."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return ["union", *map(plain_hint, inner)]
    if origin is typing.Literal:
        return ["literal", *inner]
    if origin is tuple:
        return ["tuple", *("..." if one is Ellipsis else plain_hint(one) for one in inner)]
    if origin is dict:
        return ["dict", plain_hint(inner[1])]
    if isinstance(hint, type) and issubclass(hint, Config):
        return ["config", hint.__name__]
    return SCALAR_NAMES[hint]


def scalar_hint(data: Plain) -> Any:
    """Return the type that plain data describes; None where a config is part of it."""
    if isinstance(data, str):
        return next(hint for hint, name in SCALAR_NAMES.items() if name == data)
    what, *inner = data
    if what == "literal":
        return typing.Literal[tuple(inner)]
    hints = [] if what == "config" else [... if one == "..." else scalar_hint(one) for one in inner]
    if not hints or None in hints:
        return None
    if what == "union":
        return typing.Union[tuple(hints)]  # noqa: UP007 - made from a list
    return dict[str, hints[0]] if what == "dict" else tuple.__class_getitem__(tuple(hints))  # type: ignore[valid-type]


def defaults(cls: type[Config]) -> dict[str, Any]:
    """Return the default of each field that has one."""
    found = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found
