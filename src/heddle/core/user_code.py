"""User code: the user's own parts, objectives, recipes and callbacks, in a file or a module; trusted by its hash.

Code that the user names is run, and its hash is remembered in the user's config folder. Code that a run or a config
names is run only if its hash is remembered there, or if the caller trusts runs for once (`trusting_runs`).
"""

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from heddle.core.errors import ConfigError, DamageError, HeddleError, UsageError, brief, first_line, hint
from heddle.core.raw_value import RawValue

PLUGINS = "heddle.plugins"  # the group of entry points of installed packages
FOLDER = "code"  # of a run: the files that it was trained with
MAX_BYTES = 1 << 20  # bytes of a file of code
MARK = "#sha256="  # between the path of code and its hash, in a run's config
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

log = logging.getLogger("heddle")
_trust_runs: ContextVar[bool] = ContextVar("trust_runs", default=False)


@dataclass(frozen=True)
class UserCode:
    """Code that was found and not yet run: a file with its bytes, or a module of an installed package."""

    name: str  # of the file, or of the module with its packages
    sha256: str
    source: bytes | None = None  # of a file
    path: Path | None = None

    @property
    def module_name(self) -> str:
        """Return the name of its module in this process; each version of a file has its own."""
        return self.name if self.source is None else f"user_code_{Path(self.name).stem}_{self.sha256[:12]}"

    @property
    def entry(self) -> str:
        """Return what a config says to find it again."""
        return f"{self.name if self.path is None else self.path.absolute()}{MARK}{self.sha256}"

    def defines(self, module: str) -> bool:
        """Tell whether a module is this one: of a package, any of its modules; of a file, the script that runs it."""
        if self.path is None:
            return module.partition(".")[0] == self.name.partition(".")[0]
        script = vars(sys.modules["__main__"]).get("__file__") if module == "__main__" else None
        return module == self.module_name or (script is not None and Path(script).resolve() == self.path.resolve())


_loaded: dict[str, UserCode] = {}  # by hash: what has run in this process, in order
_named: dict[str, UserCode] = {}  # by name: the newest that the user has named
_plugins: dict[str, str] = {}  # installed packages by their top module, with their versions
_searched: list[bool] = []  # whether plugins were looked for


# --- loading ----------------------------------------------------------------------------------------------------------


def use(target: str | Path) -> ModuleType:
    """Load the user's own code from a file or a module, and remember that this user trusts it; return the module."""
    code = _find(target)
    module = _load(code)
    _named[code.name] = code
    try:
        trust(code)
    except OSError as error:
        log.warning("%s: cannot be remembered as trusted: %s", code.name, error.strerror)
    return module


def use_all(targets: object) -> list[str]:
    """Load code that the user has named in an override or in Python; return the entries for a run's config."""
    if isinstance(targets, RawValue) and targets.startswith("["):  # a list; anything else may be a path
        targets = targets.parse(targets)
    listed = [targets] if isinstance(targets, str | Path) else targets
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str | Path) for one in listed):
        raise ConfigError("use", want="files or modules", got=targets)
    entries: list[str] = []
    for entry in map(str, listed):
        target, _, sha256 = entry.partition(MARK)
        if sha256 not in _loaded:  # which has run already, as that of a config does before it is decoded
            use(target)
            entry = _named[_name(target)].entry
        entries.append(entry)
    return entries


def load_recorded(entries: object, folder: Path) -> list[str]:
    """Load the code that a config in a folder names; refuse a stranger's, and what is not as it was recorded.

    Code of the same name that the user has named takes its place, with a warning where it differs. Return the entries
    as they can be found from anywhere.
    """
    if not isinstance(entries, list | tuple) or not all(isinstance(one, str) for one in entries):
        raise ConfigError("use", want="a list of files or modules", got=entries)
    return [_recorded(one, folder) for one in entries]


def _recorded(entry: str, folder: Path) -> str:
    target, _, sha256 = entry.partition(MARK)
    if (given := _named.get(_name(target))) is not None:
        if sha256 not in ("", given.sha256):
            _warn_of_other_code(given.name, folder)
        return entry if sha256 else given.entry
    if sha256 in _loaded:
        _load(_loaded[sha256])
        return entry
    if sha256 and not _may_run(sha256):
        raise _refusal(folder, target)
    code = _find(folder / target if _is_file(target) else target)
    if sha256 not in ("", code.sha256):
        place = code.path or code.name
        raise DamageError(f"{place}: altered since {folder} was trained with it; to run it as it is: --use {place}")
    if not _may_run(code.sha256):
        raise _refusal(folder, target)
    _load(code)
    return entry if sha256 else code.entry


@cache
def _warn_of_other_code(name: str, folder: Path) -> None:
    log.warning("%s: not the code that %s was trained with", name, folder)


def _may_run(sha256: str) -> bool:
    return is_trusted(sha256) or _trust_runs.get()


def _refusal(folder: Path, target: str) -> UsageError:
    path = folder / target if _is_file(target) else target
    return UsageError(
        f"{folder}: uses code that you have not used before, and it was not run: read {path}, then pass --use {path}, "
        "or --trust-run for this once"
    )


def _is_file(target: str) -> bool:
    """Tell a file from a module."""
    return target.endswith(".py") or "/" in target


def _name(target: str) -> str:
    """Return the name of a file without its folder, or that of a module."""
    return Path(target).name if _is_file(target) else target


def _find(target: str | Path) -> UserCode:
    """Return code with its hash; nothing is run."""
    if isinstance(target, Path) or _is_file(target):
        return _find_file(Path(target).expanduser())
    if not MODULE.fullmatch(target):
        raise UsageError(f"want a file that ends in .py, or a module, got {brief(target)}")
    return UserCode(target, _module_hash(target))


def _find_file(path: Path) -> UserCode:
    if not path.is_file():
        near = hint(path.name, [one.name for one in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise UsageError(f"{path}: no such file{near}")
    with path.open("rb") as file:
        source = file.read(MAX_BYTES + 1)
    if len(source) > MAX_BYTES or path.suffix != ".py":
        raise UsageError(f"{path}: want a file of Python code that ends in .py, of at most {MAX_BYTES} bytes")
    return UserCode(path.name, hashlib.sha256(source).hexdigest(), source, path)


def _module_hash(name: str) -> str:
    """Hash every Python file of the package that a module belongs to, without running any."""
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    files = [(place, file) for place in places for file in sorted(place.rglob("*.py"))]
    if spec is not None and not files and (spec.origin or "").endswith(".py"):
        files = [(Path(str(spec.origin)).parent, Path(str(spec.origin)))]
    if not files:
        raise UsageError(f"no module of Python code is called {name!r}; for a file, give its path: FILE.py")
    whole = hashlib.sha256()
    for place, file in files:
        whole.update(f"{file.relative_to(place)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


class _Loader(InspectLoader):
    """Runs the bytes that were hashed, not what the file holds by then."""

    def __init__(self, code: UserCode) -> None:
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes."""
        return self.source_to_code(self.code.source or b"", str(self.code.path))

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return (self.code.source or b"").decode(errors="replace")


def _load(code: UserCode) -> ModuleType:
    """Run code, unless it is the newest of its name in this process; an error in it becomes one line."""
    newest = next((one for one in reversed(_loaded.values()) if one.name == code.name), None)
    if newest is not None and newest.sha256 == code.sha256:
        return sys.modules[code.module_name]
    try:
        module = importlib.import_module(code.name) if code.source is None else _run(code)
    except HeddleError as error:
        raise UsageError(f"{code.path or code.name}: {error}") from error
    except Exception as error:
        raise UsageError(f"{code.path or code.name}{_line(error, code)}: {_words(error)}") from error
    _loaded.pop(code.sha256, None)
    _loaded[code.sha256] = code  # the last
    return module


def _run(code: UserCode) -> ModuleType:
    spec = ModuleSpec(code.module_name, _Loader(code), origin=str(code.path))
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(code.path)
    sys.modules[spec.name] = module  # configs look up their own field types there
    try:
        _Loader(code).exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _line(error: Exception, code: UserCode) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(code.path)]
    return f", line {lines[-1]}" if lines else ""


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else first_line(error)}"


# --- installed packages -----------------------------------------------------------------------------------------------


def load_plugins() -> None:
    """Load, once, the modules that installed packages name as `heddle.plugins`; one that fails is left out."""
    if _searched:
        return
    _searched.append(True)  # before they run: a plugin may use the library's front
    for point in entry_points(group=PLUGINS):
        try:
            point.load()
        except Exception as error:
            log.warning("the plugin %s (%s) cannot be loaded: %s", point.name, point.value, _words(error))
            continue
        version = "unknown" if point.dist is None else point.dist.version
        _plugins[point.module.partition(".")[0]] = version


def plugins() -> dict[str, str]:
    """Return the installed packages that were loaded, with their versions."""
    return dict(_plugins)


# --- what a run records -----------------------------------------------------------------------------------------------


def record(entries: Sequence[str], things: Iterable[Any], folder: Path) -> tuple[str, ...]:
    """Keep the code that a config names, or that defines its classes and functions, in a folder; return the entries.

    What is defined in no file is reported: only the code that made it can load such a run.
    """
    found = {code.sha256: code for code in map(_code_of, entries) if code is not None}
    for module, name in sorted({(thing.__module__, thing.__qualname__) for thing in things}):
        makers = [code for code in _loaded.values() if code.defines(module)]
        if makers:
            found[makers[-1].sha256] = makers[-1]
        elif module.partition(".")[0] not in ("heddle", *_plugins):
            log.warning(
                "%s is defined in %s, which is not kept with %s: put it in a file, and load that by --use FILE.py",
                *(name, module, folder),
            )
    return tuple(_keep(code, folder) for code in found.values())


def entries_for(things: Iterable[Any]) -> tuple[str, ...]:
    """Return the entries of the user's code that defines some classes and functions, for another process to load."""
    modules = {thing.__module__ for thing in things}
    return tuple(code.entry for code in _loaded.values() if any(code.defines(module) for module in modules))


def _code_of(entry: str) -> UserCode | None:
    """Return the code of an entry, or what the user has named in its place."""
    target, _, sha256 = entry.partition(MARK)
    return _named.get(_name(target), _loaded.get(sha256))


def _keep(code: UserCode, folder: Path) -> str:
    """Write a file of code into a run's folder, beside its other versions."""
    if code.source is None:
        return f"{code.name}{MARK}{code.sha256}"
    place = folder / FOLDER / code.sha256[:12]
    for one in (folder / FOLDER, place, place / code.name):
        if one.is_symlink():
            raise DamageError(f"{one}: a link; want a folder of the run")
    place.mkdir(parents=True, exist_ok=True)
    if not (place / code.name).exists():
        beside = place / f".{code.name}.tmp"
        beside.write_bytes(code.source)
        beside.replace(place / code.name)
    return f"{(place / code.name).relative_to(folder).as_posix()}{MARK}{code.sha256}"


# --- trust ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def trusting_runs(trusted: bool = True) -> Iterator[None]:
    """Run the code of runs whoever made it, in this block."""
    token = _trust_runs.set(trusted or _trust_runs.get())
    try:
        yield
    finally:
        _trust_runs.reset(token)


def trust_runs() -> None:
    """Run the code of runs whoever made it, until the context ends."""
    _trust_runs.set(True)


def config_folder() -> Path:
    """Return where this user's settings lie: HEDDLE_CONFIG, or a folder where the system keeps such things."""
    own, system = os.environ.get("HEDDLE_CONFIG"), os.environ.get("XDG_CONFIG_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(system) if system else Path.home() / ".config") / "heddle"


def trust(code: UserCode, folder: Path | None = None) -> None:
    """Remember that this user trusts code, by its hash: one small file for each."""
    place = (config_folder() if folder is None else folder) / "trusted"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / code.sha256).exists():
        (place / code.sha256).write_text(f"{code.path.absolute() if code.path else code.name}\n", encoding="utf-8")


def is_trusted(sha256: str, folder: Path | None = None) -> bool:
    """Tell whether this user trusts code with a hash."""
    whole = re.fullmatch("[0-9a-f]{64}", sha256) is not None
    return whole and ((config_folder() if folder is None else folder) / "trusted" / sha256).is_file()
