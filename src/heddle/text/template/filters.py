"""Jinja filters (`value | name`) that chat templates use."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress

from heddle.core import brief, hint
from heddle.text.template.marked import EMPTY, WRITTEN, MarkedText
from heddle.text.template.methods import cased, joined, method, on, replace, splitlines, stripped
from heddle.text.template.operations import PlainCopy, add, item, iterate, ordered, plain, to_int, to_str, to_text
from heddle.text.template.parsing import GENERATION
from heddle.text.template.rendering import Rendering, call
from heddle.text.template.tests import TESTS
from heddle.text.template.values import UNDEFINED, Function, Generator, TemplateError, Undefined, Value, kind

Filter = Callable[..., Value]
MAX_DIGITS = 100  # characters of a number that is written as text
MAX_INDENT = 16  # spaces of indentation
COMMON, KEY = MarkedText("common"), MarkedText("key")


def _on_text(body: Filter) -> Filter:
    """Return a method of texts as a filter, which takes other values as they are written out."""
    return lambda run, value, /, *given, **named: on(run, body, to_text(run, value), *given, **named)


def _default(run: Rendering, value: Value, /, default_value: Value = EMPTY, boolean: Value = False) -> Value:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _length(run: Rendering, value: Value, /) -> Value:
    if isinstance(value, Sized):
        return len(value)
    raise TemplateError(f"{kind(value)} has no length")


# --- texts ------------------------------------------------------------------------------------------------------------


def _join(run: Rendering, value: Value, /, d: Value = EMPTY, attribute: Value = None) -> Value:
    values = iterate(run, value)
    if attribute is not None:
        values = [attribute_of(run, one, attribute) for one in values]
    return joined(run, to_text(run, d), values)


def _titled(text: str) -> str:
    """Capitalise every word as Jinja's filter does: letters after a mark such as an apostrophe stay small."""
    words = re.split(r"([-\s({\[<]+)", text)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def _replace(run: Rendering, value: Value, /, old: Value, new: Value, count: Value = None) -> Value:
    return replace(run, to_text(run, value), to_text(run, old), new, count)


def _indent(run: Rendering, text: MarkedText, /, width: Value = 4, first: Value = False, blank: Value = False) -> Value:
    spaces = width if isinstance(width, MarkedText) else MarkedText(" ") * min(MAX_INDENT, to_int(width))
    start, *lines = splitlines(run, text + MarkedText("\n"))
    run.text(len(text) + len(spaces) * (len(lines) + 1))
    rest = [spaces + line if line or blank else line for line in lines]
    return MarkedText("\n").join([spaces + start if first else start, *rest])


def _to_json(
    run: Rendering,
    value: Value,
    /,
    ensure_ascii: Value = False,
    indent: Value = None,
    separators: Value = None,
    sort_keys: Value = False,
) -> Value:
    """Write a value as json.dumps does."""
    copy = PlainCopy(run, True)
    data = copy.of(value)
    spaces = to_str(indent)[:MAX_INDENT] if isinstance(indent, MarkedText) else indent
    width = None if spaces is None else spaces if isinstance(spaces, str) else min(MAX_INDENT, to_int(spaces))
    marks = None if separators is None else tuple(map(to_str, iterate(run, separators)))
    around = sum(map(len, marks or ())) + (0 if width is None else MAX_INDENT * (copy.depth + 1))
    run.text(copy.length + copy.items * around)
    try:
        text = json.dumps(
            data,
            ensure_ascii=bool(ensure_ascii),
            indent=width,
            separators=marks,  # type: ignore[arg-type]  # a wrong number of them is refused by json
            sort_keys=bool(sort_keys),
        )
    except TypeError:
        raise TemplateError(f"cannot write {kind(value)} as JSON") from None
    run.text(len(text))
    return MarkedText(text)  # of data mostly, and so not trusted


# --- numbers ----------------------------------------------------------------------------------------------------------


def _number(make: Callable[[float | str], float], otherwise: Value) -> Filter:
    def apply(run: Rendering, value: Value, /, default: Value = otherwise) -> Value:
        if isinstance(value, Undefined):
            raise value.fault()
        if not isinstance(value, int | float | MarkedText):
            return default
        written = value.plain[:MAX_DIGITS] if isinstance(value, MarkedText) else value
        for read in (make, lambda number: make(float(number))):  # "3.9" is no integer, but has one
            with suppress(ValueError, OverflowError):
                return read(written)
        return default

    return apply


def _round(
    run: Rendering,
    value: Value,
    /,
    precision: Value = 0,
    method: Value = COMMON,
) -> Value:
    digits = to_int(precision)
    if not isinstance(value, int | float) or not 0 <= digits <= MAX_DIGITS:
        raise TemplateError(f"cannot round {kind(value)} to {digits} digits")
    if to_str(method) == "common":
        return round(value, digits)
    return {"ceil": math.ceil, "floor": math.floor}[to_str(method)](value * 10**digits) / 10**digits


def _sum(run: Rendering, value: Value, /, attribute: Value = None, start: Value = 0) -> Value:
    for one in iterate(run, value):
        start = add(run, start, one if attribute is None else attribute_of(run, one, attribute))
    return start


# --- lists ------------------------------------------------------------------------------------------------------------


def attribute_of(run: Rendering, value: Value, path: Value, default: Value = None) -> Value:
    """Return what a dotted path leads to: `function.name`."""
    keys: list[Value] = [path] if isinstance(path, int) else [*MarkedText(to_str(path)).split(".")]
    for key in keys:
        run.count_steps()
        digits = isinstance(key, MarkedText) and key.plain.isdigit()
        value = item_or_method(value, int(to_str(key)) if digits else key)
        if default is not None and isinstance(value, Undefined):
            value = default
    return value


def item_or_method(value: Value, key: Value) -> Value:
    """Return `value[key]`: an item, else a method."""
    found = item(value, key)
    if isinstance(found, Undefined) and isinstance(key, MarkedText):
        return method(value, key.plain) or found
    return found


def _first(run: Rendering, value: Value, /) -> Value:
    if isinstance(value, Generator):
        return next(value.items, UNDEFINED)
    return next(iter(iterate(run, value)), UNDEFINED)


def _last(run: Rendering, value: Value, /) -> Value:
    if isinstance(value, Generator):
        raise TemplateError("a generator has no last item; make it a list")
    return next(reversed(iterate(run, value)), UNDEFINED)


def _reverse(run: Rendering, value: Value, /) -> Value:
    if isinstance(value, MarkedText):
        return value[::-1]
    return Generator(reversed(iterate(run, value)))


def _lazy(body: Callable[..., Iterator[Value]]) -> Filter:
    """Return a filter that gives a generator, which does nothing before it is iterated."""
    return lambda run, value, /, *given, **named: Generator(body(run, value, *given, **named))


def _items(run: Rendering, value: Value, /) -> Iterator[Value]:
    if not isinstance(value, dict | Undefined):
        raise TemplateError(f"want a mapping, got {kind(value)}")
    yield from value.items() if isinstance(value, dict) else ()


def _map(run: Rendering, value: Value, /, *given: Value, **named: Value) -> Iterator[Value]:
    if not given and not {"attribute"} <= named.keys() <= {"attribute", "default"}:
        raise TemplateError("map wants a filter or attribute=name")
    for one in iterate(run, value or []):
        if given:
            yield call(run, known(FILTERS, to_str(given[0]), "filter"), one, *given[1:], **named)
        else:
            yield attribute_of(run, one, named["attribute"], named.get("default"))


def _chosen(wanted: bool, by_attribute: bool) -> Filter:
    def each(run: Rendering, value: Value, /, *given: Value, **named: Value) -> Iterator[Value]:
        if by_attribute and not given:
            raise TemplateError("want the name of an attribute")
        test = given[1:] if by_attribute else given
        for one in iterate(run, value or []):
            run.count_steps()
            found = attribute_of(run, one, given[0]) if by_attribute else one
            if test:
                found = call(run, known(TESTS, to_str(test[0]), "test"), found, *test[1:], **named)
            if bool(found) is wanted:
                yield one

    return _lazy(each)


def _folded(run: Rendering, value: Value, case_sensitive: Value) -> Value:
    if case_sensitive or not isinstance(value, MarkedText):
        return value
    run.text(len(value))
    return MarkedText(value.plain.lower())


def _sort_key(run: Rendering, case_sensitive: Value, attribute: Value) -> Callable[[Value], Value]:
    """Return the key of a value: itself, or the list of its attributes, which commas separate."""
    paths: list[Value] = [] if attribute is None else [attribute]
    if isinstance(attribute, MarkedText):
        paths = [*attribute.split(",")]

    def key(one: Value) -> Value:
        if not paths:
            return _folded(run, one, case_sensitive)
        return [_folded(run, attribute_of(run, one, path), case_sensitive) for path in paths]

    return key


def _sort(
    run: Rendering, value: Value, /, reverse: Value = False, case_sensitive: Value = False, attribute: Value = None
) -> Value:
    return ordered(run, iterate(run, value), _sort_key(run, case_sensitive, attribute), bool(reverse))


def _dictsort(
    run: Rendering, value: Value, /, case_sensitive: Value = False, by: Value = KEY, reverse: Value = False
) -> Value:
    if not isinstance(value, dict):
        raise TemplateError(f"want a mapping, got {kind(value)}")
    position = ("key", "value").index(to_str(by))
    return ordered(run, iterate(run, value.items()), _sort_key(run, case_sensitive, position), bool(reverse))


def _unique(run: Rendering, value: Value, /, case_sensitive: Value = False, attribute: Value = None) -> Iterator[Value]:
    key, seen = _sort_key(run, case_sensitive, attribute), set[object]()
    for one in iterate(run, value):
        found = plain(run, key(one))
        found = tuple(found) if isinstance(found, list) and attribute is not None else found
        if found not in seen:
            seen.add(found)
            yield one


def _extreme(largest: bool) -> Filter:
    def apply(run: Rendering, value: Value, /, case_sensitive: Value = False, attribute: Value = None) -> Value:
        found = ordered(run, iterate(run, value), _sort_key(run, case_sensitive, attribute), largest)
        return found[0] if found else UNDEFINED

    return apply


FILTERS: Mapping[str, Filter] = {
    "abs": lambda run, value, /: abs(value),
    "capitalize": _on_text(cased(str.capitalize)),
    **dict.fromkeys(("count", "length"), _length),
    **dict.fromkeys(("d", "default"), _default),
    "dictsort": _dictsort,
    "first": _first,
    "float": _number(float, 0.0),
    "indent": _on_text(_indent),
    "int": _number(int, 0),
    "items": _lazy(_items),
    "join": _join,
    "last": _last,
    "list": lambda run, value, /: iterate(run, value),
    "lower": _on_text(cased(str.lower)),
    "map": _lazy(_map),
    "max": _extreme(True),
    "min": _extreme(False),
    "reject": _chosen(False, False),
    "rejectattr": _chosen(False, True),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": lambda run, value, /: value,
    "select": _chosen(True, False),
    "selectattr": _chosen(True, True),
    "sort": _sort,
    "string": lambda run, value, /: to_text(run, value),
    "sum": _sum,
    "title": _on_text(cased(_titled)),
    "tojson": _to_json,
    "trim": _on_text(stripped(True, True)),
    "unique": _lazy(_unique),
    "upper": _on_text(cased(str.upper)),
    GENERATION: lambda run, value, /: to_text(run, value).marked(WRITTEN),
}


def known(table: Mapping[str, Filter], name: str, what: str) -> Function:
    """Return a filter or a test by its name, or say which are near."""
    if name not in table:
        raise TemplateError(f"no {what} is called {brief(name)}{hint(name, table)}")
    return Function(name, table[name])
