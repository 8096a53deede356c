"""Statements of a template; each writes output or sets variables."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from heddle.text.template.marked import WRITTEN, MarkedText
from heddle.text.template.operations import iterate, kind, to_text
from heddle.text.template.rendering import Expression, Rendering, Statement
from heddle.text.template.values import Function, LoopState, Namespace, TemplateError, Undefined, Value, truth

Body = tuple[Statement, ...]


class Break(Exception):
    """Ends the loop."""


class Continue(Exception):
    """Continues with the next item of the loop."""


@dataclass(frozen=True)
class OutputStatement:
    """Literal text, or the value of an expression as text."""

    of: Expression
    line: int

    def execute(self, run: Rendering) -> None:
        run.write(to_text(run, run.value(self.of)))


@dataclass(frozen=True)
class If:
    """`if`: the first body whose condition is true, or the else body."""

    branches: tuple[tuple[Expression, Body], ...]
    otherwise: Body
    line: int

    def execute(self, run: Rendering) -> None:
        for condition, body in self.branches:
            if truth(run.value(condition)):
                run.execute(body)
                return
        run.execute(self.otherwise)


@dataclass(frozen=True)
class Target:
    """The target of an assignment: a variable, a field of a namespace, or several variables to unpack."""

    names: tuple[str, ...]
    field: str | None = None
    shared: bool = False

    def take(self, run: Rendering, value: Value) -> None:
        """Assign the value in the innermost scope."""
        if self.field is not None:
            owner = run.scope.find(self.names[0])
            if not isinstance(owner, Namespace):
                raise TemplateError(f"cannot set a field of {kind(owner)}")
            owner.set(self.field, value)
        elif not self.shared:
            run.scope.names[self.names[0]] = value
        else:
            values = iterate(run, value)
            if len(values) != len(self.names):
                raise TemplateError(f"want {len(self.names)} values, got {len(values)}")
            run.scope.names.update(zip(self.names, values, strict=True))


@dataclass(frozen=True)
class Set:
    """`set name = value`."""

    target: Target
    value: Expression
    line: int

    def execute(self, run: Rendering) -> None:
        self.target.take(run, run.value(self.value))


@dataclass(frozen=True)
class Capture:
    """The output of a body, as one text."""

    body: Body

    def evaluate(self, run: Rendering) -> Value:
        with run.apart() as gathered, run.inside(run.scope):
            run.execute(self.body)
        run.text(sum(map(len, gathered)))
        return MarkedText("").join(gathered)


@dataclass(frozen=True)
class With:
    """`with`: a body in a new scope with variables."""

    names: tuple[tuple[Target, Expression], ...]
    body: Body
    line: int

    def execute(self, run: Rendering) -> None:
        values = [(target, run.value(value)) for target, value in self.names]
        with run.inside(run.scope):
            for target, value in values:
                target.take(run, value)
            run.execute(self.body)


@dataclass(frozen=True)
class Generation:
    """`generation`: the part that the model writes."""

    body: Body
    line: int

    def execute(self, run: Rendering) -> None:
        text = run.value(Capture(self.body))
        assert isinstance(text, MarkedText)
        run.write(text.marked(WRITTEN))


@dataclass(frozen=True)
class For:
    """`for`: a body for each item of a list, or the else body if there is none."""

    target: Target
    over: Expression
    only: Expression | None
    body: Body
    otherwise: Body
    line: int

    def execute(self, run: Rendering) -> None:
        items = iterate(run, run.value(self.over))
        if self.only is not None:
            items = [item for item in items if self._wanted(run, item)]
        outer = run.scope
        loop = LoopState(items)
        with suppress(Break):
            for loop.at, item in enumerate(items):
                run.spend()
                with run.inside(outer, {"loop": loop}), suppress(Continue):
                    self.target.take(run, item)
                    run.execute(self.body)
        if not items:
            with run.inside(outer):
                run.execute(self.otherwise)

    def _wanted(self, run: Rendering, item: Value) -> bool:
        assert self.only is not None
        with run.inside(run.scope):
            self.target.take(run, item)
            return truth(run.value(self.only))


@dataclass(frozen=True)
class LoopControl:
    """`break` or `continue`."""

    signal: type[Exception]
    line: int

    def execute(self, run: Rendering) -> None:
        raise self.signal


@dataclass(frozen=True)
class Macro:
    """`macro`: a body that can be called with arguments."""

    name: str
    names: tuple[str, ...]
    defaults: Mapping[str, Expression]
    body: Body
    line: int

    def execute(self, run: Rendering) -> None:
        home = run.scope

        def body(run: Rendering, /, *given: Value, **named: Value) -> Value:
            line = run.line
            with run.apart() as gathered, run.inside(home):
                self._bind(run, given, named)
                run.execute(self.body)
            run.line = line
            run.text(sum(map(len, gathered)))
            return MarkedText("").join(gathered)

        home.names[self.name] = Function(self.name, body)

    def _bind(self, run: Rendering, given: Sequence[Value], named: Mapping[str, Value]) -> None:
        if len(given) > len(self.names) or not named.keys() <= set(self.names[len(given) :]):
            raise TemplateError(f"{self.name} cannot take these arguments")
        scope = run.scope.names
        scope.update(zip(self.names, given, strict=False))
        scope.update(named)
        for name in self.names:
            if name not in scope:
                scope[name] = run.value(self.defaults[name]) if name in self.defaults else Undefined(name)
