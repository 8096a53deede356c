"""Walls: which folder may import which; outsiders import from a folder or a group, never from its files."""

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
    "explain": {"core", "text", "data", "nn", "models", "decoding", "checkpoints", "escapes"},
    "comparison": {"core", "text", "data", "models", "recipes", "training", "tasks", "checkpoints"},
    "serving": {"core", "text", "nn", "models", "decoding", "checkpoints", "tasks", "explain"},
}
ANYTHING = {"recipes", "cli"}  # plus the files at the top: the package's front
BARRED = {"text": {"torch"}}

# Groups inside a folder, each with the groups of the same folder that it may import. "" are the folder's own files.
GROUPS = {
    "nn": {
        "kernels": set(),
        "state": set(),
        "base": {"kernels", "state"},
        "layers": {"base", "state"},
        "positions": {"base", "layers"},
        "channels": {"base", "layers"},
        "ends": {"base", "kernels", "layers", "positions", "state"},
        "outputs": {"base", "ends", "layers"},
        "sources": {"base", "ends", "layers", "positions"},
        "attention": {"base", "channels", "kernels", "layers", "positions", "state"},
        "recurrent": {"base", "ends", "layers", "outputs", "positions", "state"},
        "convolution": {"base", "layers", "state"},
        "stack": {"base", "layers", "state"},
        "adapters": {"base", "channels", "stack"},
        "quantization": {"adapters", "base", "channels", "ends", "kernels"},
    },
    "decoding": {
        "constraints": set(),
        "sampling": set(),
        "runtime": {"constraints"},
        "generation": {"constraints", "runtime", "sampling"},
        "search": {"constraints", "generation", "runtime", "sampling"},
        "speculative": {"generation", "runtime", "sampling"},
        "scoring": {"runtime", "sampling"},
        "ctc": {"runtime"},
        "knn": {"runtime", "scoring"},
        "": {"generation", "runtime", "sampling", "search"},
    },
    "checkpoints": {
        "store": set(),
        "hf": {"store", "hf.families"},
        "hf.families": {"hf"},
        "formats": {"hf", "store"},
        "": {"formats", "hf", "store"},
    },
    "models": {
        "networks": set(),
        "narang": {"networks"},
        "presets": {"narang", "networks"},
        "": {"narang", "networks", "presets"},
        "surgery": {"", "networks"},
        "laws": {"networks"},
    },
    "text": {
        "tokenizers": set(),
        "template": set(),
        "chat": {"template", "tokenizers"},
        "formats": {"chat", "tokenizers"},
        "normalize": set(),
    },
    "data": {
        "files": set(),
        "media": set(),
        "sources": {"files", "media"},
        "pictures": {"files", "media", "sources"},
        "shards": {"media", "sources"},
        "rows": {"media", "shards"},
    },
    "objectives": {"": set(), "frames": {""}, "frozen_models": {""}},
    "training": {
        "optimizers": set(),
        "loop": {"optimizers"},
        "callbacks": {"loop", "optimizers"},
        "": {"callbacks", "loop", "optimizers"},
    },
    "tasks": {
        "correcting": set(),
        "inputs": set(),
        "labelling": {"inputs"},
        "metrics": set(),
        "scoring": set(),
        "rescoring": {"metrics", "scoring"},
        "recognition": {"metrics", "rescoring"},
        "generation": {"inputs", "metrics", "recognition", "rescoring", "scoring"},
        "few_shot": {"generation", "labelling"},
        "evaluation": {"few_shot", "generation", "inputs", "labelling", "metrics", "recognition", "scoring"},
        "retrieval": {"evaluation", "generation"},
        "memory": {"scoring"},
    },
    "comparison": {
        "statistics": set(),
        "suites": set(),
        "execution": set(),
        "": {"execution", "statistics", "suites"},
        "scaling": {"", "execution", "statistics", "suites"},
        "report": {"", "scaling", "statistics", "suites"},
    },
    "explain": {
        "inputs": set(),
        "observers": {"inputs"},
        "attribution": {"inputs", "observers"},
        "display": {"attribution", "inputs", "observers"},
        "": {"attribution", "display", "inputs", "observers"},
    },
    "serving": {
        "": set(),
        "http": {"", "http.playground", "http.tasks"},
        "http.playground": {"", "http", "http.tasks"},
        "http.tasks": {"", "http"},
    },
    "core": {"": set(), "describe": {""}, "metrics": set(), "system": {""}},
}
MAX_FILES, MAX_NAMES = 16, 40
ONE_FILE_EACH = {"cli", "checkpoints/hf/families"}  # one file per verb, one per family of models

FOLDERS = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE)
PACKAGES = {".".join(folder.relative_to(SOURCE).parts) for folder in FOLDERS}


def imports(tree: ast.AST) -> list[str]:
    """Return the dotted names that a file imports."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def package_of(module: str) -> str:
    """Return the dotted folder, below `heddle`, in which a module lies."""
    return module if module in PACKAGES else module.rpartition(".")[0]


def between_groups(package: str, target: str) -> list[str]:
    """Return what is wrong with an import from one package of a folder into another of the same folder."""
    room = package.split(".")[0]
    here, there = (name.removeprefix(room).removeprefix(".") for name in (package, package_of(target)))
    if here == there:
        return []
    if there not in GROUPS.get(room, {}).get(here, set()):
        return [f"{package} imports {target}"]
    inside = here.startswith(there)  # a folder inside another is no outsider there
    return [] if target in PACKAGES or inside else [f"{package} reaches into {target} instead of its group"]


def violations(package: str, names: list[str]) -> list[str]:
    """Return every import that breaks a wall, seen from a package."""
    bad, room = [], package.split(".")[0]
    for name in names:
        words = name.split(".")
        if words[0] in BARRED.get(room, set()):
            bad.append(f"{room} must not know {words[0]}")
        if words[0] != "heddle" or len(words) == 1:
            continue
        target = ".".join(words[1:])
        if words[1] == room:
            bad += between_groups(package, target)
        elif words[1] == "cli":
            bad.append(f"{room} imports cli")
        elif room in MAY_IMPORT and words[1] not in MAY_IMPORT[room]:
            bad.append(f"{room} imports {words[1]}")
        elif target not in PACKAGES | {"core.shapes", "lm", "serve_app", "escapes"}:
            bad.append(f"{room} reaches into {name} instead of its folder")
    return bad


def test_folders_keep_their_walls() -> None:
    bad = []
    for path in FILES:
        package = ".".join(path.parent.relative_to(SOURCE).parts)
        assert package.split(".")[0] in MAY_IMPORT.keys() | ANYTHING
        if path.name != "__init__.py":
            bad += [f"{path.relative_to(SOURCE)}: {line}" for line in violations(package, imports(parsed(path)))]
    assert bad == []


def test_groups_form_no_cycle() -> None:
    for room, groups in GROUPS.items():
        left = {name: {other for other in may if not name.startswith(f"{other}.")} for name, may in groups.items()}
        while left:
            ready = {name for name, may in left.items() if not may & left.keys()}
            assert ready, f"{room}: {sorted(left)} import one another"
            left = {name: may for name, may in left.items() if name not in ready}


def test_planted_breaches_are_found() -> None:
    assert violations("nn.base", ["heddle.models"]) == ["nn imports models"]
    assert violations("nn.base", ["heddle.nn.attention"]) == ["nn.base imports nn.attention"]
    assert violations("nn.attention", ["heddle.nn.base.part"]) != []
    assert violations("nn.attention", ["heddle.nn.base", "heddle.nn.attention.scores"]) == []
    assert violations("text", ["torch"]) == ["text must not know torch"]
    assert violations("training", ["heddle.models.summary"]) != []
    assert violations("data.rows", ["heddle.core.shapes", "heddle.core", "numpy"]) == []


def test_folders_stay_small() -> None:
    for folder in FOLDERS:
        if str(folder.relative_to(SOURCE)) not in ONE_FILE_EACH:
            files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            assert len(files) <= MAX_FILES, f"{folder.relative_to(SOURCE)} has {len(files)} files"


def test_packages_export_few_names() -> None:
    for folder in FOLDERS:
        nodes = [node for node in parsed(folder / "__init__.py").body if isinstance(node, ast.ImportFrom)]
        names = [alias.name for node in nodes for alias in node.names]
        assert len(names) <= MAX_NAMES, f"{folder.relative_to(SOURCE)} exports {len(names)} names"


def parsed(path: Path) -> ast.Module:
    """Return a source file's tree."""
    return ast.parse(path.read_text())


@pytest.mark.parametrize("folder", sorted({path.relative_to(SOURCE).parts[0] for path in FILES}))
def test_files_and_functions_stay_small(folder: str) -> None:
    for path in (SOURCE / folder).rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, f"split {path}"
        tree = ast.parse(text)
        assert ast.get_docstring(tree), f"the first line of {path} says what it holds"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0] if folder == "cli" else node  # a verb's signature is as long as its options
                assert node.end_lineno is not None
                assert node.end_lineno - first.lineno < 45, f"{path}: {node.name} is too long"
