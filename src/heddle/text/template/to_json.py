"""tojson: values as JSON, as json.dumps writes them, within the limits."""

import json

from heddle.text.template.marked import MarkedText
from heddle.text.template.operations import iterate, kind, ordered, to_int, to_str
from heddle.text.template.rendering import PACE, Rendering
from heddle.text.template.values import TemplateError, Value, truth

WIDEST = 16  # spaces of indentation


def to_json(
    run: Rendering,
    value: Value,
    /,
    ensure_ascii: Value = False,
    indent: Value = None,
    separators: Value = None,
    sort_keys: Value = False,
) -> Value:
    """Write a value as JSON, as json.dumps does."""
    width = None if indent is None else min(WIDEST, max(0, to_int(indent)))
    marks = (
        (MarkedText(", " if width is None else ","), MarkedText(": "))
        if separators is None
        else iterate(run, separators)
    )
    if len(marks) != 2:
        raise TemplateError("want two separators")
    writer = _Json(run, truth(ensure_ascii), width, (to_str(marks[0]), to_str(marks[1])), truth(sort_keys))
    writer.write(value, 0)
    return MarkedText("".join(writer.pieces))  # of data mostly, and so not trusted


class _Json:
    def __init__(
        self, run: Rendering, ascii_: bool, width: int | None, separators: tuple[str, str], ordered: bool
    ) -> None:
        self.run, self.ascii, self.width, self.separators, self.ordered = run, ascii_, width, separators, ordered
        self.pieces: list[str] = []
        self.length = 0

    def write(self, value: Value, level: int) -> None:
        with self.run.deeper():
            if isinstance(value, MarkedText):
                self.add(json.dumps(value.plain, ensure_ascii=self.ascii))
            elif isinstance(value, bool | int | float) or value is None:
                self.add(json.dumps(value))
            elif isinstance(value, dict):
                keys = ordered(self.run, list(value), lambda key: key) if self.ordered else list(value)
                self.many("{}", [(key, value[key]) for key in keys], level)
            elif isinstance(value, list | tuple):
                self.many("[]", [(None, one) for one in value], level, keyed=False)
            else:
                raise TemplateError(f"cannot write {kind(value)} as JSON")

    def many(self, brackets: str, entries: list[tuple[Value, Value]], level: int, keyed: bool = True) -> None:
        self.add(brackets[0])
        for i, (key, one) in enumerate(entries):
            self.add(self.separators[0] if i else "")
            self.new_line(level + 1)
            if keyed:
                self.add(
                    json.dumps(key.plain if isinstance(key, MarkedText) else json.dumps(key), ensure_ascii=self.ascii)
                )
                self.add(self.separators[1])
            self.write(one, level + 1)
        if entries:
            self.new_line(level)
        self.add(brackets[1])

    def new_line(self, level: int) -> None:
        if self.width is not None:
            self.add("\n" + " " * (self.width * level))

    def add(self, piece: str) -> None:
        self.length += len(piece)
        if self.length > self.run.limits.length:
            raise TemplateError(f"makes a text of more than {self.run.limits.length} characters")
        self.run.spend(1 + len(piece) // PACE)
        self.pieces.append(piece)
