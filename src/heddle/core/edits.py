"""Edits: variants of a config: `swap` replaces a family of parts wherever it stands, `diff` lists what differs."""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from heddle.core.config import C, Config, Plain, T, encode, fields_of


class Edit(Protocol):
    """A variant: a function from one config to another of the same class."""

    def __call__(self, config: C, /) -> C: ...


def swap(family: type[T], replacement: T | Callable[[T], Config]) -> Edit:
    """Return an edit that replaces every member of a family, wherever it stands in a tree."""

    def visit(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(visit(v) for v in value)
        if not isinstance(value, Config):
            return value
        inner = {name: visit(v) for name, v in fields_of(value).items()}
        rebuilt = dataclasses.replace(value, **inner)  # type: ignore[type-var]
        if not isinstance(rebuilt, family):
            return rebuilt
        return replacement if isinstance(replacement, Config) else replacement(rebuilt)

    def edit(config: C, /) -> C:
        return typing.cast(C, visit(config))

    return edit


@dataclass(frozen=True)
class Change:
    """One difference between two configs: where, what it was, what it is."""

    path: str
    before: Plain
    after: Plain

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.before)} -> {_short(self.after)}"


def _short(value: Plain) -> str:
    if not isinstance(value, dict):
        return repr(value)
    inner = ", ".join(f"{k}={_short(v)}" for k, v in value.items() if k != "kind")
    return f"{value.get('kind', '')}({inner})"


def diff(before: Config, after: Config) -> list[Change]:
    """Return the smallest set of changes, by path, that turns one config into the other."""
    return list(_diff("", encode(before), encode(after)))


def _diff(path: str, before: Plain, after: Plain) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict) and before.get("kind") == after.get("kind"):
        for key in before | after:
            yield from _diff(f"{path}.{key}" if path else key, before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (b, a) in enumerate(zip(before, after, strict=True)):
            yield from _diff(f"{path}.{i}", b, a)
    elif before != after or type(before) is not type(after):
        yield Change(path, before, after)
