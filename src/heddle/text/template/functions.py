"""Functions that every chat template may call."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from heddle.core import brief
from heddle.text.template.marked import Marked, derived
from heddle.text.template.operations import texted, whole, word
from heddle.text.template.rendering import Run
from heddle.text.template.values import Fault, Function, Namespace, Value

DATE = re.compile(r"(?:[^%]|%-?[aAbBdHIjmMpSyYZ%])*")  # no widths: the C library would fill them with spaces
LONGEST_DATE = 200


def _range(run: Run, first: Value, last: Value = None, step: Value = 1) -> Value:
    start, stop = (0, whole(first)) if last is None else (whole(first), whole(last))
    if whole(step) == 0:
        raise Fault("cannot go by steps of 0")
    numbers = range(start, stop, whole(step))
    run.items(len(numbers) if abs(stop - start) < 1 << 40 else 1 << 40)
    return list(numbers)


def _namespace(run: Run, /, *given: Value, **named: Value) -> Value:
    found = Namespace()
    for name, value in _table(run, *given, **named).items():
        found.set(word(name), value)
    return found


def _table(run: Run, /, *given: Value, **named: Value) -> dict[Value, Value]:
    first = given[0] if given else {}
    if not isinstance(first, dict) or len(given) > 1:
        raise Fault("want a table, or name=value")
    run.items(len(first) + len(named))
    return first | {Marked(name): value for name, value in named.items()}


def _raise(run: Run, message: Value) -> Value:
    raise Fault(brief(" ".join(texted(run, message).plain[:1000].split()), 300)[1:-1])


def _now(run: Run, format: Value) -> Value:
    wish = word(format)
    if len(wish) > LONGEST_DATE or not DATE.fullmatch(wish):
        raise Fault(f"strftime_now cannot write {brief(wish)}")
    assert isinstance(format, Marked)
    return derived(datetime.now().strftime(wish), [format])


_KNOWN: Mapping[str, Callable[..., Value]] = {
    "range": _range,
    "namespace": _namespace,
    "dict": _table,
    "raise_exception": _raise,
    "strftime_now": _now,
}
FUNCTIONS: Mapping[str, Value] = {name: Function(name, body) for name, body in _KNOWN.items()}
