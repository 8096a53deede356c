"""Raw values: what a user typed after `key=`. Text fields take it literally, all others what it means in YAML."""

import types
import typing
from collections.abc import Callable
from typing import Any, Self, final

from heddle.core.errors import ConfigError

NOTHING = ("", "~", "null")


@final
class RawValue(str):
    """Words of a command line, whose meaning depends on the field that they are for."""

    parse: Callable[[str], Any]

    @classmethod
    def of(cls, words: str, parse: Callable[[str], Any]) -> Self:
        """Return words, and how they are parsed where a field is not text."""
        value = cls(words)
        value.parse = parse
        return value

    def for_type(self, hint: Any) -> Any:
        """Return the value for a field of this type; of a number or a text, the number where the words are one."""
        union = typing.get_origin(hint) in (types.UnionType, typing.Union)
        options = typing.get_args(hint) if union else (hint,)
        if typing.get_origin(hint) is typing.Literal and str(self) in typing.get_args(hint):
            return str(self)
        if str not in options:
            return self.parse(self)
        if types.NoneType in options and self in NOTHING:
            return None
        others = [option for option in options if option not in (str, types.NoneType)]
        try:
            parsed = self.parse(self) if others else None
        except ConfigError:
            parsed = None
        return parsed if type(parsed) in others else str(self)


def typed_value(value: Any, hint: Any) -> Any:
    """Return a value for a field of this type; one that is not raw is itself."""
    return value.for_type(hint) if isinstance(value, RawValue) else value
