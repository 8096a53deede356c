"""Methods of strings, dicts and lists that a template may call; there are no others."""

from collections.abc import Callable, Mapping

from heddle.text.template.marked import MarkedText
from heddle.text.template.operations import iterate, kind, same, to_int, to_str, to_text
from heddle.text.template.rendering import Rendering
from heddle.text.template.values import Function, TemplateError, Undefined, Value

Method = Callable[..., Value]
MOST_CHARS = 256  # to strip at once: a longer set would be searched for every character


def _chars(chars: Value) -> str | None:
    if chars is None:
        return None
    distinct = "".join(dict.fromkeys(to_str(chars)))
    if len(distinct) > MOST_CHARS:
        raise TemplateError(f"strips more than {MOST_CHARS} kinds of characters")
    return distinct


def stripped(left: bool, right: bool) -> Method:
    """Return a method that cuts one end of a text or both."""

    def strip(run: Rendering, text: MarkedText, /, chars: Value = None) -> Value:
        run.text(len(text))
        return text.strip(_chars(chars), left, right)

    return strip


def _split(right: bool) -> Method:
    def split(run: Rendering, text: MarkedText, /, sep: Value = None, maxsplit: Value = -1) -> Value:
        by = None if sep is None else to_str(sep)
        if by == "":
            raise TemplateError("cannot split at nothing")
        run.text(len(text))
        run.items(len(text.plain.split()) if by is None else text.plain.count(by) + 1)
        return text.split(by, to_int(maxsplit), right)

    return split


def _splitlines(run: Rendering, text: MarkedText, /, keepends: Value = False) -> Value:
    run.text(len(text))
    run.items(len(text.plain.splitlines()))
    return text.splitlines(bool(keepends))


def replace(run: Rendering, text: MarkedText, /, old: Value, new: Value, count: Value = -1) -> Value:
    """Replace each of one text by another."""
    gone, put = to_str(old), to_text(run, new)
    if not gone:
        raise TemplateError("cannot replace nothing")
    times = text.plain.count(gone)
    run.items(times)
    run.text(len(text) + times * max(0, len(put) - len(gone)))
    return text.replace(gone, put, -1 if count is None else to_int(count))


def joined(run: Rendering, between: MarkedText, values: Value) -> MarkedText:
    """Put the items of a list together, as text, with a text between them."""
    texts = [to_text(run, value) for value in iterate(run, values)]
    run.text(sum(map(len, texts)) + len(between) * max(0, len(texts) - 1))
    return between.join(texts)


def cased(change: Callable[[str], str]) -> Method:
    """Return a method that changes letters."""

    def apply(run: Rendering, text: MarkedText, /) -> Value:
        run.text(len(text))
        found = text.cased(change)
        run.text(len(found))
        return found

    return apply


def _is(predicate: Callable[[str], bool]) -> Method:
    def apply(run: Rendering, text: MarkedText, /) -> Value:
        run.text(len(text))
        return predicate(text.plain)

    return apply


def _at_end(predicate: Callable[[str, str], bool]) -> Method:
    def apply(run: Rendering, text: MarkedText, /, what: Value) -> Value:
        options = what if isinstance(what, tuple) else (what,)
        for option in options:
            run.text(len(to_str(option)))
            if predicate(text.plain, to_str(option)):
                return True
        return False

    return apply


def _removed(prefix: bool) -> Method:
    def apply(run: Rendering, text: MarkedText, /, what: Value) -> Value:
        run.text(len(text))
        gone = to_str(what)
        if prefix:
            return text[len(gone) :] if text.plain.startswith(gone) else text
        return text[: len(text) - len(gone)] if text.plain.endswith(gone) else text

    return apply


def _found(predicate: Callable[[str, str], int], must: bool = False) -> Method:
    def apply(run: Rendering, text: MarkedText, /, what: Value) -> Value:
        run.text(len(text))
        at = predicate(text.plain, to_str(what))
        if must and at < 0:
            raise TemplateError("the text to find is not there")
        return at

    return apply


def _partition(right: bool) -> Method:
    def apply(run: Rendering, text: MarkedText, /, sep: Value) -> Value:
        by = to_str(sep)
        if not by:
            raise TemplateError("cannot split at nothing")
        run.text(len(text))
        at = text.plain.rfind(by) if right else text.plain.find(by)
        if at < 0:
            return (MarkedText(""), MarkedText(""), text) if right else (text, MarkedText(""), MarkedText(""))
        return text[:at], text[at : at + len(by)], text[at + len(by) :]

    return apply


def _each(run: Rendering, text: MarkedText, /, values: Value) -> Value:
    for value in iterate(run, values):
        to_str(value)
    return joined(run, text, values)


TEXT: Mapping[str, Method] = {
    "strip": stripped(True, True),
    "lstrip": stripped(True, False),
    "rstrip": stripped(False, True),
    "split": _split(False),
    "rsplit": _split(True),
    "splitlines": _splitlines,
    "partition": _partition(False),
    "rpartition": _partition(True),
    "replace": replace,
    "join": _each,
    "upper": cased(str.upper),
    "lower": cased(str.lower),
    "title": cased(str.title),
    "capitalize": cased(str.capitalize),
    "startswith": _at_end(str.startswith),
    "endswith": _at_end(str.endswith),
    "removeprefix": _removed(True),
    "removesuffix": _removed(False),
    "find": _found(str.find),
    "rfind": _found(str.rfind),
    "index": _found(str.find, must=True),
    "count": _found(str.count),
    "isdigit": _is(str.isdigit),
    "isalpha": _is(str.isalpha),
    "isalnum": _is(str.isalnum),
    "isspace": _is(str.isspace),
    "isupper": _is(str.isupper),
    "islower": _is(str.islower),
    "isnumeric": _is(str.isnumeric),
}


# --- tables and lists -------------------------------------------------------------------------------------------------


def _get(run: Rendering, table: dict[Value, Value], /, key: Value, default: Value = None) -> Value:
    run.spend()
    return table[key] if isinstance(key, MarkedText | int | float | None) and key in table else default


def pairs(run: Rendering, table: Value) -> list[Value]:
    """Return the keys of a table with their values."""
    if isinstance(table, Undefined):
        return []
    if not isinstance(table, dict):
        raise TemplateError(f"want a table, got {kind(table)}")
    run.items(len(table))
    return list(table.items())


def _keys(run: Rendering, table: dict[Value, Value], /) -> Value:
    return iterate(run, table)


def _values(run: Rendering, table: dict[Value, Value], /) -> Value:
    run.items(len(table))
    return list(table.values())


def _count(run: Rendering, values: list[Value], /, what: Value) -> Value:
    return sum(same(run, what, value) for value in values)


def _index(run: Rendering, values: list[Value], /, what: Value) -> Value:
    for i, value in enumerate(values):
        if same(run, what, value):
            return i
    raise TemplateError("the item to find is not there")


TABLE: Mapping[str, Method] = {"get": _get, "items": pairs, "keys": _keys, "values": _values}
LIST: Mapping[str, Method] = {"count": _count, "index": _index}


def method(value: Value, name: str) -> Function | None:
    """Return a method of a value, or None where it has no such one."""
    known = TEXT if isinstance(value, MarkedText) else TABLE if isinstance(value, dict) else LIST
    if name not in known or not isinstance(value, MarkedText | dict | list | tuple):
        return None
    body = known[name]
    return Function(name, lambda run, *given, **named: body(run, value, *given, **named))
