"""Numbers: arithmetic that stays finite, and fields that stay in their range."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Any

from heddle.core.errors import ConfigError

MAX_NATS = 700.0  # exp of a little more overflows


def bounded_exp(nats: float) -> float:
    """Return exp(nats), clamped to avoid overflow."""
    return math.exp(min(nats, MAX_NATS))


def check_at_least(least: float, /, **fields: float | None) -> None:
    """Refuse a field that is smaller; None stands for one that was left open."""
    for name, value in fields.items():
        if value is not None and not value >= least:
            raise ConfigError(name, want=f"at least {least}", got=value)


def check_share(**fields: float) -> None:
    """Refuse a share that is no probability, or that leaves nothing."""
    for name, value in fields.items():
        if not 0.0 <= value < 1.0:
            raise ConfigError(name, want="at least 0 and below 1", got=value)


def within(want: str, holds: Callable[[Any], bool]) -> Callable[..., None]:
    """Return a check of fields, for their types; None stands for a field that was left open."""

    def check(**fields: Any) -> None:
        for name, value in fields.items():
            if value is not None and not holds(value):
                raise ConfigError(name, want=want, got=value)

    return check


# Types of config fields that carry their range: `heads: Positive`.
Positive = Annotated[int, partial(check_at_least, 1)]
Count = Annotated[int, partial(check_at_least, 0)]
Share = Annotated[float, check_share]


def check_fields(config: object) -> None:
    """Refuse fields that are outside the range of their types; those of a tuple item by item."""
    cls: Any = type(config)
    for name, for_items, check in _checks(cls):
        value = getattr(config, name)
        if for_items and isinstance(value, tuple):
            for number, item in enumerate(value):
                check(**{f"{name}.{number}": item})
        elif not for_items and not isinstance(value, tuple):
            check(**{name: value})


@cache
def _checks(cls: Any) -> list[tuple[str, bool, Callable[..., None]]]:
    """Return the checks of a config's fields: the field's name, whether it is one of a tuple's items, the check."""
    return [(f.name, *found) for f in dataclasses.fields(cls) for found in _checks_of(f.type, for_items=False)]


def _checks_of(hint: Any, for_items: bool) -> list[tuple[bool, Callable[..., None]]]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return [(for_items, check) for check in inner[1:]]
    if origin is tuple:
        return [found for item in inner for found in _checks_of(item, for_items=True)]
    if origin in (typing.Union, types.UnionType):
        return [found for choice in inner for found in _checks_of(choice, for_items)]
    return []
