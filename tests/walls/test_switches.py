"""Walls: outside its own package, code asks an object to act; it does not ask which kind the object is.

A new kind of model, of rows or of decoding is then one file. Each family may be asked its kind a few times at most.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.data.rows import RowPlan, RowsConfig
from heddle.decoding.generation import DecodingStrategy
from heddle.models.networks import Model, ModelConfig

SOURCE = Path(__file__).parents[2] / "src" / "heddle"

# Family: its base classes, its own package, and how often others may ask for the kind. Models: presets in two places,
# and the three objectives, whose check is compiled into the graph of a step.
FAMILIES: dict[str, tuple[tuple[type, ...], str, int]] = {
    "models": ((Model, ModelConfig), "models", 5),
    "row plans": ((RowsConfig, RowPlan), "data/rows", 0),
    "decoding strategies": ((DecodingStrategy,), "decoding/generation", 0),
}


def kinds(base: type) -> Iterator[str]:
    """Yield the names of the classes below a base."""
    for kind in base.__subclasses__():
        yield kind.__name__
        yield from kinds(kind)


def switches(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """Yield the lines of `isinstance` and `issubclass` calls, `type(x) is` and `case` patterns on these classes."""
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).startswith("type("):
            asked = node.comparators
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        if names & {part.id for one in asked for part in ast.walk(one) if isinstance(part, ast.Name)}:
            yield node.lineno


@pytest.mark.parametrize("family", FAMILIES)
def test_kinds_are_asked_to_act(family: str) -> None:
    bases, home, most = FAMILIES[family]
    names = {name for base in bases for name in kinds(base)}
    assert len(names) > 2
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(SOURCE / home)
        for line in switches(ast.parse(path.read_text(encoding="utf-8")), names)
    ]
    assert len(found) <= most, "\n".join([f"{len(found)} switches on {family}, at most {most}:", *found])


def test_switches_are_seen() -> None:
    text = "isinstance(m, A)\nisinstance(m, B | C)\ntype(m) is A\nisinstance(m, D)\nmatch m:\n    case C(): pass\n"
    assert sorted(switches(ast.parse(text), {"A", "B", "C"})) == [1, 2, 3, 6]
