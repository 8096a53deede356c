"""Compilers: what to say where torch's failed; they need tools of the machine that may be missing or broken."""

import sys

from heddle.core.errors import first_line


def compiler_fault(error: BaseException) -> str | None:
    """Return in one line what a compiler that failed has said; None: something else did."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and to import it takes a second
        return None
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException, TorchRuntimeError, UserError

    if isinstance(error, BackendCompilerFailed):
        inner = error.inner_exception
        return f"{type(inner).__name__}: {first_line(inner)}"
    traced = isinstance(error, TorchRuntimeError | UserError)  # what is wrong without a compiler, too
    return first_line(error) if isinstance(error, TorchDynamoException) and not traced else None
