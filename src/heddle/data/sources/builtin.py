"""Built-in data: the standard library of the running Python, so that nothing must be downloaded."""

import ast
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from heddle.core import EnvironmentFault, part
from heddle.data.files import UnreadableFile, open_text
from heddle.data.sources.documents import Document, DocumentCounter, FileStamp, SkipReason, SourceConfig, read_bytes

# Left out: installed packages, tests, and the tables of character sets, which are neither prose nor programs.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}
LARGEST = 1 << 22  # bytes; no module comes near


@part("builtin")
class BuiltinSource(SourceConfig):
    """The standard library's modules: sources, docstrings alone, or both; a module is never divided by a split.

    part: which text of Python's standard library: sources, docstrings or both.
    """

    part: Literal["sources", "docstrings", "both"] = "sources"

    def documents(self, counter: DocumentCounter) -> Iterator[Document]:
        """Yield the modules in the order of their names."""
        for name, path in modules():
            source = _read(path)
            texts: list[str | SkipReason] = []
            if self.part != "docstrings":
                texts.append(source)
            if self.part != "sources":
                texts.append(source if isinstance(source, SkipReason) else docstrings(source))
            for text in texts:
                counter.see()
                if isinstance(text, SkipReason) or not text.strip():
                    counter.skip(text if isinstance(text, SkipReason) else SkipReason.EMPTY, name)
                else:
                    yield Document(text, name, group=name)

    def stamps(self) -> list[FileStamp]:
        """Return each module's name and size: the same Python gives the same stamps wherever it is installed."""
        return [[name, path.stat().st_size] for name, path in modules()]


def modules() -> list[tuple[str, Path]]:
    """Return the dotted name and the file of each module, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT and name.isidentifier()]
        words = Path(folder).relative_to(root).parts
        names = [Path(file).stem for file in files if file.endswith(".py")]
        found += [(".".join((*words, name)), Path(folder, f"{name}.py")) for name in names if name.isidentifier()]
    if not found:
        raise EnvironmentFault(f"{root}: this Python has no sources of its standard library to learn from")
    return sorted(found)


def _read(path: Path) -> str | SkipReason:
    try:
        with open_text(path) as stream:
            return read_bytes(stream.read(LARGEST))
    except UnreadableFile as fault:
        return fault.reason


def docstrings(source: str) -> str:
    """Return the docstrings of a module, its classes and functions, in the order of the source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that newer Pythons frown upon
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and text.strip():
                found.append((node.body[0].lineno, inspect.cleandoc(text)))
    return "".join(f"{text}\n\n" for _, text in sorted(found))
