"""Executes the statements of a template's syntax tree; each writes output or sets variables."""

from collections.abc import Mapping, Sequence

from jinja2 import nodes

from heddle.text.template.expressions import evaluate, filter_block
from heddle.text.template.marked import MarkedText
from heddle.text.template.operations import iterate, to_text
from heddle.text.template.rendering import Handlers, Rendering
from heddle.text.template.values import Function, Namespace, TemplateError, Undefined, Value, kind, loop_state


def execute(run: Rendering, body: Sequence[nodes.Node]) -> None:
    """Execute statements in order."""
    for node in body:
        run.handle(STATEMENTS, node)


def _output(run: Rendering, node: nodes.Output) -> None:
    for one in node.nodes:
        run.write(to_text(run, evaluate(run, one)))


def _if(run: Rendering, node: nodes.If) -> None:
    for branch in (node, *node.elif_):
        if evaluate(run, branch.test):
            return execute(run, branch.body)
    execute(run, node.else_)


# --- variables --------------------------------------------------------------------------------------------------------


def assign(run: Rendering, target: nodes.Node, value: Value) -> None:
    """Set a variable in the innermost scope, several at once, or a field of a namespace."""
    if isinstance(target, nodes.Name):
        run.scope[target.name] = value
    elif isinstance(target, nodes.NSRef):
        owner = run.scope.get(target.name, Undefined(target.name))
        if not isinstance(owner, Namespace):
            raise TemplateError(f"cannot set a field of {kind(owner)}")
        owner.set(target.attr, value)
    elif isinstance(target, nodes.Tuple):
        values = iterate(run, value)
        if len(values) != len(target.items):
            raise TemplateError(f"want {len(target.items)} values, got {len(values)}")
        for one, part in zip(target.items, values, strict=True):
            assign(run, one, part)


def _assign(run: Rendering, node: nodes.Assign) -> None:
    assign(run, node.target, evaluate(run, node.node))


def _assign_block(run: Rendering, node: nodes.AssignBlock) -> None:
    text = run.capture(run.scope, lambda: execute(run, node.body))
    assign(run, node.target, filter_block(run, node.filter, text))


def _filter_block(run: Rendering, node: nodes.FilterBlock) -> None:
    text = run.capture(run.scope, lambda: execute(run, node.body))
    run.write(to_text(run, filter_block(run, node.filter, text)))


def _with(run: Rendering, node: nodes.With) -> None:
    values = [evaluate(run, value) for value in node.values]
    with run.in_scope(run.scope):
        for target, value in zip(node.targets, values, strict=True):
            assign(run, target, value)
        execute(run, node.body)


# --- loops ------------------------------------------------------------------------------------------------------------


class LoopControl(TemplateError):
    """Leaves the body of a loop, by break or continue; an error where there is none."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} stands outside of a loop")
        self.ends_loop = name == "break"


def _loop_control(run: Rendering, node: nodes.Break | nodes.Continue) -> None:
    raise LoopControl(type(node).__name__.lower())


def _for(run: Rendering, node: nodes.For) -> None:
    if node.recursive:
        raise TemplateError("recursive loops are not supported; a macro can call itself")
    items = iterate(run, evaluate(run, node.iter))
    if node.test is not None:
        items = [item for item in items if _wanted(run, node, node.test, item)]
    for at, item in enumerate(items):
        run.count_steps()
        with run.in_scope(run.scope, {"loop": loop_state(items, at)}):
            assign(run, node.target, item)
            try:
                execute(run, node.body)
            except LoopControl as control:
                if control.ends_loop:
                    break
    if not items:
        with run.in_scope(run.scope):
            execute(run, node.else_)


def _wanted(run: Rendering, node: nodes.For, test: nodes.Node, item: Value) -> bool:
    with run.in_scope(run.scope):
        assign(run, node.target, item)
        return bool(evaluate(run, test))


# --- macros -----------------------------------------------------------------------------------------------------------


def _macro(run: Rendering, node: nodes.Macro) -> None:
    home = run.scope

    def body(run: Rendering, /, *given: Value, **named: Value) -> MarkedText:
        def write() -> None:
            _bind(run, node, given, named)
            try:
                execute(run, node.body)
            except LoopControl as fault:
                raise TemplateError(str(fault)) from None

        return run.capture(home, write)

    home[node.name] = Function(node.name, body)


def _bind(run: Rendering, node: nodes.Macro, given: Sequence[Value], named: Mapping[str, Value]) -> None:
    """Set the parameters of a macro."""
    names = [parameter.name for parameter in node.args]
    if len(given) > len(names) or not named.keys() <= set(names[len(given) :]):
        raise TemplateError(f"{node.name} cannot take these arguments")
    scope = run.scope.maps[0]
    scope.update(zip(names, given, strict=False))
    scope.update(named)
    defaults = dict(zip(reversed(names), reversed(node.defaults), strict=False))
    for name in names:
        if name not in scope:
            scope[name] = evaluate(run, defaults[name]) if name in defaults else Undefined(name)


STATEMENTS: Handlers = {
    nodes.Output: _output,
    nodes.If: _if,
    nodes.Assign: _assign,
    nodes.AssignBlock: _assign_block,
    nodes.FilterBlock: _filter_block,
    nodes.With: _with,
    nodes.For: _for,
    nodes.Break: _loop_control,
    nodes.Continue: _loop_control,
    nodes.Macro: _macro,
}
