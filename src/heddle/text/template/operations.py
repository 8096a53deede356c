"""Operators, iteration and conversion to text, each counted against the limits."""

import operator
from collections.abc import Callable, Mapping
from functools import cmp_to_key

from heddle.text.template.marked import MarkedText
from heddle.text.template.rendering import Rendering
from heddle.text.template.values import Function, LoopState, Namespace, TemplateError, Undefined, Value

LARGEST = 1 << 62  # whole numbers; no template counts so far
Number = int | float  # bool is one too, as in Python


def kind(value: Value) -> str:
    """Return the name of a value's type, for messages."""
    names = {MarkedText: "text", dict: "a table", type(None): "none", Undefined: "undefined", Namespace: "a namespace"}
    names |= {Function: "a function", LoopState: "a loop", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "a list")


def iterate(run: Rendering, value: Value) -> list[Value]:
    """Return the items that a loop goes through: of a table its keys, of a text its characters."""
    if isinstance(value, list | tuple | dict):
        run.items(len(value))
        return list(value)
    if isinstance(value, MarkedText):
        run.items(len(value))
        return list(value)
    if isinstance(value, Undefined):
        return []
    raise TemplateError(f"cannot go through {kind(value)}")


def to_text(run: Rendering, value: Value) -> MarkedText:
    """Return a value as it is written out; what is not text already is not trusted."""
    if isinstance(value, MarkedText):
        return value
    if isinstance(value, Undefined):
        return MarkedText("")
    pieces: list[str] = []
    _shown(run, value, pieces)
    run.text(sum(map(len, pieces)))
    return MarkedText("".join(pieces))


def _shown(run: Rendering, value: Value, pieces: list[str]) -> None:
    """Gather how Python would write a value."""
    with run.deeper():
        run.spend(1 + (len(value) // 64 if isinstance(value, MarkedText) else 0))
        if isinstance(value, MarkedText):
            pieces.append(repr(value.plain))
        elif isinstance(value, bool | int | float) or value is None:
            pieces.append(str(value))
        elif isinstance(value, Undefined):
            pieces.append("Undefined")
        elif isinstance(value, dict):
            pieces.append("{")
            for i, (key, item) in enumerate(value.items()):
                pieces.append(", " if i else "")
                _shown(run, key, pieces)
                pieces.append(": ")
                _shown(run, item, pieces)
            pieces.append("}")
        elif isinstance(value, list | tuple):
            pieces.append("[" if isinstance(value, list) else "(")
            for i, item in enumerate(value):
                pieces.append(", " if i else "")
                _shown(run, item, pieces)
            pieces.append("]" if isinstance(value, list) else ",)" if len(value) == 1 else ")")
        else:
            raise TemplateError(f"cannot write out {kind(value)}")
        if len(pieces) > run.limits.items:
            raise TemplateError(f"writes out more than {run.limits.items} items at once")


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise TemplateError("counts beyond all bounds")
    return value


def add(run: Rendering, left: Value, right: Value) -> Value:
    """Add numbers, or put texts or lists together."""
    if isinstance(left, MarkedText) and isinstance(right, MarkedText):
        run.text(len(left) + len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        run.items(len(left) + len(right))
        return left + right
    if isinstance(left, tuple) and isinstance(right, tuple):
        run.items(len(left) + len(right))
        return left + right
    return _arithmetic("+", operator.add, left, right)


def multiply(run: Rendering, left: Value, right: Value) -> Value:
    """Multiply numbers, or repeat a text or a list."""
    if isinstance(left, int) and isinstance(right, MarkedText | list | tuple):
        left, right = right, left
    if isinstance(left, MarkedText) and isinstance(right, int):
        run.text(len(left) * max(0, right))
        return left * right
    if isinstance(left, list | tuple) and isinstance(right, int):
        run.items(len(left) * max(0, right))
        return left * right
    return _arithmetic("*", operator.mul, left, right)


def power(run: Rendering, left: Value, right: Value) -> Value:
    """Raise a number to a power that is not absurd."""
    if isinstance(right, int | float) and abs(right) > 64:
        raise TemplateError("counts beyond all bounds")
    return _arithmetic("**", operator.pow, left, right)


def join(run: Rendering, left: Value, right: Value) -> Value:
    """Put two values together as text."""
    return add(run, to_text(run, left), to_text(run, right))


def _arithmetic(name: str, apply: Callable[[Number, Number], Number], left: Value, right: Value) -> Value:
    for side in (left, right):
        if isinstance(side, Undefined):
            raise side.fault()
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise TemplateError(f"cannot work out {kind(left)} {name} {kind(right)}")
    try:
        found = apply(left, right)
    except (ArithmeticError, ValueError):
        raise TemplateError(f"cannot work out {left} {name} {right}") from None
    if not isinstance(found, int | float):  # a root of a negative number
        raise TemplateError(f"cannot work out {left} {name} {right}")
    return _bounded(found)


def _plainly(name: str, apply: Callable[[Number, Number], Number]) -> Callable[[Rendering, Value, Value], Value]:
    return lambda run, left, right: _arithmetic(name, apply, left, right)


BINARY: Mapping[str, Callable[[Rendering, Value, Value], Value]] = {
    "+": add,
    "*": multiply,
    "**": power,
    "~": join,
    "-": _plainly("-", operator.sub),
    "/": _plainly("/", operator.truediv),
    "//": _plainly("//", operator.floordiv),
    "%": _plainly("%", operator.mod),
}


# --- comparison -------------------------------------------------------------------------------------------------------


def same(run: Rendering, left: Value, right: Value) -> bool:
    """Return whether two values are equal; every compared part counts."""
    with run.deeper():
        run.spend()
        if isinstance(left, list | tuple) and type(left) is type(right):
            assert isinstance(right, list | tuple)
            pairs = zip(left, right, strict=True)
            return len(left) == len(right) and all(same(run, a, b) for a, b in pairs)
        if isinstance(left, dict) and isinstance(right, dict):
            return left.keys() == right.keys() and all(same(run, left[key], right[key]) for key in left)
        return left == right


def less(run: Rendering, left: Value, right: Value) -> bool:
    """Return whether one value comes before another; texts and numbers have an order each."""
    run.spend()
    if isinstance(left, MarkedText) and isinstance(right, MarkedText):
        return left.plain < right.plain
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left < right
    for side in (left, right):
        if isinstance(side, Undefined):
            raise side.fault()
    raise TemplateError(f"cannot order {kind(left)} and {kind(right)}")


def contains(run: Rendering, value: Value, among: Value) -> bool:
    """Return whether a value is in a list, a key of a table or a part of a text."""
    if isinstance(among, MarkedText):
        if not isinstance(value, MarkedText):
            raise TemplateError(f"cannot look for {kind(value)} in text")
        run.spend(1 + len(among) // 64)
        return value.plain in among.plain
    if isinstance(among, dict):
        return isinstance(value, MarkedText | int | float | None) and value in among
    return any(same(run, value, item) for item in iterate(run, among))


COMPARE: Mapping[str, Callable[[Rendering, Value, Value], bool]] = {
    "==": same,
    "!=": lambda run, a, b: not same(run, a, b),
    "<": less,
    ">": lambda run, a, b: less(run, b, a),
    "<=": lambda run, a, b: not less(run, b, a),
    ">=": lambda run, a, b: not less(run, a, b),
    "in": contains,
    "not in": lambda run, a, b: not contains(run, a, b),
}


def ordered(run: Rendering, values: list[Value], key: Callable[[Value], Value], backwards: bool = False) -> list[Value]:
    """Return values in order; those that are equal stay as they were."""

    def order(left: Value, right: Value) -> int:
        a, b = key(left), key(right)
        return -1 if less(run, a, b) else 1 if less(run, b, a) else 0

    return sorted(values, key=cmp_to_key(order), reverse=backwards)


# --- parts of values --------------------------------------------------------------------------------------------------


def item(value: Value, key: Value) -> Value:
    """Return an item of a list, a table or a text; one that is not there is undefined."""
    if isinstance(value, Undefined):
        raise value.fault()
    if isinstance(value, dict) and isinstance(key, MarkedText | int | float | None) and key in value:
        found: Value = value[key]
        return found
    if isinstance(value, list | tuple | MarkedText) and isinstance(key, int) and -len(value) <= key < len(value):
        return value[int(key)]
    if isinstance(value, Namespace) and isinstance(key, MarkedText):
        return value.fields.get(key.plain, Undefined(key.plain))
    return Undefined(key.plain[:40] if isinstance(key, MarkedText) else "an item")


def part(run: Rendering, value: Value, bounds: tuple[Value, Value, Value]) -> Value:
    """Return a stretch of a list or a text."""
    if isinstance(value, Undefined):
        raise value.fault()
    if not isinstance(value, list | tuple | MarkedText):
        raise TemplateError(f"cannot take a part of {kind(value)}")
    start, stop, step = (None if bound is None else to_int(bound) for bound in bounds)
    if step == 0:
        raise TemplateError("cannot go by steps of 0")
    run.spend(1 + len(value) // 64)
    return value[slice(start, stop, step)]


def to_int(value: Value) -> int:
    """Return a whole number, or say that it is none."""
    if isinstance(value, int):
        return int(value)
    raise value.fault() if isinstance(value, Undefined) else TemplateError(f"want a whole number, got {kind(value)}")


def to_str(value: Value) -> str:
    """Return the characters of a text, or say that it is none."""
    if isinstance(value, MarkedText):
        return value.plain
    raise value.fault() if isinstance(value, Undefined) else TemplateError(f"want a text, got {kind(value)}")
