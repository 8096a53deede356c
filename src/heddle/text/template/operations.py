"""Operators, iteration and conversion to text, each counted against the limits."""

import operator
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, Sized, ValuesView
from itertools import islice
from typing import Any

from heddle.text.template.marked import EMPTY, MarkedText
from heddle.text.template.rendering import CHARACTERS_PER_STEP, Rendering
from heddle.text.template.values import Function, Generator, Namespace, TemplateError, Undefined, Value, kind

MAX_INTEGER = 1 << 62  # integers that a template computes
Number = int | float  # bool is one too, as in Python
View = KeysView | ItemsView | ValuesView  # type: ignore[type-arg]  # for isinstance
Scalar = MarkedText | int | float | None


def iterate(run: Rendering, value: Value) -> list[Value]:
    """Return the items that a loop goes through: of a table its keys, of a text its characters."""
    if isinstance(value, Generator):
        found = list(islice(value.items, run.limits.items + 1))
        run.items(len(found))
        return found
    if isinstance(value, Sized) and isinstance(value, Iterable):
        run.items(len(value))
        return list(value)
    raise TemplateError(f"{kind(value)} is not iterable")


# --- as plain Python data ---------------------------------------------------------------------------------------------


class PlainCopy:
    """Copies values as Python's own data, which can be written or compared; every part counts against the limits."""

    def __init__(self, run: Rendering, to_write: bool) -> None:
        self.run, self.to_write = run, to_write
        self.length = self.items = self.depth = 0  # characters, parts, levels

    def of(self, value: Value, depth: int = 0) -> object:
        """Return the copy of one value."""
        self.items += 1
        self.run.count_steps(1)
        if isinstance(value, MarkedText):
            self.run.count_steps(len(value) // CHARACTERS_PER_STEP)
            self.length += len(value)
            return value.plain
        if self.to_write and isinstance(value, Function | Generator | Namespace):
            raise TemplateError(f"cannot convert {kind(value)} to text")
        if not isinstance(value, list | tuple | dict | View):
            return value
        self.depth = max(self.depth, depth)
        with self.run.nested():
            if isinstance(value, dict):
                return {self.of(key, depth + 1): self.of(item, depth + 1) for key, item in value.items()}
            copied = [self.of(item, depth + 1) for item in value]
        return tuple(copied) if isinstance(value, tuple) else copied


def plain(run: Rendering, value: Value) -> object:
    """Return a value as Python's own data."""
    return PlainCopy(run, False).of(value)


def to_text(run: Rendering, value: Value) -> MarkedText:
    """Return a value as it is written out; what is not text already is not trusted."""
    if isinstance(value, MarkedText):
        return value
    if isinstance(value, Undefined):
        return EMPTY
    copy = PlainCopy(run, True)
    data = copy.of(value)
    run.text(copy.length)
    shown = f"{type(value).__name__}({data})" if isinstance(value, View) else str(data)
    run.text(len(shown))
    return MarkedText(shown)


def to_int(value: Value) -> int:
    """Return an integer, or say that it is none."""
    if isinstance(value, int):
        return int(value)
    raise value.fault() if isinstance(value, Undefined) else TemplateError(f"want a whole number, got {kind(value)}")


def to_str(value: Value) -> str:
    """Return the characters of a text, or say that it is none."""
    if isinstance(value, MarkedText):
        return value.plain
    raise value.fault() if isinstance(value, Undefined) else TemplateError(f"want a text, got {kind(value)}")


# --- arithmetic -------------------------------------------------------------------------------------------------------


def add(run: Rendering, left: Value, right: Value) -> Value:
    """Add numbers, or concatenate texts or lists."""
    if isinstance(left, MarkedText) and isinstance(right, MarkedText):
        run.text(len(left) + len(right))
        return left + right
    if isinstance(left, list | tuple) and type(left) is type(right):
        run.items(len(left) + len(right))
        return operator.add(left, right)
    return _arithmetic("+", operator.add, left, right)


def _multiply(run: Rendering, left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, MarkedText | list | tuple):
        left, right = right, left
    if isinstance(left, MarkedText) and isinstance(right, int):
        run.text(len(left) * max(0, right))
        return left * right
    if isinstance(left, list | tuple) and isinstance(right, int):
        run.items(len(left) * max(0, right))
        return left * right
    return _arithmetic("*", operator.mul, left, right)


def _power(run: Rendering, left: Value, right: Value) -> Value:
    if isinstance(right, int | float) and abs(right) > 64:
        raise TemplateError("computes numbers that are too large")
    return _arithmetic("**", operator.pow, left, right)


def _arithmetic(name: str, apply: Callable[[Number, Number], Number], left: Value, right: Value) -> Value:
    for side in (left, right):
        if isinstance(side, Undefined):
            raise side.fault()
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise TemplateError(f"unsupported operand types: {kind(left)} {name} {kind(right)}")
    try:
        found = apply(left, right)
    except (ArithmeticError, ValueError):
        raise TemplateError(f"cannot work out {left} {name} {right}") from None
    if not isinstance(found, int | float):  # a root of a negative number
        raise TemplateError(f"cannot work out {left} {name} {right}")
    return bounded(found)


def bounded(value: Number) -> Number:
    """Refuse an integer that no template needs."""
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise TemplateError("computes numbers that are too large")
    return value


def _on_numbers(name: str, apply: Callable[[Number, Number], Number]) -> Callable[[Rendering, Value, Value], Value]:
    return lambda run, left, right: _arithmetic(name, apply, left, right)


BINARY: Mapping[str, Callable[[Rendering, Value, Value], Value]] = {
    "+": add,
    "*": _multiply,
    "**": _power,
    "-": _on_numbers("-", operator.sub),
    "/": _on_numbers("/", operator.truediv),
    "//": _on_numbers("//", operator.floordiv),
    "%": _on_numbers("%", operator.mod),
}


# --- comparison -------------------------------------------------------------------------------------------------------


def same(run: Rendering, left: Value, right: Value) -> bool:
    """Return whether two values are equal; every part counts."""
    if isinstance(left, Scalar) or isinstance(right, Scalar):
        return left == right
    return plain(run, left) == plain(run, right)


def _less(run: Rendering, left: Value, right: Value) -> bool:
    for side in (left, right):
        if isinstance(side, Undefined):
            raise side.fault()
    first: Any = plain(run, left)
    try:
        return bool(first < plain(run, right))
    except TypeError:
        raise TemplateError(f"cannot order {kind(left)} and {kind(right)}") from None


def _contains(run: Rendering, value: Value, among: Value) -> bool:
    if isinstance(among, MarkedText):
        if not isinstance(value, MarkedText):
            raise TemplateError(f"cannot look for {kind(value)} in text")
        run.count_steps(1 + len(among) // CHARACTERS_PER_STEP)
        return value.plain in among.plain
    if isinstance(among, dict | range):
        return isinstance(value, Scalar) and value in among
    return plain(run, value) in [plain(run, item) for item in iterate(run, among)]


Comparison = Callable[[Rendering, Value, Value], bool]
COMPARE: Mapping[str, Comparison] = {
    "eq": same,
    "ne": lambda run, a, b: not same(run, a, b),
    "lt": _less,
    "gt": lambda run, a, b: _less(run, b, a),
    "lteq": lambda run, a, b: not _less(run, b, a),
    "gteq": lambda run, a, b: not _less(run, a, b),
    "in": _contains,
    "notin": lambda run, a, b: not _contains(run, a, b),
}


def ordered(run: Rendering, values: list[Value], key: Callable[[Value], Value], reverse: bool = False) -> list[Value]:
    """Return values in order; those that are equal stay as they were."""
    keys: list[Any] = [plain(run, key(value)) for value in values]
    try:
        order = sorted(range(len(values)), key=keys.__getitem__, reverse=reverse)
    except TypeError:
        raise TemplateError("cannot order values of these types") from None
    return [values[i] for i in order]


# --- parts of values --------------------------------------------------------------------------------------------------


def item(value: Value, key: Value) -> Value:
    """Return an item of a list, a table or a text; one that is not there is undefined."""
    if isinstance(value, Undefined):
        raise value.fault()
    if isinstance(value, dict) and isinstance(key, Scalar) and key in value:
        found: Value = value[key]
        return found
    if (
        isinstance(value, list | tuple | range | MarkedText)
        and isinstance(key, int)
        and -len(value) <= key < len(value)
    ):
        return value[int(key)]
    if isinstance(value, Namespace) and isinstance(key, MarkedText):
        return value.fields.get(key.plain, Undefined(key.plain))
    return Undefined(key.plain[:40] if isinstance(key, MarkedText) else "an item")


def part(run: Rendering, value: Value, bounds: list[Value]) -> Value:
    """Return a slice of a list or a text."""
    if isinstance(value, Undefined):
        raise value.fault()
    if not isinstance(value, list | tuple | range | MarkedText):
        raise TemplateError(f"{kind(value)} cannot be sliced")
    start, stop, step = (None if bound is None else to_int(bound) for bound in bounds)
    if step == 0:
        raise TemplateError("step must not be 0")
    run.count_steps(1 + len(value) // 64)
    return value[slice(start, stop, step)]
