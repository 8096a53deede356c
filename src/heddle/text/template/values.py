"""Values: all that a template can hold. None of them leads to an object of Python's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from heddle.core import UsageError, brief
from heddle.text.template.marked import TRUSTED, MarkedText

# Marked, bool, int, float, None, list, tuple, dict of scalars to values, and the classes below; nothing else.
Value = object

LARGEST = 1 << 1023  # whole numbers in what a caller hands in: a float can still hold them, and a line write them
DEEPEST = 40  # levels of nesting in what a caller hands in; a message has three, a tool perhaps ten


class TemplateError(Exception):
    """What is wrong with a template; whoever renders it adds the line."""


@final
@dataclass(frozen=True)
class Undefined:
    """What a name without a value stands for: written as nothing, false, and of no further use."""

    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Undefined)

    def __hash__(self) -> int:
        return 0

    def fault(self) -> TemplateError:
        """Return the complaint of whoever needed a value."""
        return TemplateError(f"{self.name or 'a value'} is undefined")


UNDEFINED = Undefined()


@final
@dataclass(frozen=True, eq=False)
class Namespace:
    """The one thing that a template may change: `namespace(n=0)`."""

    fields: dict[str, Value] = field(default_factory=dict)

    def set(self, name: str, value: Value) -> None:
        """Give a field a value."""
        if name.startswith("_"):
            raise TemplateError(f"a namespace has no field {name}")
        self.fields[name] = value


@final
@dataclass(frozen=True, eq=False)
class Function:
    """Something to call: one that is known, a method that is known with its text or list, or a macro."""

    name: str
    body: Callable[..., Value]  # (run, *positional, **named)


@final
class LoopState:
    """`loop` inside a loop: where it stands."""

    def __init__(self, items: list[Value]) -> None:
        self.items, self.at = items, 0

    def field(self, name: str) -> Value:
        """Return what a template may know of a loop."""
        count = len(self.items)
        match name:
            case "previtem":
                return self.items[self.at - 1] if self.at else Undefined("loop.previtem")
            case "nextitem":
                return self.items[self.at + 1] if self.at + 1 < count else Undefined("loop.nextitem")
            case "cycle":
                return Function("loop.cycle", lambda run, *values: values[self.at % len(values)])
        known = {
            "index": self.at + 1,
            "index0": self.at,
            "revindex": count - self.at,
            "revindex0": count - self.at - 1,
            "first": self.at == 0,
            "last": self.at == count - 1,
            "length": count,
            "depth": 1,  # of loops that call themselves, which there are none of
            "depth0": 0,
        }
        return known[name] if name in known else Undefined(f"loop.{name}")


def value_of(data: object, marks: int = 0, depth: int = 0) -> Value:
    """Return plain data (what JSON can hold) as a template's value; its texts are not trusted unless marked so."""
    if depth > DEEPEST:
        raise UsageError(f"chat: want at most {DEEPEST} levels of nesting in messages and tools")
    if isinstance(data, int) and abs(data) > LARGEST:
        raise UsageError("chat: want numbers of a few hundred digits at most in messages and tools")
    if data is None or isinstance(data, bool | int | float):
        return data
    if isinstance(data, str):
        return MarkedText(data, marks)
    if isinstance(data, list | tuple):
        return [value_of(item, marks, depth + 1) for item in data]
    if isinstance(data, Mapping):
        return {value_of(key, marks, depth + 1): value_of(item, marks, depth + 1) for key, item in data.items()}
    raise UsageError(f"chat: want texts, numbers, lists and tables in messages and tools, got {brief(data)}")


def trusted(data: object) -> Value:
    """Return plain data whose texts are the tokenizer's or the caller's own words, never a user's."""
    return value_of(data, TRUSTED)


def truth(value: Value) -> bool:
    """Return whether a value counts as true."""
    if isinstance(value, MarkedText | list | tuple | dict):
        return len(value) > 0
    return bool(value) if isinstance(value, bool | int | float) else not (value is None or isinstance(value, Undefined))
