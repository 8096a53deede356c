"""Values of a template. None of them gives access to Python objects."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from heddle.core import UsageError, brief
from heddle.text.template.marked import TRUSTED, MarkedText

# MarkedText, bool, int, float, None, list, tuple, range, dict (keys are texts, numbers or None) and its views, and the
# classes below; nothing else. The truth of a value is Python's.
Value = object

MAX_INTEGER = 1 << 1023  # integers from a caller: still representable as a float
MAX_DEPTH = 40  # levels of nesting in values from a caller; a message has three, a tool perhaps ten


class TemplateError(Exception):
    """An error in a template, with its line once that is known."""

    line: int | None = None


@final
@dataclass(frozen=True)
class Undefined:
    """An undefined variable: empty as text, false, and an error otherwise."""

    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Undefined)

    def __hash__(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator["Value"]:
        return iter(())

    def __repr__(self) -> str:
        return "Undefined"  # as Jinja writes it inside a list

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
@dataclass(frozen=True, eq=False)
class Generator:
    """The result of `map`, `select` and similar filters: always true, without a length, iterated once."""

    items: Iterator[Value]


def loop_state(items: list[Value], at: int) -> Namespace:
    """Return the variable `loop` inside a loop."""
    count = len(items)
    return Namespace(
        {
            "index": at + 1,
            "index0": at,
            "revindex": count - at,
            "revindex0": count - at - 1,
            "first": at == 0,
            "last": at == count - 1,
            "length": count,
            "depth": 1,  # of recursive loops, which are refused
            "depth0": 0,
            "previtem": items[at - 1] if at else Undefined("loop.previtem"),
            "nextitem": items[at + 1] if at + 1 < count else Undefined("loop.nextitem"),
            "cycle": Function("loop.cycle", lambda run, *values: values[at % len(values)]),
        }
    )


KINDS = {
    MarkedText: "text",
    dict: "a table",
    type(None): "none",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    Undefined: "undefined",
    Namespace: "a namespace",
    Function: "a function",
    Generator: "a generator",
}


def kind(value: Value) -> str:
    """Return the name of a value's type, for messages."""
    return KINDS.get(type(value), "a list")


def value_of(data: object, marks: int = 0, depth: int = 0) -> Value:
    """Convert JSON data to a template's value; its texts are not trusted unless marked so."""
    if depth > MAX_DEPTH:
        raise UsageError(f"chat: want at most {MAX_DEPTH} levels of nesting in messages and tools")
    if isinstance(data, int) and abs(data) > MAX_INTEGER:
        raise UsageError("chat: want numbers of a few hundred digits at most in messages and tools")
    if data is None or isinstance(data, bool | int | float):
        return data
    if isinstance(data, str):
        return MarkedText(data, marks)
    if isinstance(data, list | tuple):
        return [value_of(item, marks, depth + 1) for item in data]
    if isinstance(data, Mapping):
        return {value_of(key, marks, depth + 1): value_of(item, marks, depth + 1) for key, item in data.items()}
    raise UsageError(f"chat: want texts, numbers, lists and mappings in messages and tools, got {brief(data)}")


def trusted(data: object) -> Value:
    """Convert JSON data whose texts are trusted: they come from the tokenizer or the caller, never from a user."""
    return value_of(data, TRUSTED)
