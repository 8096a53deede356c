"""Shapes checked at run time, in every test anew but only the first few times that it calls a function.

A check costs more than most small models do: a test that takes a thousand steps would spend its time on being told a
thousand times that the same function takes the same shapes. Each function is checked `TIMES` times in each test for
each kind of tensors that it is given (one token is another kind than a row), and then runs unchecked until the next.
"""

import dataclasses
import functools
from collections import Counter
from typing import Any

import jaxtyping
from jaxtyping import install_import_hook
from torch import Tensor

TIMES = 3

_checked = jaxtyping.jaxtyped
_test = 0


def begin() -> None:
    """Say that a test begins, in which all is checked again."""
    global _test
    _test += 1


def check(modules: list[str]) -> None:
    """Have all functions of some modules checked once they are imported."""
    jaxtyping.jaxtyped = _sparing  # which the hook puts before every function and class
    install_import_hook(modules, "beartype.beartype")


def _sparing(what: Any = None, *, typechecker: Any) -> Any:
    """Do as `jaxtyped` does, but not in every call."""
    again = functools.partial(_sparing, typechecker=typechecker)
    match what:
        case None:
            return again
        case classmethod() | staticmethod():
            return type(what)(again(what.__func__))
        case property():
            return property(*(None if way is None else again(way) for way in (what.fget, what.fset, what.fdel)))
        case type():
            if dataclasses.is_dataclass(what):
                what.__init__ = again(what.__init__)
            return what
    checked = _checked(what, typechecker=typechecker)
    calls: Counter[object] = Counter()
    begun = _test

    @functools.wraps(what)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        if begun != _test:
            calls.clear()
            begun = _test
        kind = tuple([tuple([size == 1 for size in one.shape]) for one in args if isinstance(one, Tensor)])
        calls[kind] += 1
        return (checked if calls[kind] <= TIMES else what)(*args, **kwargs)

    return call
