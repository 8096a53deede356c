"""Filters (`value | name`) that chat templates use."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from heddle.core import brief, hint
from heddle.text.template.marked import Marked
from heddle.text.template.methods import cased, joined, pairs, replace, stripped
from heddle.text.template.operations import add, item, iterated, kind, ordered, same, texted, whole, word
from heddle.text.template.rendering import Run
from heddle.text.template.tests import TESTS, Test
from heddle.text.template.to_json import WIDEST, to_json
from heddle.text.template.values import UNDEFINED, Fault, Undefined, Value, truth

Filter = Callable[..., Value]
MOST_DIGITS = 100  # characters of a number that is written as text


def _on_text(body: Filter) -> Filter:
    """Return a method of texts as a filter, which takes other values as they are written out."""
    return lambda run, value, /, *given, **named: body(run, texted(run, value), *given, **named)


def _default(run: Run, value: Value, /, default_value: Value = None, boolean: Value = False) -> Value:
    empty = isinstance(value, Undefined) or (truth(boolean) and not truth(value))
    return (Marked("") if default_value is None else default_value) if empty else value


def _length(run: Run, value: Value, /) -> Value:
    if isinstance(value, Marked | list | tuple | dict):
        return len(value)
    if isinstance(value, Undefined):
        return 0
    raise Fault(f"{kind(value)} has no length")


def _join(run: Run, value: Value, /, d: Value = None, attribute: Value = None) -> Value:
    values = iterated(run, value)
    if attribute is not None:
        values = [reach(run, one, attribute) for one in values]
    return joined(run, Marked("") if d is None else texted(run, d), values)


def _titled(text: str) -> str:
    """Capitalise every word, as Jinja's filter has it: letters after a mark such as an apostrophe stay small."""
    words = re.split(r"([-\s({\[<]+)", text)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def _first(run: Run, value: Value, /) -> Value:
    return next(iter(iterated(run, value)), UNDEFINED)


def _last(run: Run, value: Value, /) -> Value:
    return next(iter(iterated(run, value)[::-1]), UNDEFINED)


def _reverse(run: Run, value: Value, /) -> Value:
    return value[::-1] if isinstance(value, Marked) else iterated(run, value)[::-1]


def _number(make: Callable[[float | str], float], otherwise: Value) -> Filter:
    def apply(run: Run, value: Value, /, default: Value = otherwise) -> Value:
        if not isinstance(value, int | float | Marked):
            return default
        written = value.plain[:MOST_DIGITS] if isinstance(value, Marked) else value
        for read in (make, lambda number: make(float(number))):  # "3.9" is no whole number, but has one
            with suppress(ValueError, OverflowError):
                return read(written)
        return default

    return apply


def _round(run: Run, value: Value, /, precision: Value = 0) -> Value:
    if not isinstance(value, int | float):
        raise Fault(f"cannot round {kind(value)}")
    if not 0 <= whole(precision) <= MOST_DIGITS:
        raise Fault(f"cannot round to {precision} digits")
    return round(value, whole(precision))


def _abs(run: Run, value: Value, /) -> Value:
    if not isinstance(value, int | float):
        raise Fault(f"{kind(value)} has no size")
    return abs(value)


def _sum(run: Run, value: Value, /, attribute: Value = None, start: Value = 0) -> Value:
    for one in iterated(run, value):
        start = add(run, start, one if attribute is None else reach(run, one, attribute))
    return start


def _indent(run: Run, value: Value, /, width: Value = 4, first: Value = False, blank: Value = False) -> Value:
    text, spaces = texted(run, value), Marked(" ") * min(WIDEST, max(0, whole(width)))
    run.items(len(text.plain.splitlines()) + 1)
    lines = text.splitlines() + ([Marked("")] if text.plain.endswith("\n") else [])
    run.text(len(text) + len(spaces) * len(lines))
    wide = [
        spaces + line if (line.plain or truth(blank)) and (i or truth(first)) else line for i, line in enumerate(lines)
    ]
    return Marked("\n").join(wide)


# --- lists ------------------------------------------------------------------------------------------------------------


def reach(run: Run, value: Value, path: Value) -> Value:
    """Return what a dotted path leads to: `function.name`."""
    if isinstance(path, int):
        return item(value, path)
    for key in word(path).split("."):
        run.spend()
        value = item(value, int(key) if key.isdigit() else Marked(key))
    return value


def _map(run: Run, value: Value, /, name: Value = None, *given: Value, **named: Value) -> Value:
    values = iterated(run, value)
    if name is None:
        path, default = named.get("attribute"), named.get("default", UNDEFINED)
        found = [reach(run, one, path) for one in values]
        return [default if isinstance(one, Undefined) else one for one in found]
    apply = known(FILTERS, word(name), "filter")
    return [apply(run, one, *given, **named) for one in values]


def _chosen(wanted: bool, by_attribute: bool) -> Filter:
    def apply(run: Run, value: Value, /, *given: Value) -> Value:
        path = given[:1] if by_attribute else ()
        name, *more = given[len(path) :] or (None,)
        ask: Test = (lambda run, one: truth(one)) if name is None else known(TESTS, word(name), "test")
        return [
            one
            for one in iterated(run, value)
            if truth(ask(run, reach(run, one, path[0]) if path else one, *more)) == wanted
        ]

    return apply


def _folded(run: Run, value: Value) -> Value:
    if not isinstance(value, Marked):
        return value
    run.text(len(value))
    return Marked(value.plain.lower())


def _sort(
    run: Run, value: Value, /, reverse: Value = False, case_sensitive: Value = False, attribute: Value = None
) -> Value:
    def key(one: Value) -> Value:
        found = one if attribute is None else reach(run, one, attribute)
        return found if truth(case_sensitive) else _folded(run, found)

    return ordered(run, iterated(run, value), key, truth(reverse))


def _dictsort(run: Run, value: Value, /, case_sensitive: Value = False, reverse: Value = False) -> Value:
    def key(pair: Value) -> Value:
        assert isinstance(pair, tuple)
        return pair[0] if truth(case_sensitive) else _folded(run, pair[0])

    return ordered(run, pairs(run, value), key, truth(reverse))


def _unique(run: Run, value: Value, /) -> Value:
    found: list[Value] = []
    seen: list[Value] = []
    for one in iterated(run, value):
        folded = _folded(run, one)
        if not any(same(run, folded, other) for other in seen):
            found.append(one)
            seen.append(folded)
    return found


def _extreme(largest: bool) -> Filter:
    def apply(run: Run, value: Value, /) -> Value:
        found = ordered(run, iterated(run, value), lambda one: _folded(run, one), largest)
        return found[0] if found else UNDEFINED

    return apply


def _string(run: Run, value: Value, /) -> Value:
    return texted(run, value)


def _list(run: Run, value: Value, /) -> Value:
    return iterated(run, value)


def _items(run: Run, value: Value, /) -> Value:
    return pairs(run, value)


def _safe(run: Run, value: Value, /) -> Value:
    return value


FILTERS: Mapping[str, Filter] = {
    "abs": _abs,
    "capitalize": _on_text(cased(str.capitalize)),
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "float": _number(float, 0.0),
    "indent": _indent,
    "int": _number(int, 0),
    "items": _items,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "lower": _on_text(cased(str.lower)),
    "map": _map,
    "max": _extreme(True),
    "min": _extreme(False),
    "reject": _chosen(False, False),
    "rejectattr": _chosen(False, True),
    "replace": _on_text(replace),
    "reverse": _reverse,
    "round": _round,
    "safe": _safe,
    "select": _chosen(True, False),
    "selectattr": _chosen(True, True),
    "sort": _sort,
    "string": _string,
    "sum": _sum,
    "title": _on_text(cased(_titled)),
    "tojson": to_json,
    "trim": _on_text(stripped(True, True)),
    "unique": _unique,
    "upper": _on_text(cased(str.upper)),
}


def known(table: Mapping[str, Filter], name: str, what: str) -> Filter:
    """Return a filter or a test by its name, or say which are near."""
    if name not in table:
        raise Fault(f"no {what} is called {brief(name)}{hint(name, table)}")
    return table[name]
