"""Walls: who may import whom, and only through the folder's door."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "heddle"

MAY_IMPORT = {
    "core": set(),
    "text": {"core"},
    "data": {"core", "text"},
    "nn": {"core"},
    "models": {"core", "nn"},
    "objectives": {"core", "data", "nn", "models"},
    "decoding": {"core", "nn", "models"},
    "checkpoints": {"core", "text", "nn", "models"},
    "training": {"core", "text", "data", "nn", "models", "objectives", "checkpoints"},
    "tasks": {"core", "text", "data", "models", "decoding", "checkpoints"},
    "inspect": {"core", "text", "data", "models", "decoding", "checkpoints"},
    "comparison": {"core", "recipes", "training", "tasks", "checkpoints"},
    "serving": {"core", "text", "decoding", "checkpoints", "inspect"},
}
ANYTHING = {"recipes", "cli"}  # plus the files at the top: the library's front door
BARRED = {"text": {"torch"}, "cli": set()}


def imports(tree: ast.AST) -> list[str]:
    """Return the dotted names that a file imports."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def violations(room: str, names: list[str]) -> list[str]:
    """Return every import that breaks a wall, seen from a room."""
    bad = []
    for name in names:
        words = name.split(".")
        if words[0] in BARRED.get(room, set()):
            bad.append(f"{room} must not know {words[0]}")
        if words[0] != "heddle" or len(words) == 1:
            continue
        target = words[1]
        if target == room:
            continue
        if target == "cli":
            bad.append(f"{room} imports cli")
        elif room in MAY_IMPORT and target not in MAY_IMPORT[room]:
            bad.append(f"{room} imports {target}")
        elif len(words) > 2 and not (target == "core" and words[2] == "shapes"):
            bad.append(f"{room} reaches into {name} instead of its folder's door")
    return bad


FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_room_keeps_its_walls(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0]
    assert room in MAY_IMPORT or room in ANYTHING
    assert violations(room, imports(ast.parse(path.read_text()))) == []


def test_planted_breaches_are_found() -> None:
    assert violations("nn", ["heddle.models"]) == ["nn imports models"]
    assert violations("text", ["torch"]) == ["text must not know torch"]
    assert violations("training", ["heddle.models.summary"]) != []
    assert violations("data", ["heddle.core.shapes", "heddle.core", "numpy"]) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_file_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400, "split the file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 45, f"{node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_file_says_what_it_holds(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "the first line says what the room holds"
