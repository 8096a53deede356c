"""Compile cache: compiled code outlives the process, so that the next start is fast; and compiler errors."""

import os
import sys
import tempfile
from pathlib import Path

from heddle.core.errors import first_line

FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # where torch looks for compiled code, and Triton with it
TRITON_CACHE_VARIABLE = "TRITON_CACHE_DIR"  # where Triton's part of it lies, once there is some
TORCH_CACHE_PREFIX = "torchinductor_"  # how the folder begins that torch chooses itself, among the temporary ones


def enable_compile_cache() -> None:
    """Let compiled code outlive the process, unless the user has chosen a folder or none can be written.

    What was traced is kept too, also of graphs with gradients of our own: what they do is all in the graph.
    """
    import torch._functorch.config

    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    if _chosen():
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ[FOLDER] = str(folder)
        if _by_torch(os.environ.get(TRITON_CACHE_VARIABLE, "")):
            del os.environ[TRITON_CACHE_VARIABLE]  # follows from the other


def _chosen() -> bool:
    """Tell whether the user has chosen a folder; torch names its own as soon as its compiler is imported."""
    return FOLDER in os.environ and not _by_torch(os.environ[FOLDER])


def _by_torch(folder: str) -> bool:
    """Tell whether a folder is the temporary one that torch chooses, or lies in it."""
    temporary, path = Path(tempfile.gettempdir()), Path(folder)
    return any(one.name.startswith(TORCH_CACHE_PREFIX) and one.parent == temporary for one in (path, *path.parents))


def cache_folder() -> Path:
    """Return where this user's caches lie: HEDDLE_CACHE, or a folder where the system keeps such things."""
    own, system = os.environ.get("HEDDLE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(system) if system else Path.home() / ".cache") / "heddle"


def compiler_fault(error: BaseException) -> str | None:
    """Return the message of a compiler that failed in one line; None: something else failed."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and to import it takes a second
        return None
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException, TorchRuntimeError, UserError

    if isinstance(error, BackendCompilerFailed):
        inner = error.inner_exception
        return f"{type(inner).__name__}: {first_line(inner)}"
    traced = isinstance(error, TorchRuntimeError | UserError)  # what is wrong without a compiler, too
    return first_line(error) if isinstance(error, TorchDynamoException) and not traced else None
