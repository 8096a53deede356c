"""Rendering: one run of a template, with its limits, scopes and output."""

import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

from heddle.text.template.marked import MarkedText
from heddle.text.template.values import Function, TemplateError, Value

STEPS_PER_CLOCK_CHECK = 256  # steps between two checks of the clock
CHARACTERS_PER_STEP = 256  # characters that cost as much as one step
BAD_ARGUMENTS = (TypeError, ValueError, ArithmeticError, LookupError)  # arguments too many, of a wrong name or kind
MAX_DEPTH = 100  # nested expressions and statements, including macros


@dataclass(frozen=True)
class Limits:
    """The limits of a template. Real ones take some thousands of steps and some milliseconds."""

    steps: int = 200_000
    length: int = 1_000_000  # bytes of UTF-8 in the result, characters in any intermediate text
    items: int = 100_000  # in any list
    seconds: float = 0.3  # of the thread's CPU time, which does not depend on other processes


Scope = ChainMap[str, Value]  # variables, the innermost first
Handlers = Mapping[type[nodes.Node], Callable[["Rendering", Any], Value]]


class Rendering:
    """One rendering: counts steps and characters against the limits."""

    def __init__(self, limits: Limits, scope: Scope) -> None:
        self.limits, self.scope = limits, scope
        self.out: list[MarkedText] = []
        self._steps = self._depth = self._length = 0
        self._next_clock_check = STEPS_PER_CLOCK_CHECK
        self._deadline = time.thread_time() + limits.seconds

    def count_steps(self, steps: int = 1) -> None:
        """Count steps, and stop at the limit of steps or time."""
        self._steps += steps
        if self._steps > self.limits.steps:
            raise TemplateError(f"takes more than {self.limits.steps} steps")
        if self._steps >= self._next_clock_check:
            self._next_clock_check = self._steps + STEPS_PER_CLOCK_CHECK
            if time.thread_time() > self._deadline:
                raise TemplateError(f"takes longer than {self.limits.seconds} s")

    def text(self, length: int) -> None:
        """Count a new text."""
        if length > self.limits.length:
            raise TemplateError(f"makes a text of more than {self.limits.length} characters")
        self.count_steps(1 + length // CHARACTERS_PER_STEP)

    def items(self, count: int) -> None:
        """Count a new list."""
        if count > self.limits.items:
            raise TemplateError(f"makes a list of more than {self.limits.items} items")
        self.count_steps(1 + count // 16)

    def write(self, text: MarkedText) -> None:
        """Add to the output."""
        self.text(len(text))
        self._length += len(text.plain.encode("utf-8", "surrogatepass"))
        if self._length > self.limits.length:
            raise TemplateError(f"writes more than {self.limits.length} bytes")
        self.out.append(text)

    def handle(self, handlers: Handlers, node: nodes.Node) -> Value:
        """Evaluate or execute one node of the syntax tree; an error inside gets its line."""
        self.count_steps()
        try:
            if type(node) not in handlers:
                raise TemplateError(f"no statement is called {type(node).__name__.lower()!r} here")
            with self.nested():
                return handlers[type(node)](self, node)
        except (TemplateError, *BAD_ARGUMENTS) as error:
            fault = error if isinstance(error, TemplateError) else TemplateError("cannot be evaluated")
            fault.line = fault.line or node.lineno
            raise fault from None

    def nested(self) -> "Rendering":
        """Enter one level of nesting, up to the limit; `with` leaves it again."""
        if self._depth >= MAX_DEPTH:
            raise TemplateError(f"nests deeper than {MAX_DEPTH} levels")
        self._depth += 1
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._depth -= 1

    @contextmanager
    def in_scope(self, outer: Scope, names: Mapping[str, Value] | None = None) -> Iterator[None]:
        """Run in a new scope."""
        kept, self.scope = self.scope, outer.new_child(dict(names or {}))
        try:
            yield
        finally:
            self.scope = kept

    def capture(self, outer: Scope, write: Callable[[], None]) -> MarkedText:
        """Return what is written in a new scope, instead of adding it to the output."""
        kept, length, self.out = self.out, self._length, []
        try:
            with self.in_scope(outer):
                write()
            self.text(sum(map(len, self.out)))
            return MarkedText("").join(self.out)
        finally:
            self.out, self._length = kept, length


def call(run: Rendering, function: Function, /, *given: Value, **named: Value) -> Value:
    """Call a function; wrong arguments are an error of the template."""
    try:
        return function.body(run, *given, **named)
    except BAD_ARGUMENTS:
        raise TemplateError(f"{function.name} cannot take these arguments") from None
