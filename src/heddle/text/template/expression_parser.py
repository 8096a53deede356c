"""Expression parser: tokens to a syntax tree, with Jinja's operator precedence."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from heddle.core import brief
from heddle.text.template.expressions import (
    Arguments,
    Attribute,
    Binary,
    Call,
    Compare,
    Conditional,
    DictLiteral,
    FilterOrTest,
    Item,
    ListLiteral,
    Literal,
    Logic,
    Not,
    Slice,
    Variable,
)
from heddle.text.template.filters import FILTERS, known
from heddle.text.template.lexer import Token
from heddle.text.template.marked import literal
from heddle.text.template.rendering import Expression
from heddle.text.template.tests import TESTS
from heddle.text.template.values import UNDEFINED, Function, TemplateError, Value

DEEPEST = 40  # brackets, and other expressions inside expressions
LEVELS = {"+": 1, "-": 1, "~": 2, "*": 3, "/": 3, "//": 3, "%": 3, "**": 4}
COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}
CONSTANTS: dict[str, Value] = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
AFTER_TEST = {"and", "or", "else", "if", "is", "in", "not", "recursive"}  # names that are no argument of a test
MOST_DIGITS = 15

ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}


def unescaped(text: str) -> str:
    """Return the value of a string literal."""

    def meant(found: re.Match[str]) -> str:
        code = found.group(1)
        if code[0] in "xuU" and len(code) > 1:
            return _character(int(code[1:], 16))
        if code[0] in "01234567":
            return _character(int(code, 8))
        return ESCAPES.get(code, code if code in "\\'\"" else found.group())

    return ESCAPE.sub(meant, text[1:-1])


def _character(number: int) -> str:
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise TemplateError(f"U+{number:X} is no character")
    return chr(number)


class ExpressionParser:
    """Parses the tokens of one output or statement."""

    def __init__(self, code: Sequence[Token]) -> None:
        self._code, self._at, self._depth = code, 0, 0

    @property
    def now(self) -> Token:
        """Return the next token."""
        return self._code[self._at]

    def fault(self, want: str) -> TemplateError:
        """Return the error that another token was expected."""
        found = "the end" if self.now.kind == "end" else self.now.text
        return TemplateError(f"line {self.now.line}: want {want}, got {brief(found)}")

    def take(self) -> Token:
        """Return the next token and skip it."""
        token = self.now
        if token.kind != "end":
            self._at += 1
        return token

    def skip(self, kind: str, *texts: str) -> bool:
        """Skip the next token if it is one of these."""
        found = self.now.kind == kind and self.now.text in texts
        if found:
            self._at += 1
        return found

    def expect(self, kind: str, text: str | None = None) -> str:
        """Return the next token, which must be of a kind or have a certain text."""
        if self.now.kind != kind or (text is not None and self.now.text != text):
            raise self.fault(f"a {kind}" if text is None else text)
        return self.take().text

    def end(self) -> None:
        """Refuse further tokens."""
        if self.now.kind != "end":
            raise self.fault("the end")

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise TemplateError(f"line {self.now.line}: nests deeper than {DEEPEST} levels")
        yield
        self._depth -= 1

    # --- from the loosest binding to the tightest ---------------------------------------------------------------------

    def tuple(self, conditional: bool = True) -> Expression:
        """Parse an expression, or several with commas, which are a tuple."""
        first = self.expression(conditional)
        if not (self.now.kind == "sign" and self.now.text == ","):
            return first
        items = [first]
        while self.skip("sign", ","):
            if self.now.kind == "end" or (self.now.kind == "sign" and self.now.text in ")="):
                break
            items.append(self.expression(conditional))
        return ListLiteral(tuple(items), True)

    def expression(self, conditional: bool = True) -> Expression:
        """Parse one expression."""
        with self._deeper():
            found = self._logic("or")
            while conditional and self.skip("name", "if"):
                condition = self._logic("or")
                otherwise = self.expression() if self.skip("name", "else") else Literal(UNDEFINED)
                found = Conditional(condition, found, otherwise)
            return found

    def _logic(self, keyword: str) -> Expression:
        inner: Callable[[], Expression] = self._not if keyword == "and" else lambda: self._logic("and")
        found = inner()
        while self.skip("name", keyword):
            found = Logic(found, inner(), keyword == "or")
        return found

    def _not(self) -> Expression:
        if not self.skip("name", "not"):
            return self._compare()
        with self._deeper():
            return Not(self._not())

    def _compare(self) -> Expression:
        first, rest = self._math(1), list[tuple[str, Expression]]()
        while True:
            if self.now.kind == "sign" and self.now.text in COMPARISONS:
                rest.append((self.take().text, self._math(1)))
            elif self.skip("name", "in"):
                rest.append(("in", self._math(1)))
            elif self.now.text == "not" and self._code[self._at + 1].text == "in" and self.now.kind == "name":
                self._at += 2
                rest.append(("not in", self._math(1)))
            else:
                return Compare(first, tuple(rest)) if rest else first

    def _math(self, level: int) -> Expression:
        left = self._unary()
        while self.now.kind == "sign" and LEVELS.get(self.now.text, 0) >= level:
            sign = self.take().text
            left = Binary(sign, left, self._math(LEVELS[sign] + 1))
        return left

    def _unary(self, filtered: bool = True) -> Expression:
        if self.now.kind == "sign" and self.now.text in "+-":
            sign = self.take().text
            with self._deeper():
                found: Expression = Binary(sign, Literal(0), self._unary(False))
        else:
            found = self._postfix(self._primary())
        return self._applied(found) if filtered else found

    def _applied(self, found: Expression) -> Expression:
        """Parse filters and tests."""
        while True:
            if self.skip("sign", "|"):
                name = self.expect("name")
                found = FilterOrTest(found, self._known("filter", name), self._arguments_if_any())
            elif self.skip("name", "is"):
                negated = self.skip("name", "not")
                function = self._known("test", self.expect("name"))
                found = FilterOrTest(found, function, self._of_test())
                found = Not(found) if negated else found
            else:
                return found

    def filters(self, found: Expression) -> Expression:
        """Parse the filters of an expression, at least one."""
        name = self.expect("name")
        return self._applied(FilterOrTest(found, self._known("filter", name), self._arguments_if_any()))

    def _known(self, what: str, name: str) -> Function:
        try:
            return Function(name, known(TESTS if what == "test" else FILTERS, name, what))
        except TemplateError as fault:
            raise TemplateError(f"line {self.now.line}: {fault}") from None

    def _of_test(self) -> Arguments:
        if self.now.kind == "sign" and self.now.text == "(":
            return self.arguments()
        keyword = self.now.kind == "name" and self.now.text not in AFTER_TEST
        if (
            keyword
            or self.now.kind in ("string", "int", "float")
            or (self.now.kind == "sign" and self.now.text in "[{")
        ):
            return Arguments((self._postfix(self._primary()),))
        return Arguments()

    def _arguments_if_any(self) -> Arguments:
        return self.arguments() if self.now.kind == "sign" and self.now.text == "(" else Arguments()

    def arguments(self) -> Arguments:
        """Parse the arguments of a call."""
        given: list[Expression] = []
        named: list[tuple[str, Expression]] = []
        self.expect("sign", "(")
        while not self.skip("sign", ")"):
            following = self._code[min(self._at + 1, len(self._code) - 1)]
            if self.now.kind == "name" and following.kind == "sign" and following.text == "=":
                name = self.take().text
                self.take()
                named.append((name, self.expression()))
            elif named:
                raise self.fault("name=value after the first of its kind")
            else:
                given.append(self.expression())
            if not self.skip("sign", ",") and not (self.now.kind == "sign" and self.now.text == ")"):
                raise self.fault(", or )")
        return Arguments(tuple(given), tuple(named))

    def _postfix(self, found: Expression) -> Expression:
        while self.now.kind == "sign" and self.now.text in (".", "[", "("):
            if self.now.text == "(":
                found = Call(found, self.arguments())
            elif self.skip("sign", "."):
                if self.now.kind == "int":
                    found = Item(found, Literal(self._whole()))
                else:
                    found = Attribute(found, self.expect("name"))
            else:
                self.take()
                found = self._subscript(found)
                self.expect("sign", "]")
        return found

    def _subscript(self, found: Expression) -> Expression:
        bounds: list[Expression] = [Literal(None)]
        sliced = False
        while not (self.now.kind == "sign" and self.now.text == "]") and len(bounds) <= 3:
            if self.skip("sign", ":"):
                sliced = True
                bounds.append(Literal(None))
            else:
                bounds[-1] = self.expression()
                if not (self.now.kind == "sign" and self.now.text in ":]"):
                    raise self.fault("]")
        if not sliced:
            return Item(found, bounds[0])
        if len(bounds) > 3:
            raise self.fault("]")
        start, stop, step = (*bounds, Literal(None))[:3]
        return Slice(found, (start, stop, step))

    def _primary(self) -> Expression:
        token = self.now
        if token.kind == "string":
            text = ""
            while self.now.kind == "string":
                text += unescaped(self.take().text)
            return Literal(literal(text))
        if token.kind == "name":
            self.take()
            return Literal(CONSTANTS[token.text]) if token.text in CONSTANTS else Variable(token.text)
        if token.kind == "int":
            return Literal(self._whole())
        if token.kind == "float":
            return Literal(float(self.take().text.replace("_", "")))
        if self.skip("sign", "("):
            return self._bracketed()
        if self.skip("sign", "["):
            return ListLiteral(tuple(self._listed("]")), False)
        if self.skip("sign", "{"):
            return self._table()
        raise self.fault("a value")

    def _whole(self) -> int:
        digits = self.expect("int").replace("_", "")
        if len(digits) > MOST_DIGITS:
            raise TemplateError(f"line {self.now.line}: want a number of at most {MOST_DIGITS} digits, got more")
        return int(digits)

    def _bracketed(self) -> Expression:
        if self.skip("sign", ")"):
            return ListLiteral((), True)
        found = self.tuple()
        self.expect("sign", ")")
        return found

    def _listed(self, closing: str) -> Iterator[Expression]:
        while not self.skip("sign", closing):
            yield self.expression()
            if not self.skip("sign", ",") and not (self.now.kind == "sign" and self.now.text == closing):
                raise self.fault(f", or {closing}")

    def _table(self) -> Expression:
        pairs: list[tuple[Expression, Expression]] = []
        while not self.skip("sign", "}"):
            key = self.expression()
            self.expect("sign", ":")
            pairs.append((key, self.expression()))
            if not self.skip("sign", ",") and not (self.now.kind == "sign" and self.now.text == "}"):
                raise self.fault(", or }")
        return DictLiteral(tuple(pairs))
