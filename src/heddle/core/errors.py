"""Errors that name the field, what was wanted and what was found; each has the exit code of the command line."""

import contextlib
import difflib
import errno
import os
from collections.abc import Collection, Iterable, Iterator


class HeddleError(Exception):
    """Any error that a user can fix; shown as one line, never as a traceback."""

    exit_code = 2


class ConfigError(HeddleError):
    """Say which field is wrong, what was wanted, what was found, and the nearest right name; or, instead, its fault."""

    def __init__(
        self, field: str, fault: str = "", *, want: str = "", got: object = None, near: str | None = None
    ) -> None:
        self.field, self.fault, self.want, self.got, self.near = field, fault, want, got, near
        super().__init__(field, fault, want, got, near)

    @classmethod
    def unknown(cls, field: str, name: str, known: Collection[str]) -> "ConfigError":
        """Say that a name is none of the known ones, and which of them is nearest."""
        return cls(field, want=f"one of {', '.join(known)}", got=name, near=nearest(name, known))

    def with_prefix(self, path: str) -> "ConfigError":
        """Return the same error with a path before its field."""
        field = f"{path}.{self.field}" if path and self.field else path or self.field
        return ConfigError(field, self.fault, want=self.want, got=self.got, near=self.near)

    def __str__(self) -> str:
        near = did_you_mean(self.near) if self.near else ""
        return f"{self.field or 'config'}: {self.fault or f'want {self.want}, got {brief(self.got)}'}{near}"


class UsageError(HeddleError):
    """A request that cannot be carried out: a missing file, an unknown name, a prompt too long."""


class DataError(HeddleError):
    """A corpus, shard or document that cannot be used."""


class DamageError(HeddleError):
    """Something on disk is not what was written: a failed checksum, a cut file, a missing part."""

    exit_code = 3


class EnvironmentFault(HeddleError):
    """The machine refused: disk full, memory exhausted, permission denied."""

    exit_code = 3


class MissingExtra(HeddleError):
    """An optional dependency is needed and absent."""

    exit_code = 3

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'heddle[{extra}]'")


ALIASES = {"gpu": "cuda", "nvidia": "cuda", "adam": "adamw", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CLOSE = 0.7  # of difflib: one letter in four may differ, so that `mamba` is no `llama`, and `gpu` no `cpu`


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that an alias means or that is most like the given one; None when nothing is close.

    Hidden names, such as those of caches, are never meant.
    """
    names = [each for each in known if not each.startswith(".")]
    if name.lower() in ALIASES:
        meant_by_alias = [each for each in names if each.split(":")[0] == ALIASES[name.lower()]]
        return meant_by_alias[0] if meant_by_alias else None
    swapped = [each for each in names if sorted(each) == sorted(name)]  # in short names, too
    close = swapped or difflib.get_close_matches(name[:80], names, n=1, cutoff=CLOSE)
    return close[0] if close else None


def did_you_mean(*names: str) -> str:
    """Return the end of a message that suggests these names; nothing when there are none."""
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def hint(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known one or, when none is close, other help."""
    near = nearest(name, known)
    return did_you_mean(near) if near else otherwise


def first_line(error: BaseException) -> str:
    """Return the first line of what another library's error says, cut short; its kind when it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def brief(value: object, limit: int = 80) -> str:
    """Show a value in one short line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, endless nesting
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- what the system says ---------------------------------------------------------------------------------------------

REFUSED = {  # by the machine, whatever file was meant
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "no space left on the device: the quota is used up",
    errno.EFBIG: "file too large for the disk, or for a limit set here",
    errno.EROFS: "the disk is read-only",
    errno.EIO: "the disk failed (input/output error)",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
}
WRONG = {  # a path that the user gave, or that the system named
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "exists already",
    errno.EISDIR: "want a file, found a folder",
    errno.ENOTDIR: "not a directory",
    errno.ENAMETOOLONG: "name too long",
    errno.ELOOP: "too many levels of symbolic links",
}
MAX_NAME_CHARACTERS = 120  # characters of a path in a line


def system_fault(error: OSError, place: str | os.PathLike[str] | None = None) -> HeddleError | None:
    """Return an OSError as one line; None for one that no user can fix.

    Where the system does not name the file, the place is named; a wrong path without either is a bug of ours.
    """
    named = place if error.filename is None else error.filename
    if error.errno in REFUSED:
        return EnvironmentFault(f"{_path('disk' if named is None else named)}: {REFUSED[error.errno]}")
    if error.errno in WRONG and named is not None:
        return UsageError(f"{_path(named)}: {WRONG[error.errno]}")
    return None


def _path(name: object) -> str:
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)
    return text if len(text) <= MAX_NAME_CHARACTERS else text[: MAX_NAME_CHARACTERS - 1] + "…"


@contextlib.contextmanager
def system_faults(place: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Turn an OSError into one line."""
    try:
        yield
    except OSError as error:
        fault = system_fault(error, place)
        if fault is None:
            raise
        raise fault from error
