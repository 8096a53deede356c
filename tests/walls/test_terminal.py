"""Everything that reaches a terminal goes through one place, which escapes control characters."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "heddle"
DOORS = {
    "cli/terminal.py",
    "cli/console.py",
    "run.py",  # reports in Python and notebooks
    "explain/display/terminal.py",  # renders to a string
}
BARRED = ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write", "Console", "StreamHandler")
FILES = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]


def test_nothing_else_writes_to_a_terminal() -> None:
    assert {file: found for file in FILES if file not in DOORS and (found := barred_calls(file))} == {}


def barred_calls(file: str) -> set[str]:
    """Return the calls in a file that write to a terminal; `heddle.cli.terminal` is the way out."""
    calls = [node.func for node in ast.walk(ast.parse((SOURCE / file).read_text())) if isinstance(node, ast.Call)]
    return {name.removeprefix("logging.").removeprefix("rich.console.") for name in map(dotted, calls)} & set(BARRED)


def dotted(node: ast.expr) -> str:
    """Return a name such as sys.stdout.write, empty for what is none."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
