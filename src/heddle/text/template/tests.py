"""Jinja tests (`value is name`) that chat templates use."""

from collections.abc import Callable, Mapping

from heddle.text.template.marked import MarkedText
from heddle.text.template.operations import COMPARE, to_int
from heddle.text.template.rendering import Rendering
from heddle.text.template.values import Function, TemplateError, Undefined, Value

Test = Callable[..., Value]


def _is(predicate: Callable[[Value], bool]) -> Test:
    return lambda run, value, /: predicate(value)


def _all_case(predicate: Callable[[str], bool]) -> Test:
    def apply(run: Rendering, value: Value, /) -> Value:
        return isinstance(value, MarkedText) and predicate(value.plain)

    return apply


def _divisible(run: Rendering, value: Value, /, by: Value) -> Value:
    if to_int(by) == 0:
        raise TemplateError("cannot divide by 0")
    return to_int(value) % to_int(by) == 0


def _same_as(run: Rendering, value: Value, /, other: Value) -> Value:
    """Tell whether two values are one: of none, true and false, and of numbers and texts, equal ones are."""
    if type(value) is not type(other):
        return False
    return value is other or (isinstance(value, MarkedText | int | float) and value == other)


def _iterable(value: Value) -> bool:
    return isinstance(value, MarkedText | list | tuple | dict | Undefined)


TESTS: Mapping[str, Test] = {
    "boolean": _is(lambda value: isinstance(value, bool)),
    "callable": _is(lambda value: isinstance(value, Function)),
    "defined": _is(lambda value: not isinstance(value, Undefined)),
    "divisibleby": _divisible,
    "even": lambda run, value, /: to_int(value) % 2 == 0,
    "false": _is(lambda value: value is False),
    "float": _is(lambda value: isinstance(value, float)),
    "integer": _is(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "iterable": _is(_iterable),
    "lower": _all_case(str.islower),
    "mapping": _is(lambda value: isinstance(value, dict)),
    "none": _is(lambda value: value is None),
    "number": _is(lambda value: isinstance(value, int | float)),
    "odd": lambda run, value, /: to_int(value) % 2 == 1,
    "sameas": _same_as,
    "sequence": _is(_iterable),
    "string": _is(lambda value: isinstance(value, MarkedText)),
    "true": _is(lambda value: value is True),
    "undefined": _is(lambda value: isinstance(value, Undefined)),
    "upper": _all_case(str.isupper),
    "in": COMPARE["in"],
    **{name: COMPARE["=="] for name in ("eq", "equalto", "==")},
    **{name: COMPARE["!="] for name in ("ne", "!=")},
    **{name: COMPARE["<"] for name in ("lt", "lessthan", "<")},
    **{name: COMPARE["<="] for name in ("le", "<=")},
    **{name: COMPARE[">"] for name in ("gt", "greaterthan", ">")},
    **{name: COMPARE[">="] for name in ("ge", ">=")},
}
