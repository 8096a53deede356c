"""Jinja filters (`value | name`) that chat templates use."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from heddle.core import brief, hint
from heddle.text.template.marked import MarkedText
from heddle.text.template.methods import cased, joined, pairs, replace, stripped
from heddle.text.template.operations import add, item, iterate, kind, ordered, same, to_int, to_str, to_text
from heddle.text.template.rendering import Rendering
from heddle.text.template.tests import TESTS, Test
from heddle.text.template.to_json import WIDEST, to_json
from heddle.text.template.values import UNDEFINED, TemplateError, Undefined, Value, truth

Filter = Callable[..., Value]
MOST_DIGITS = 100  # characters of a number that is written as text


def _on_text(body: Filter) -> Filter:
    """Return a method of texts as a filter, which takes other values as they are written out."""
    return lambda run, value, /, *given, **named: body(run, to_text(run, value), *given, **named)


def _default(run: Rendering, value: Value, /, default_value: Value = None, boolean: Value = False) -> Value:
    empty = isinstance(value, Undefined) or (truth(boolean) and not truth(value))
    return (MarkedText("") if default_value is None else default_value) if empty else value


def _length(run: Rendering, value: Value, /) -> Value:
    if isinstance(value, MarkedText | list | tuple | dict):
        return len(value)
    if isinstance(value, Undefined):
        return 0
    raise TemplateError(f"{kind(value)} has no length")


def _join(run: Rendering, value: Value, /, d: Value = None, attribute: Value = None) -> Value:
    values = iterate(run, value)
    if attribute is not None:
        values = [reach(run, one, attribute) for one in values]
    return joined(run, MarkedText("") if d is None else to_text(run, d), values)


def _titled(text: str) -> str:
    """Capitalise every word, as Jinja's filter has it: letters after a mark such as an apostrophe stay small."""
    words = re.split(r"([-\s({\[<]+)", text)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def _first(run: Rendering, value: Value, /) -> Value:
    return next(iter(iterate(run, value)), UNDEFINED)


def _last(run: Rendering, value: Value, /) -> Value:
    return next(iter(iterate(run, value)[::-1]), UNDEFINED)


def _reverse(run: Rendering, value: Value, /) -> Value:
    return value[::-1] if isinstance(value, MarkedText) else iterate(run, value)[::-1]


def _number(make: Callable[[float | str], float], otherwise: Value) -> Filter:
    def apply(run: Rendering, value: Value, /, default: Value = otherwise) -> Value:
        if not isinstance(value, int | float | MarkedText):
            return default
        written = value.plain[:MOST_DIGITS] if isinstance(value, MarkedText) else value
        for read in (make, lambda number: make(float(number))):  # "3.9" is no whole number, but has one
            with suppress(ValueError, OverflowError):
                return read(written)
        return default

    return apply


def _round(run: Rendering, value: Value, /, precision: Value = 0) -> Value:
    if not isinstance(value, int | float):
        raise TemplateError(f"cannot round {kind(value)}")
    if not 0 <= to_int(precision) <= MOST_DIGITS:
        raise TemplateError(f"cannot round to {precision} digits")
    return round(value, to_int(precision))


def _abs(run: Rendering, value: Value, /) -> Value:
    if not isinstance(value, int | float):
        raise TemplateError(f"{kind(value)} has no size")
    return abs(value)


def _sum(run: Rendering, value: Value, /, attribute: Value = None, start: Value = 0) -> Value:
    for one in iterate(run, value):
        start = add(run, start, one if attribute is None else reach(run, one, attribute))
    return start


def _indent(run: Rendering, value: Value, /, width: Value = 4, first: Value = False, blank: Value = False) -> Value:
    text, spaces = to_text(run, value), MarkedText(" ") * min(WIDEST, max(0, to_int(width)))
    run.items(len(text.plain.splitlines()) + 1)
    lines = text.splitlines() + ([MarkedText("")] if text.plain.endswith("\n") else [])
    run.text(len(text) + len(spaces) * len(lines))
    wide = [
        spaces + line if (line.plain or truth(blank)) and (i or truth(first)) else line for i, line in enumerate(lines)
    ]
    return MarkedText("\n").join(wide)


# --- lists ------------------------------------------------------------------------------------------------------------


def reach(run: Rendering, value: Value, path: Value) -> Value:
    """Return what a dotted path leads to: `function.name`."""
    if isinstance(path, int):
        return item(value, path)
    for key in to_str(path).split("."):
        run.spend()
        value = item(value, int(key) if key.isdigit() else MarkedText(key))
    return value


def _map(run: Rendering, value: Value, /, name: Value = None, *given: Value, **named: Value) -> Value:
    values = iterate(run, value)
    if name is None:
        path, default = named.get("attribute"), named.get("default", UNDEFINED)
        found = [reach(run, one, path) for one in values]
        return [default if isinstance(one, Undefined) else one for one in found]
    apply = known(FILTERS, to_str(name), "filter")
    return [apply(run, one, *given, **named) for one in values]


def _chosen(wanted: bool, by_attribute: bool) -> Filter:
    def apply(run: Rendering, value: Value, /, *given: Value) -> Value:
        path = given[:1] if by_attribute else ()
        name, *more = given[len(path) :] or (None,)
        predicate: Test = (lambda run, one: truth(one)) if name is None else known(TESTS, to_str(name), "test")
        return [
            one
            for one in iterate(run, value)
            if truth(predicate(run, reach(run, one, path[0]) if path else one, *more)) == wanted
        ]

    return apply


def _folded(run: Rendering, value: Value) -> Value:
    if not isinstance(value, MarkedText):
        return value
    run.text(len(value))
    return MarkedText(value.plain.lower())


def _sort(
    run: Rendering, value: Value, /, reverse: Value = False, case_sensitive: Value = False, attribute: Value = None
) -> Value:
    def key(one: Value) -> Value:
        found = one if attribute is None else reach(run, one, attribute)
        return found if truth(case_sensitive) else _folded(run, found)

    return ordered(run, iterate(run, value), key, truth(reverse))


def _dictsort(run: Rendering, value: Value, /, case_sensitive: Value = False, reverse: Value = False) -> Value:
    def key(pair: Value) -> Value:
        assert isinstance(pair, tuple)
        return pair[0] if truth(case_sensitive) else _folded(run, pair[0])

    return ordered(run, pairs(run, value), key, truth(reverse))


def _unique(run: Rendering, value: Value, /) -> Value:
    found: list[Value] = []
    seen: list[Value] = []
    for one in iterate(run, value):
        folded = _folded(run, one)
        if not any(same(run, folded, other) for other in seen):
            found.append(one)
            seen.append(folded)
    return found


def _extreme(largest: bool) -> Filter:
    def apply(run: Rendering, value: Value, /) -> Value:
        found = ordered(run, iterate(run, value), lambda one: _folded(run, one), largest)
        return found[0] if found else UNDEFINED

    return apply


def _string(run: Rendering, value: Value, /) -> Value:
    return to_text(run, value)


def _list(run: Rendering, value: Value, /) -> Value:
    return iterate(run, value)


def _items(run: Rendering, value: Value, /) -> Value:
    return pairs(run, value)


def _safe(run: Rendering, value: Value, /) -> Value:
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
        raise TemplateError(f"no {what} is called {brief(name)}{hint(name, table)}")
    return table[name]
