"""Lexer: splits a template into text, `{{ output }}` and `{% statements %}`, with Jinja's rules for whitespace.

As chat templates expect (trim_blocks, lstrip_blocks), the line end after a statement and the indentation before it go.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from heddle.text.template.values import TemplateError

LONGEST = 1 << 17  # characters of a template; the longest in use have about a quarter of it
MOST = 1 << 14  # words of code in it; the same
NEWLINE = re.compile(r"\r\n|\r|\n")
OPEN = re.compile(r"\{[{%#]")
RAW = re.compile(r"\{%[-+]?\s*raw\s*(-?)%\}")
END_RAW = re.compile(r"\{%([-+]?)\s*endraw\s*([-+]?)%\}")
CODE = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<float>\d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)?|\d[\d_]*[eE][+-]?\d+)"
    r"|(?P<int>\d[\d_]*)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<string>'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")"
    r"|(?P<sign>\*\*|//|==|!=|>=|<=|[-+/*%~\[\](){}<>=.:|,])",
    re.DOTALL,
)
BRACKETS = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A token of code: its kind (name, string, int, float, sign, end) and its text."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class TemplateChunk:
    """A part of the source: literal text, or the code of an output or a statement."""

    kind: str  # text, output or statement
    text: str
    code: tuple[Token, ...]
    line: int


class Lexer:
    """Reads a source once, from beginning to end."""

    def __init__(self, source: str) -> None:
        if len(source) > LONGEST:
            raise TemplateError(f"is longer than {LONGEST} characters")
        lines = NEWLINE.split(source)
        if lines[-1] == "":  # the file's last line end is no part of the template
            del lines[-1]
        self.source = "\n".join(lines)
        self.at = 0
        self.line = 1
        self.words = 0
        self.fresh = True  # whether the next character begins a line

    def pieces(self) -> Iterator[TemplateChunk]:
        """Yield the pieces of the source in order."""
        while self.at < len(self.source):
            found = OPEN.search(self.source, self.at)
            if found is None:
                yield self._text(len(self.source), "+")
                return
            sign = self.source[found.end() : found.end() + 1]
            yield self._text(found.start(), sign if sign in ("-", "+") else "", found.group() != "{{")
            raw = RAW.match(self.source, self.at)
            if raw is not None:
                yield from self._raw(raw)
            elif found.group() == "{#":
                self._comment()
            else:
                self._go(found.end() + (1 if sign in ("-", "+") else 0))
                line = self.line
                code = tuple(self._code("}}" if found.group() == "{{" else "%}"))
                yield TemplateChunk("output" if found.group() == "{{" else "statement", "", code, line)

    def _go(self, to: int) -> None:
        self.line += self.source.count("\n", self.at, to)
        self.fresh = self.source[to - 1 : to] == "\n" if to else True
        self.at = to

    def _text(self, to: int, sign: str, statement: bool = False) -> TemplateChunk:
        """Return text up to a position; the sign after it decides about trailing whitespace."""
        text, line = self.source[self.at : to], self.line
        cut = _cut(text, sign, statement, self.fresh)
        self._go(to)
        return TemplateChunk("text", cut, (), line)

    def _comment(self) -> None:
        stop = self.source.find("#}", self.at + 2)
        if stop < 0:
            raise TemplateError(f"line {self.line}: a comment does not end")
        self._close(stop, self.source[stop - 1] if stop > self.at + 2 else "")

    def _close(self, at: int, sign: str, statement: bool = True) -> None:
        """Skip a closing mark and the whitespace that it removes."""
        self._go(at + 2)
        if sign == "-":
            rest = re.compile(r"\s*").match(self.source, self.at)
            assert rest is not None
            self._go(rest.end())
        elif sign != "+" and statement and self.source.startswith("\n", self.at):
            self._go(self.at + 1)

    def _raw(self, opened: re.Match[str]) -> Iterator[TemplateChunk]:
        self._go(opened.end())
        start = self.at
        if opened.group(1) == "-":
            start += len(self.source[start:]) - len(self.source[start:].lstrip())
        end = END_RAW.search(self.source, start)
        if end is None:
            raise TemplateError(f"line {self.line}: raw does not end")
        text = _cut(self.source[start : end.start()], end.group(1), True, self.source[start - 1 : start] == "\n")
        yield TemplateChunk("text", text, (), self.line)
        self._go(end.start())
        self._close(end.end() - 2, end.group(2))

    def _code(self, closing: str) -> Iterator[Token]:
        """Yield the tokens of code up to its closing mark, and skip that."""
        open_: list[str] = []
        while True:
            for sign in ("-", "+", "") if closing == "%}" else ("-", ""):
                if not open_ and self.source.startswith(sign + closing, self.at):
                    yield Token("end", closing, self.line)
                    self._close(self.at + len(sign), sign, closing == "%}")
                    return
            found = CODE.match(self.source, self.at)
            if found is None:
                what = repr(self.source[self.at : self.at + 10]) if self.at < len(self.source) else "the end"
                raise TemplateError(f"line {self.line}: cannot read {what}")
            kind = str(found.lastgroup)
            if kind == "sign":
                self._balance(found.group(), open_)
            if kind != "space":
                self.words += 1
                if self.words > MOST:
                    raise TemplateError(f"has more than {MOST} words of code")
                yield Token(kind, found.group(), self.line)
            self._go(found.end())

    def _balance(self, sign: str, open_: list[str]) -> None:
        if sign in BRACKETS:
            open_.append(BRACKETS[sign])
        elif sign in ")]}" and (not open_ or open_.pop() != sign):
            raise TemplateError(f"line {self.line}: {sign} closes nothing")


def _cut(text: str, sign: str, statement: bool, fresh: bool) -> str:
    if sign == "-":
        return text.rstrip()
    if sign == "+" or not statement:
        return text
    start = text.rfind("\n") + 1
    indented = (start > 0 or fresh) and text[start:].isspace()
    return text[:start] if indented else text
