"""Rendering: one run of a template, with its limits, scopes and output."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from heddle.text.template.marked import MarkedText
from heddle.text.template.values import UNDEFINED, TemplateError, Value

OFTEN = 256  # steps between two checks of the clock
PACE = 256  # characters that cost as much as one step
DEEPEST = 100  # nested expressions and statements, including macros


@dataclass(frozen=True)
class Limits:
    """The limits of a template. Real ones take some thousands of steps and some milliseconds."""

    steps: int = 200_000
    length: int = 1_000_000  # bytes of UTF-8 in the result, characters in any intermediate text
    items: int = 100_000  # in any list
    seconds: float = 0.3  # of the thread's CPU time, which does not depend on other processes


class Expression(Protocol):
    """A node with a value."""

    def evaluate(self, run: "Rendering") -> Value:
        """Return the value."""


class Statement(Protocol):
    """A node that writes output or sets variables."""

    @property
    def line(self) -> int:
        """Return its line in the source."""

    def execute(self, run: "Rendering") -> None:
        """Execute the statement."""


class Scope:
    """Variables, with an outer scope."""

    __slots__ = ("names", "outer")

    def __init__(self, outer: "Scope | None" = None, names: Mapping[str, Value] | None = None) -> None:
        self.names: dict[str, Value] = {} if names is None else dict(names)
        self.outer = outer

    def find(self, name: str) -> Value:
        """Return the value of a variable, from the innermost scope that has it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return UNDEFINED


class Rendering:
    """One rendering: counts steps and characters against the limits, and knows the line of an error."""

    def __init__(self, limits: Limits, scope: Scope) -> None:
        self.limits, self.scope, self.line = limits, scope, 1
        self.out: list[MarkedText] = []
        self._spent = self._depth = self._length = 0
        self._look = OFTEN
        self._deadline = time.thread_time() + limits.seconds

    def spend(self, steps: int = 1) -> None:
        """Count steps, and stop at the limit of steps or time."""
        self._spent += steps
        if self._spent > self.limits.steps:
            raise TemplateError(f"takes more than {self.limits.steps} steps")
        if self._spent >= self._look:
            self._look = self._spent + OFTEN
            if time.thread_time() > self._deadline:
                raise TemplateError(f"takes longer than {self.limits.seconds} s")

    def text(self, length: int) -> None:
        """Count a new text."""
        if length > self.limits.length:
            raise TemplateError(f"makes a text of more than {self.limits.length} characters")
        self.spend(1 + length // PACE)

    def items(self, count: int) -> None:
        """Count a new list."""
        if count > self.limits.items:
            raise TemplateError(f"makes a list of more than {self.limits.items} items")
        self.spend(1 + count // 16)

    def write(self, text: MarkedText) -> None:
        """Add to the output."""
        self.text(len(text))
        self._length += len(text.plain.encode("utf-8", "surrogatepass"))
        if self._length > self.limits.length:
            raise TemplateError(f"writes more than {self.limits.length} bytes")
        self.out.append(text)

    def value(self, node: "Expression") -> Value:
        """Evaluate an expression."""
        self.spend()
        with self.deeper():
            return node.evaluate(self)

    def execute(self, body: "Sequence[Statement]") -> None:
        """Execute statements in order."""
        with self.deeper():
            for statement in body:
                self.spend()
                self.line = statement.line
                statement.execute(self)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Enter one level of nesting, up to the limit."""
        if self._depth >= DEEPEST:
            raise TemplateError(f"nests deeper than {DEEPEST} levels")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def inside(self, outer: Scope, names: Mapping[str, Value] | None = None) -> Iterator[None]:
        """Run in a new scope."""
        kept, self.scope = self.scope, Scope(outer, names)
        try:
            yield
        finally:
            self.scope = kept

    @contextmanager
    def apart(self) -> Iterator[list[MarkedText]]:
        """Capture output instead of rendering it; it counts when it is rendered."""
        kept, length = self.out, self._length
        gathered: list[MarkedText] = []
        self.out = gathered
        try:
            yield gathered
        finally:
            self.out, self._length = kept, length
