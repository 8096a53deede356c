"""Methods of strings, dicts and lists that a template may call; there are no others."""

import re
from collections.abc import Callable, Mapping

from heddle.text.template.marked import EMPTY, MarkedText
from heddle.text.template.operations import Scalar, iterate, plain, same, to_int, to_str, to_text
from heddle.text.template.rendering import Rendering
from heddle.text.template.values import Function, TemplateError, Value

Method = Callable[..., Value]
MAX_STRIP_CHARACTERS = 256  # to strip at once: a longer set would be searched for every character
FIELD = re.compile(r"(\{\{|\}\})|\{(\w*)\}|[{}]")


def _on_plain(method: Callable[..., Value]) -> Method:
    """Return a method of str whose result is no text: `find`, `startswith`, `isdigit`."""
    return lambda run, text, /, *given: method(text.plain, *(plain(run, value) for value in given))


def cased(change: Callable[[str], str]) -> Method:
    """Return a method that changes letters."""

    def apply(run: Rendering, text: MarkedText, /) -> Value:
        found = text.cased(change)
        run.text(len(found))
        return found

    return apply


def stripped(left: bool, right: bool) -> Method:
    """Return a method that cuts one end of a text or both."""

    def strip(run: Rendering, text: MarkedText, /, chars: Value = None) -> Value:
        distinct = None if chars is None else "".join(dict.fromkeys(to_str(chars)))
        if distinct is not None and len(distinct) > MAX_STRIP_CHARACTERS:
            raise TemplateError(f"strips more than {MAX_STRIP_CHARACTERS} kinds of characters")
        return text.strip(distinct, left, right)

    return strip


def _split(right: bool) -> Method:
    def split(run: Rendering, text: MarkedText, /, sep: Value = None, maxsplit: Value = -1) -> Value:
        by = None if sep is None else to_str(sep)
        run.items(len(text.plain.split()) if by is None else text.plain.count(by) + 1)
        return text.split(by, to_int(maxsplit), right)

    return split


def splitlines(run: Rendering, text: MarkedText, /, keepends: Value = False) -> list[MarkedText]:
    """Return the lines of a text."""
    lines = text.plain.splitlines(bool(keepends))
    run.items(len(lines))
    return text.located(lines)


def replace(run: Rendering, text: MarkedText, /, old: Value, new: Value, count: Value = -1) -> Value:
    """Replace each occurrence of one text by another."""
    pattern, put = to_str(old), to_text(run, new)
    if not pattern:
        raise TemplateError("empty pattern")
    times = text.plain.count(pattern)
    run.items(times)
    run.text(len(text) + times * max(0, len(put) - len(pattern)))
    return text.replace(pattern, put, -1 if count is None else to_int(count))


def _removeprefix(run: Rendering, text: MarkedText, /, prefix: Value) -> Value:
    return text[len(to_str(prefix)) :] if text.plain.startswith(to_str(prefix)) else text


def _removesuffix(run: Rendering, text: MarkedText, /, suffix: Value) -> Value:
    return text[: len(text) - len(to_str(suffix))] if text.plain.endswith(to_str(suffix)) else text


def _format(run: Rendering, text: MarkedText, /, *given: Value, **named: Value) -> Value:
    """Fill `{}`, `{0}` and `{name}`; formats and attributes are refused."""
    pieces, at, next_ = list[MarkedText](), 0, 0
    for found in FIELD.finditer(text.plain):
        pieces.append(text[at : found.start()])
        at, name = found.end(), found.group(2)
        if found.group(1):
            pieces.append(text[at - 1 : at])
        elif name is None:
            raise TemplateError("format takes {}, {0} and {name} only")
        else:
            pieces.append(to_text(run, given[int(name or next_)] if name.isdigit() or not name else named[name]))
            next_ += 1
    return joined(run, EMPTY, [*pieces, text[at:]])


def joined(run: Rendering, between: MarkedText, values: Value) -> MarkedText:
    """Join the items of a list, as text, with a text between them."""
    texts = [to_text(run, value) for value in iterate(run, values)]
    run.text(sum(map(len, texts)) + len(between) * max(0, len(texts) - 1))
    return between.join(texts)


def _join(run: Rendering, text: MarkedText, /, values: Value) -> Value:
    items = iterate(run, values)
    for value in items:
        to_str(value)
    return joined(run, text, items)


PLAIN = (
    *(str.startswith, str.endswith, str.find, str.rfind, str.index, str.rindex, str.count),
    *(str.isdigit, str.isalpha, str.isalnum, str.isspace, str.isupper, str.islower, str.isnumeric, str.isdecimal),
    *(str.istitle, str.isascii, str.isidentifier, str.isprintable),
)
TEXT: Mapping[str, Method] = {
    "strip": stripped(True, True),
    "lstrip": stripped(True, False),
    "rstrip": stripped(False, True),
    "split": _split(False),
    "rsplit": _split(True),
    "splitlines": splitlines,
    "partition": lambda run, text, /, sep: tuple(text.located(text.plain.partition(to_str(sep)))),
    "rpartition": lambda run, text, /, sep: tuple(text.located(text.plain.rpartition(to_str(sep)))),
    "replace": replace,
    "removeprefix": _removeprefix,
    "removesuffix": _removesuffix,
    "format": _format,
    "join": _join,
    **{change.__name__: cased(change) for change in (str.upper, str.lower, str.title, str.capitalize, str.swapcase)},
    **{method.__name__: _on_plain(method) for method in PLAIN},
}


# --- tables and lists -------------------------------------------------------------------------------------------------


def _get(run: Rendering, table: dict[Value, Value], /, key: Value, default: Value = None) -> Value:
    return table[key] if isinstance(key, Scalar) and key in table else default


def _count(run: Rendering, values: list[Value], /, what: Value) -> Value:
    return sum(same(run, what, value) for value in values)


def _index(run: Rendering, values: list[Value], /, what: Value) -> Value:
    return [same(run, what, value) for value in values].index(True)


TABLE: Mapping[str, Method] = {
    "get": _get,
    "items": lambda run, table, /: table.items(),
    "keys": lambda run, table, /: table.keys(),
    "values": lambda run, table, /: table.values(),
}
LIST: Mapping[str, Method] = {"count": _count, "index": _index}
METHODS: Mapping[type, Mapping[str, Method]] = {MarkedText: TEXT, dict: TABLE, list: LIST, tuple: LIST, range: LIST}


def method(value: Value, name: str) -> Function | None:
    """Return a method of a value, or None where it has no such one."""
    body = METHODS.get(type(value), {}).get(name)
    return None if body is None else Function(name, lambda run, *given, **named: on(run, body, value, *given, **named))


def on(run: Rendering, body: Method, value: Value, /, *given: Value, **named: Value) -> Value:
    """Call a method; to read a text costs time."""
    run.text(len(value) if isinstance(value, MarkedText) else 0)
    return body(run, value, *given, **named)
