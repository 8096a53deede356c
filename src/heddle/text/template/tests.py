"""Jinja tests (`value is name`) that chat templates use."""

from collections.abc import Callable, Mapping

from heddle.text.template.marked import MarkedText
from heddle.text.template.operations import COMPARE, View, to_int
from heddle.text.template.rendering import Rendering
from heddle.text.template.values import Function, Generator, Undefined, Value

Test = Callable[..., Value]


def _is(*types: type) -> Test:
    return lambda run, value, /: isinstance(value, types)


def _is_case(predicate: Callable[[str], bool]) -> Test:
    return lambda run, value, /: isinstance(value, MarkedText) and predicate(value.plain)


def _divisible(run: Rendering, value: Value, /, num: Value) -> Value:
    return to_int(value) % to_int(num) == 0


def _same_as(run: Rendering, value: Value, /, other: Value) -> Value:
    """Tell whether two values are identical; equal numbers and texts of one type count as such."""
    if type(value) is not type(other):
        return False
    return value is other or (isinstance(value, MarkedText | int | float) and value == other)


SEQUENCES = (MarkedText, list, tuple, dict, range, Undefined)

TESTS: Mapping[str, Test] = {
    "boolean": _is(bool),
    "callable": _is(Function, Undefined),
    "defined": lambda run, value, /: not isinstance(value, Undefined),
    "divisibleby": _divisible,
    "even": lambda run, value, /: to_int(value) % 2 == 0,
    "false": lambda run, value, /: value is False,
    "float": _is(float),
    "integer": lambda run, value, /: isinstance(value, int) and not isinstance(value, bool),
    "iterable": lambda run, value, /: isinstance(value, (*SEQUENCES, Generator, View)),
    "lower": _is_case(str.islower),
    "mapping": _is(dict),
    "none": lambda run, value, /: value is None,
    "number": _is(int, float),
    "odd": lambda run, value, /: to_int(value) % 2 == 1,
    "sameas": _same_as,
    "sequence": _is(*SEQUENCES),
    "string": _is(MarkedText),
    "true": lambda run, value, /: value is True,
    "undefined": _is(Undefined),
    "upper": _is_case(str.isupper),
    "in": COMPARE["in"],
    **dict.fromkeys(("eq", "equalto", "=="), COMPARE["eq"]),
    **dict.fromkeys(("ne", "!="), COMPARE["ne"]),
    **dict.fromkeys(("lt", "lessthan", "<"), COMPARE["lt"]),
    **dict.fromkeys(("le", "<="), COMPARE["lteq"]),
    **dict.fromkeys(("gt", "greaterthan", ">"), COMPARE["gt"]),
    **dict.fromkeys(("ge", ">="), COMPARE["gteq"]),
}
