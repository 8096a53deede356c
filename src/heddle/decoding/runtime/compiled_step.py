"""Alone: a step compiled for a CPU, where each call counts: a token of a small model takes a few milliseconds.

The compiler's checks before every call, whether all weights are still what they were, cost more than a tenth of that.
They are left out; whoever owns the step asks once before a row begins, and compiles anew where something has changed.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def compile_for_cpu(function: Function) -> Function:
    """Return a function of tensors compiled for those that it is first called with; others must not be given to it.

    Each has code of its own, for torch keeps what it compiled with the code.
    """
    assert isinstance(function, FunctionType)
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__)
    unchecked: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards), "size_asserts": False}
    return torch.compile(own, fullgraph=True, dynamic=False, options=unchecked)  # type: ignore[return-value]
