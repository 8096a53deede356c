"""Statements of a template; each writes, or changes what names mean."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from heddle.text.template.marked import WRITTEN, Marked
from heddle.text.template.operations import iterated, kind, texted
from heddle.text.template.rendering import Expression, Run, Statement
from heddle.text.template.values import Fault, Function, Loop, Namespace, Undefined, Value, truth

Body = tuple[Statement, ...]


class Break(Exception):
    """Leave the loop."""


class Continue(Exception):
    """Go on with the loop's next item."""


@dataclass(frozen=True)
class Write:
    """Text as it stands, or an expression's value as text."""

    of: Expression
    line: int

    def do(self, run: Run) -> None:
        run.write(texted(run, run.value(self.of)))


@dataclass(frozen=True)
class Choose:
    """The first body whose condition holds, or the last one."""

    branches: tuple[tuple[Expression, Body], ...]
    otherwise: Body
    line: int

    def do(self, run: Run) -> None:
        for condition, body in self.branches:
            if truth(run.value(condition)):
                run.do(body)
                return
        run.do(self.otherwise)


@dataclass(frozen=True)
class Target:
    """What takes a value: a name, a field of a namespace, or several names that share a list."""

    names: tuple[str, ...]
    field: str | None = None
    shared: bool = False

    def take(self, run: Run, value: Value) -> None:
        """Give the value to the names in the nearest scope."""
        if self.field is not None:
            owner = run.scope.find(self.names[0])
            if not isinstance(owner, Namespace):
                raise Fault(f"cannot set a field of {kind(owner)}")
            owner.set(self.field, value)
        elif not self.shared:
            run.scope.names[self.names[0]] = value
        else:
            values = iterated(run, value)
            if len(values) != len(self.names):
                raise Fault(f"want {len(self.names)} values, got {len(values)}")
            run.scope.names.update(zip(self.names, values, strict=True))


@dataclass(frozen=True)
class Set:
    """`set name = value`."""

    target: Target
    value: Expression
    line: int

    def do(self, run: Run) -> None:
        self.target.take(run, run.value(self.value))


@dataclass(frozen=True)
class Gather:
    """What a body writes, as one text."""

    body: Body

    def give(self, run: Run) -> Value:
        with run.apart() as gathered, run.inside(run.scope):
            run.do(self.body)
        run.text(sum(map(len, gathered)))
        return Marked("").join(gathered)


@dataclass(frozen=True)
class Inside:
    """A body in a scope of its own, with names that it is given: `with`."""

    names: tuple[tuple[Target, Expression], ...]
    body: Body
    line: int

    def do(self, run: Run) -> None:
        values = [(target, run.value(value)) for target, value in self.names]
        with run.inside(run.scope):
            for target, value in values:
                target.take(run, value)
            run.do(self.body)


@dataclass(frozen=True)
class Generation:
    """What the model is to write: `generation`."""

    body: Body
    line: int

    def do(self, run: Run) -> None:
        text = run.value(Gather(self.body))
        assert isinstance(text, Marked)
        run.write(text.marked(WRITTEN))


@dataclass(frozen=True)
class For:
    """A body for each item of a list, or another one if there is none."""

    target: Target
    over: Expression
    only: Expression | None
    body: Body
    otherwise: Body
    line: int

    def do(self, run: Run) -> None:
        items = iterated(run, run.value(self.over))
        if self.only is not None:
            items = [item for item in items if self._wanted(run, item)]
        outer = run.scope
        loop = Loop(items)
        with suppress(Break):
            for loop.at, item in enumerate(items):
                run.spend()
                with run.inside(outer, {"loop": loop}), suppress(Continue):
                    self.target.take(run, item)
                    run.do(self.body)
        if not items:
            with run.inside(outer):
                run.do(self.otherwise)

    def _wanted(self, run: Run, item: Value) -> bool:
        assert self.only is not None
        with run.inside(run.scope):
            self.target.take(run, item)
            return truth(run.value(self.only))


@dataclass(frozen=True)
class Leave:
    """`break` or `continue`."""

    how: type[Exception]
    line: int

    def do(self, run: Run) -> None:
        raise self.how


@dataclass(frozen=True)
class Macro:
    """A body that can be called, with names for what it is given."""

    name: str
    names: tuple[str, ...]
    defaults: Mapping[str, Expression]
    body: Body
    line: int

    def do(self, run: Run) -> None:
        home = run.scope

        def body(run: Run, /, *given: Value, **named: Value) -> Value:
            line = run.line
            with run.apart() as gathered, run.inside(home):
                self._bind(run, given, named)
                run.do(self.body)
            run.line = line
            run.text(sum(map(len, gathered)))
            return Marked("").join(gathered)

        home.names[self.name] = Function(self.name, body)

    def _bind(self, run: Run, given: Sequence[Value], named: Mapping[str, Value]) -> None:
        if len(given) > len(self.names) or not named.keys() <= set(self.names[len(given) :]):
            raise Fault(f"{self.name} cannot take these arguments")
        scope = run.scope.names
        scope.update(zip(self.names, given, strict=False))
        scope.update(named)
        for name in self.names:
            if name not in scope:
                scope[name] = run.value(self.defaults[name]) if name in self.defaults else Undefined(name)
