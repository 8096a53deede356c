"""Global functions of chat templates."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from heddle.core import brief
from heddle.text.template.marked import MarkedText, derived
from heddle.text.template.operations import to_int, to_str, to_text
from heddle.text.template.rendering import Rendering
from heddle.text.template.values import Function, Namespace, TemplateError, Value

DATE = re.compile(r"(?:[^%\x00]|%-?[a-zA-Z%])*")  # no widths: the C library would fill them with spaces
MAX_DATE_CHARACTERS = 200


def _range(run: Rendering, /, *bounds: Value) -> Value:
    numbers = range(*map(to_int, bounds))
    run.items(len(numbers) if all(abs(to_int(bound)) < 1 << 40 for bound in bounds) else 1 << 40)
    return numbers


def _namespace(run: Rendering, /, *given: Value, **named: Value) -> Value:
    found = Namespace()
    for name, value in _dict(run, *given, **named).items():
        found.set(to_str(name), value)
    return found


def _dict(run: Rendering, /, *given: Value, **named: Value) -> dict[Value, Value]:
    first = given[0] if given else {}
    if not isinstance(first, dict) or len(given) > 1:
        raise TemplateError("want a mapping, or name=value")
    run.items(len(first) + len(named))
    return first | {MarkedText(name): value for name, value in named.items()}


def _raise(run: Rendering, /, message: Value) -> Value:
    raise TemplateError(brief(" ".join(to_text(run, message).plain[:1000].split()), 300)[1:-1])


def _strftime_now(run: Rendering, /, format: Value) -> Value:
    pattern = to_str(format)
    if len(pattern) > MAX_DATE_CHARACTERS or not DATE.fullmatch(pattern):
        raise TemplateError(f"strftime_now cannot write {brief(pattern)}")
    assert isinstance(format, MarkedText)
    return derived(datetime.now().strftime(pattern), [format])


_KNOWN: Mapping[str, Callable[..., Value]] = {
    "range": _range,
    "namespace": _namespace,
    "dict": _dict,
    "raise_exception": _raise,
    "strftime_now": _strftime_now,
}
FUNCTIONS: Mapping[str, Value] = {name: Function(name, body) for name, body in _KNOWN.items()}
