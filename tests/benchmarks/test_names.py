"""Benchmarks are run by hand and seldom: every name that one imports must still be there."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.core import MissingExtra

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOCAL = {path.stem: path for path in BENCHMARKS.glob("*.py")}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each `from module import name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def names(path: Path) -> set[str]:
    """Return what a file defines at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return found


@pytest.mark.parametrize("name", sorted(LOCAL))
def test_what_a_benchmark_imports_is_there(name: str) -> None:
    for module, wanted in imports(LOCAL[name]):
        if module in LOCAL:
            assert wanted in names(LOCAL[module]), f"{module} has no {wanted}"
        elif module.split(".")[0] == "heddle":
            try:
                home = importlib.import_module(module)
            except MissingExtra as error:
                pytest.skip(str(error))
            assert wanted in dir(home) or importlib.util.find_spec(f"{module}.{wanted}"), f"{module} has no {wanted}"
