"""Parser: the chunks of a template to statements."""

from collections.abc import Sequence

from heddle.core import brief
from heddle.text.template.expression_parser import ExpressionParser
from heddle.text.template.expressions import Literal
from heddle.text.template.lexer import Lexer, TemplateChunk
from heddle.text.template.marked import literal
from heddle.text.template.rendering import Expression, Statement
from heddle.text.template.statements import (
    Body,
    Break,
    Capture,
    Continue,
    For,
    Generation,
    If,
    LoopControl,
    Macro,
    OutputStatement,
    Set,
    Target,
    With,
)
from heddle.text.template.values import TemplateError

DEEPEST = 30  # statements inside statements


def parse(source: str) -> Body:
    """Parse a template into statements."""
    parser = Parser(list(Lexer(source).pieces()))
    return parser.body(())[0]


class Parser:
    """Parses chunks in order; a statement with a body reads up to its end."""

    def __init__(self, pieces: Sequence[TemplateChunk]) -> None:
        self._pieces, self._at, self._depth, self._loops = pieces, 0, 0, 0
        self._known = {
            "for": self._for,
            "if": self._if,
            "set": self._set,
            "macro": self._macro,
            "with": self._with,
            "filter": self._filter,
            "generation": self._generation,
            "break": self._loop_control,
            "continue": self._loop_control,
        }

    def body(self, until: tuple[str, ...], line: int = 1) -> tuple[Body, str, ExpressionParser]:
        """Parse up to one of some statements (none: to the end); return the body before it, its name and its code."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise TemplateError(f"line {line}: nests deeper than {DEEPEST} levels")
        found: list[Statement] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            self._at += 1
            if piece.kind == "text":
                if piece.text:
                    found.append(OutputStatement(Literal(literal(piece.text)), piece.line))
                continue
            reader = ExpressionParser(piece.code)
            if piece.kind == "output":
                found.append(OutputStatement(reader.tuple(), piece.line))
                reader.end()
                continue
            name = reader.expect("name")
            if name in until:
                self._depth -= 1
                return tuple(found), name, reader
            found.append(self._statement(name, reader, piece.line))
        if until:
            raise TemplateError(f"line {line}: want {' or '.join(until)}, got the end of the template")
        return tuple(found), "", ExpressionParser(())

    def _statement(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        if name not in self._known:
            raise TemplateError(f"line {line}: no statement is called {brief(name)} here")
        return self._known[name](name, reader, line)

    def _closed(self, name: str, line: int) -> Body:
        body, _, last = self.body((name,), line)
        last.end()
        return body

    def _for(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        target = _target(reader)
        reader.expect("name", "in")
        over = reader.tuple(conditional=False)
        only = reader.expression() if reader.skip("name", "if") else None
        reader.end()
        self._loops += 1
        body, until, last = self.body(("else", "endfor"), line)
        last.end()
        self._loops -= 1
        otherwise = self._closed("endfor", line) if until == "else" else ()
        return For(target, over, only, body, otherwise, line)

    def _if(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        branches: list[tuple[Expression, Body]] = []
        otherwise: Body = ()
        while True:
            condition = reader.tuple(conditional=False)
            reader.end()
            body, until, reader = self.body(("elif", "else", "endif"), line)
            branches.append((condition, body))
            if until != "elif":
                break
        reader.end()
        if until == "else":
            otherwise = self._closed("endif", line)
        return If(tuple(branches), otherwise, line)

    def _set(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        target = _target(reader, fields=True)
        if reader.skip("sign", "="):
            given = reader.tuple()
            reader.end()
            return Set(target, given, line)
        filters = reader if reader.skip("sign", "|") else None
        if filters is None:
            reader.end()
        value: Expression = Capture(self._closed("endset", line))
        if filters is not None:
            value = filters.filters(value)
            filters.end()
        return Set(target, value, line)

    def _filter(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        found = reader.filters(Capture(self._closed("endfilter", line)))
        reader.end()
        return OutputStatement(found, line)

    def _macro(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        called = reader.expect("name")
        names: list[str] = []
        defaults: dict[str, Expression] = {}
        reader.expect("sign", "(")
        while not reader.skip("sign", ")"):
            names.append(reader.expect("name"))
            if reader.skip("sign", "="):
                defaults[names[-1]] = reader.expression()
            if not reader.skip("sign", ","):
                reader.expect("sign", ")")
                break
        reader.end()
        loops, self._loops = self._loops, 0
        body = self._closed("endmacro", line)
        self._loops = loops
        return Macro(called, tuple(names), defaults, body, line)

    def _with(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        names: list[tuple[Target, Expression]] = []
        while reader.now.kind != "end":
            target = Target((reader.expect("name"),))
            reader.expect("sign", "=")
            names.append((target, reader.expression()))
            if not reader.skip("sign", ","):
                break
        reader.end()
        return With(tuple(names), self._closed("endwith", line), line)

    def _generation(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        reader.end()
        loops, self._loops = self._loops, 0
        body = self._closed("endgeneration", line)
        self._loops = loops
        return Generation(body, line)

    def _loop_control(self, name: str, reader: ExpressionParser, line: int) -> Statement:
        reader.end()
        if not self._loops:
            raise TemplateError(f"line {line}: {name} stands outside of a loop")
        return LoopControl(Break if name == "break" else Continue, line)


def _target(reader: ExpressionParser, fields: bool = False) -> Target:
    """Parse the target of an assignment."""
    bracketed = reader.skip("sign", "(")
    names = [reader.expect("name")]
    if fields and reader.skip("sign", "."):
        return Target((names[0],), reader.expect("name"))
    shared = False
    while reader.skip("sign", ","):
        shared = True
        if reader.now.kind != "name" or reader.now.text == "in":
            break
        names.append(reader.expect("name"))
    if bracketed:
        reader.expect("sign", ")")
    return Target(tuple(names), None, shared)
