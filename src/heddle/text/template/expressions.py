"""Expressions of a template; each has a value, which gives access only to its keys and to known methods."""

from collections.abc import Mapping
from dataclasses import dataclass

from heddle.text.template.marked import MarkedText
from heddle.text.template.methods import method
from heddle.text.template.operations import BINARY, COMPARE, item, kind, part
from heddle.text.template.rendering import Expression, Rendering
from heddle.text.template.values import Function, LoopState, TemplateError, Undefined, Value, truth


@dataclass(frozen=True)
class Literal:
    """A literal: a string, a number, true, false or none."""

    value: Value

    def evaluate(self, run: Rendering) -> Value:
        return self.value


@dataclass(frozen=True)
class Variable:
    """A variable."""

    name: str

    def evaluate(self, run: Rendering) -> Value:
        found = run.scope.find(self.name)
        return Undefined(self.name) if isinstance(found, Undefined) else found


@dataclass(frozen=True)
class ListLiteral:
    """A list or tuple literal."""

    items: tuple[Expression, ...]
    fixed: bool  # a tuple

    def evaluate(self, run: Rendering) -> Value:
        values = [run.value(item) for item in self.items]
        return tuple(values) if self.fixed else values


@dataclass(frozen=True)
class DictLiteral:
    """A dict literal."""

    pairs: tuple[tuple[Expression, Expression], ...]

    def evaluate(self, run: Rendering) -> Value:
        return {_key(run.value(key)): run.value(value) for key, value in self.pairs}


def _key(value: Value) -> Value:
    if isinstance(value, MarkedText | int | float | None):
        return value
    raise TemplateError(f"want a text or a number as a key, got {kind(value)}")


@dataclass(frozen=True)
class Attribute:
    """`value.name`: a known method, else a key."""

    of: Expression
    name: str

    def evaluate(self, run: Rendering) -> Value:
        value = run.value(self.of)
        if isinstance(value, LoopState):
            return value.field(self.name)
        return method(value, self.name) or item(value, MarkedText(self.name))


@dataclass(frozen=True)
class Item:
    """`value[key]`."""

    of: Expression
    key: Expression

    def evaluate(self, run: Rendering) -> Value:
        value = run.value(self.of)
        key = run.value(self.key)
        if isinstance(value, LoopState) and isinstance(key, MarkedText):
            return value.field(key.plain)
        return item(value, key)


@dataclass(frozen=True)
class Slice:
    """`value[start:stop:step]`."""

    of: Expression
    bounds: tuple[Expression, Expression, Expression]

    def evaluate(self, run: Rendering) -> Value:
        value = run.value(self.of)
        start, stop, step = (run.value(bound) for bound in self.bounds)
        return part(run, value, (start, stop, step))


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call."""

    given: tuple[Expression, ...] = ()
    named: tuple[tuple[str, Expression], ...] = ()

    def call(self, run: Rendering, function: Function, *first: Value) -> Value:
        """Call a known function; wrong arguments are an error of the template."""
        given = [run.value(value) for value in self.given]
        named: Mapping[str, Value] = {name: run.value(value) for name, value in self.named}
        try:
            return function.body(run, *first, *given, **named)
        except (TypeError, ValueError, ArithmeticError, LookupError):  # too many, a wrong name, a number without sense
            raise TemplateError(f"{function.name} cannot take these arguments") from None


@dataclass(frozen=True)
class Call:
    """`function(arguments)`."""

    of: Expression
    arguments: Arguments

    def evaluate(self, run: Rendering) -> Value:
        function = run.value(self.of)
        if isinstance(function, Undefined):
            raise function.fault()
        if not isinstance(function, Function):
            raise TemplateError(f"cannot call {kind(function)}")
        return self.arguments.call(run, function)


@dataclass(frozen=True)
class FilterOrTest:
    """`value | filter(arguments)` or `value is test(arguments)`."""

    of: Expression
    function: Function
    arguments: Arguments

    def evaluate(self, run: Rendering) -> Value:
        return self.arguments.call(run, self.function, run.value(self.of))


@dataclass(frozen=True)
class Not:
    """`not value`."""

    of: Expression

    def evaluate(self, run: Rendering) -> Value:
        return not truth(run.value(self.of))


@dataclass(frozen=True)
class Logic:
    """`left and right`, `left or right`: short-circuit evaluation."""

    left: Expression
    right: Expression
    stop: bool  # the truth of the left side at which it is the answer: true for `or`

    def evaluate(self, run: Rendering) -> Value:
        left = run.value(self.left)
        return left if truth(left) is self.stop else run.value(self.right)


@dataclass(frozen=True)
class Binary:
    """Arithmetic on two values, or concatenation."""

    sign: str
    left: Expression
    right: Expression

    def evaluate(self, run: Rendering) -> Value:
        left = run.value(self.left)
        return BINARY[self.sign](run, left, run.value(self.right))


@dataclass(frozen=True)
class Compare:
    """A chain of comparisons: `1 < x <= 3`."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]

    def evaluate(self, run: Rendering) -> Value:
        left = run.value(self.first)
        for sign, expression in self.rest:
            right = run.value(expression)
            if not COMPARE[sign](run, left, right):
                return False
            left = right
        return True


@dataclass(frozen=True)
class Conditional:
    """`then if condition else otherwise`."""

    condition: Expression
    then: Expression
    otherwise: Expression

    def evaluate(self, run: Rendering) -> Value:
        return run.value(self.then if truth(run.value(self.condition)) else self.otherwise)
