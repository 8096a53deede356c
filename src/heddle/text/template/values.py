"""Values of a template. None of them gives access to Python objects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from heddle.core import UsageError, brief
from heddle.text.template.marked import TRUSTED, MarkedText

# Marked, bool, int, float, None, list, tuple, dict of scalars to values, and the classes below; nothing else.
Value = object

LARGEST = 1 << 1023  # integers from a caller: still representable as a float
DEEPEST = 40  # levels of nesting in values from a caller; a message has three, a tool perhaps ten


class TemplateError(Exception):
    """An error in a template; the renderer adds the line."""


@final
@dataclass(frozen=True)
class Undefined:
    """An undefined variable: empty as text, false, and an error otherwise."""

    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Undefined)

    def __hash__(self) -> int:
        return 0

    def fault(self) -> TemplateError:
        """Return the error that a value is undefined."""
        return TemplateError(f"{self.name or 'a value'} is undefined")


UNDEFINED = Undefined()


@final
@dataclass(frozen=True, eq=False)
class Namespace:
    """`namespace(n=0)`: the only value that a template can change."""

    fields: dict[str, Value] = field(default_factory=dict)

    def set(self, name: str, value: Value) -> None:
        """Set a field."""
        if name.startswith("_"):
            raise TemplateError(f"a namespace has no field {name}")
        self.fields[name] = value


@final
@dataclass(frozen=True, eq=False)
class Function:
    """A callable: a known function, a bound method, or a macro."""

    name: str
    body: Callable[..., Value]  # (run, *positional, **named)


@final
class LoopState:
    """The variable `loop` inside a loop."""

    def __init__(self, items: list[Value]) -> None:
        self.items, self.at = items, 0

    def field(self, name: str) -> Value:
        """Return a field of `loop`."""
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
    """Convert JSON data to a template's value; its texts are not trusted unless marked so."""
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
    """Convert JSON data whose texts are trusted: they come from the tokenizer or the caller, never from a user."""
    return value_of(data, TRUSTED)


def truth(value: Value) -> bool:
    """Return whether a value is true."""
    if isinstance(value, MarkedText | list | tuple | dict):
        return len(value) > 0
    return bool(value) if isinstance(value, bool | int | float) else not (value is None or isinstance(value, Undefined))
