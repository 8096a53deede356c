"""Evaluates the expressions of a template's syntax tree; a value gives access only to its keys and known methods."""

from jinja2 import nodes

from heddle.text.template.filters import FILTERS, item_or_method, known
from heddle.text.template.marked import EMPTY, MarkedText, literal
from heddle.text.template.methods import joined, method
from heddle.text.template.operations import BINARY, COMPARE, Scalar, bounded, item, iterate, part, to_str
from heddle.text.template.rendering import Handlers, Rendering, call
from heddle.text.template.tests import TESTS
from heddle.text.template.values import Function, TemplateError, Undefined, Value, kind


def evaluate(run: Rendering, node: nodes.Node) -> Value:
    """Return the value of an expression."""
    return run.handle(EXPRESSIONS, node)


def _const(run: Rendering, node: nodes.Const) -> Value:
    if isinstance(node.value, str):
        return literal(node.value)
    return bounded(node.value) if isinstance(node.value, int | float) else None


def _dict(run: Rendering, node: nodes.Dict) -> Value:
    return {_key(evaluate(run, pair.key)): evaluate(run, pair.value) for pair in node.items}


def _key(value: Value) -> Value:
    if isinstance(value, Scalar):
        return value
    raise TemplateError(f"want a text or a number as a key, got {kind(value)}")


# --- parts and calls --------------------------------------------------------------------------------------------------


def _attribute(run: Rendering, node: nodes.Getattr) -> Value:
    """Return `value.name`: a method, else an item."""
    value = evaluate(run, node.node)
    return method(value, node.attr) or item(value, MarkedText(node.attr))


def _item(run: Rendering, node: nodes.Getitem) -> Value:
    value = evaluate(run, node.node)
    if isinstance(node.arg, nodes.Slice):
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return part(run, value, [None if bound is None else evaluate(run, bound) for bound in bounds])
    return item_or_method(value, evaluate(run, node.arg))


def apply(run: Rendering, function: Function, node: nodes.Call | nodes.Filter | nodes.Test, *first: Value) -> Value:
    """Call a function with some values and the arguments of a node."""
    given = [evaluate(run, one) for one in node.args]
    if node.dyn_args is not None:
        given += iterate(run, evaluate(run, node.dyn_args))
    named: dict[str, Value] = {}
    for pair in node.kwargs:
        assert isinstance(pair, nodes.Keyword)
        named[pair.key] = evaluate(run, pair.value)
    if node.dyn_kwargs is not None:
        table = evaluate(run, node.dyn_kwargs)
        if not isinstance(table, dict):
            raise TemplateError(f"want a mapping after **, got {kind(table)}")
        named |= {to_str(name): value for name, value in table.items()}
    return call(run, function, *first, *given, **named)


def _call(run: Rendering, node: nodes.Call) -> Value:
    function = evaluate(run, node.node)
    if isinstance(function, Undefined):
        raise function.fault()
    if not isinstance(function, Function):
        raise TemplateError(f"cannot call {kind(function)}")
    return apply(run, function, node)


def _filter(run: Rendering, node: nodes.Filter) -> Value:
    assert node.node is not None  # only in blocks
    return apply(run, known(FILTERS, node.name, "filter"), node, evaluate(run, node.node))


def filter_block(run: Rendering, node: nodes.Filter | None, text: Value) -> Value:
    """Apply the filters of a block to its text, which the syntax tree leaves out."""
    if node is None:
        return text
    assert node.node is None or isinstance(node.node, nodes.Filter)
    return apply(run, known(FILTERS, node.name, "filter"), node, filter_block(run, node.node, text))


def _test(run: Rendering, node: nodes.Test) -> Value:
    return bool(apply(run, known(TESTS, node.name, "test"), node, evaluate(run, node.node)))


# --- operators --------------------------------------------------------------------------------------------------------


def _binary(run: Rendering, node: nodes.BinExpr) -> Value:
    return BINARY[node.operator](run, evaluate(run, node.left), evaluate(run, node.right))


def _sign(run: Rendering, node: nodes.UnaryExpr) -> Value:
    return BINARY[node.operator](run, 0, evaluate(run, node.node))


def _compare(run: Rendering, node: nodes.Compare) -> Value:
    left = evaluate(run, node.expr)
    for operand in node.ops:
        right = evaluate(run, operand.expr)
        if not COMPARE[operand.op](run, left, right):
            return False
        left = right
    return True


def _conditional(run: Rendering, node: nodes.CondExpr) -> Value:
    if evaluate(run, node.test):
        return evaluate(run, node.expr1)
    return Undefined() if node.expr2 is None else evaluate(run, node.expr2)


ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)
EXPRESSIONS: Handlers = {
    nodes.Name: lambda run, node: run.scope.get(node.name, Undefined(node.name)),
    nodes.Const: _const,
    nodes.TemplateData: lambda run, node: literal(node.data),
    nodes.List: lambda run, node: [evaluate(run, one) for one in node.items],
    nodes.Tuple: lambda run, node: tuple(evaluate(run, one) for one in node.items),
    nodes.Dict: _dict,
    nodes.Getattr: _attribute,
    nodes.Getitem: _item,
    nodes.Call: _call,
    nodes.Filter: _filter,
    nodes.Test: _test,
    **dict.fromkeys(ARITHMETIC, _binary),
    **dict.fromkeys((nodes.Pos, nodes.Neg), _sign),
    nodes.Concat: lambda run, node: joined(run, EMPTY, [evaluate(run, one) for one in node.nodes]),
    nodes.Compare: _compare,
    nodes.And: lambda run, node: evaluate(run, node.left) and evaluate(run, node.right),
    nodes.Or: lambda run, node: evaluate(run, node.left) or evaluate(run, node.right),
    nodes.Not: lambda run, node: not evaluate(run, node.node),
    nodes.CondExpr: _conditional,
}
