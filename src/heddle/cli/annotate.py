"""A config as YAML with the sentence of each key as a comment; the file loads as if they were not there."""

from collections.abc import Iterable, Iterator
from typing import Any

from heddle.core import Config, encode, fields_of
from heddle.core.describe import sentences
from heddle.core.system import to_yaml

COLUMN = 44  # where comments begin

Line = tuple[str, str]  # of YAML, and its comment


def annotated_yaml(config: Config) -> str:
    """Write a config as YAML with comments; fields that mean nothing in it are left out."""
    return "".join(f"{line:<{COLUMN}}# {about}\n" if about else f"{line}\n" for line, about in _lines(config))


def _lines(config: Config) -> Iterator[Line]:
    if config.kind is not None:
        yield f"kind: {config.kind}", ""
    about = sentences(type(config))
    for name, value in fields_of(config).items():
        if name not in config.left_out():
            yield from _field(name, value, about.get(name, "").replace("None:", "null:"))


def _field(name: str, value: Any, about: str) -> Iterator[Line]:
    if isinstance(value, Config) and (value.kind is not None or fields_of(value)):
        yield f"{name}:", about
        yield from _indented(_lines(value))
    elif isinstance(value, tuple) and value and all(isinstance(one, Config) for one in value):
        yield f"{name}:", about
        for one in value:
            (first, told), *rest = _lines(one)
            yield f"- {first}", told
            yield from _indented(rest)
    else:
        line, *more = to_yaml({name: _plain(value)}).splitlines()
        plain = not more or line.endswith(":")  # else a text of several lines, which a comment would become part of
        yield line, about if plain else ""
        yield from ((one, "") for one in more)


def _indented(lines: Iterable[Line]) -> Iterator[Line]:
    return ((f"  {line}", about) for line, about in lines)


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return encode(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
