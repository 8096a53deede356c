"""Chat templates: the part of Jinja that they use, interpreted by ourselves and within hard limits.

A template comes with a model, and so from strangers. Here it can reach nothing but the values that it is given, and
call nothing but known functions, filters and methods; it is stopped when it takes too many steps, too much time or too
much text, or nests too deep. What it renders remembers of every character whether the template or a message wrote it.
"""

from collections.abc import Mapping
from typing import final

from heddle.core import UsageError
from heddle.text.template.functions import FUNCTIONS
from heddle.text.template.marked import TRUSTED, WRITTEN, MarkedText
from heddle.text.template.parser import parse
from heddle.text.template.rendering import Limits, Rendering, Scope
from heddle.text.template.values import TemplateError, Value, trusted, value_of

__all__ = ["TRUSTED", "WRITTEN", "Limits", "MarkedText", "Template", "Value", "trusted", "value_of"]

DEEP = TemplateError("nests too deep")


@final
class Template:
    """A template that was read, to be rendered again and again."""

    def __init__(self, source: str, limits: Limits | None = None) -> None:
        self.source = source
        self._limits = Limits() if limits is None else limits
        try:
            self._body = parse(source)
        except RecursionError:
            raise _error(DEEP) from None
        except TemplateError as fault:
            raise _error(fault) from None

    def render(self, values: Mapping[str, Value]) -> MarkedText:
        """Return what the template writes with some names given values."""
        run = Rendering(self._limits, Scope(Scope(None, FUNCTIONS), values))
        try:
            run.execute(self._body)
        except RecursionError:
            raise _error(DEEP, run.line) from None
        except TemplateError as fault:
            raise _error(fault, run.line) from None
        return MarkedText("").join(run.out)


def _error(fault: TemplateError, line: int | None = None) -> UsageError:
    where = "" if line is None else f" line {line}:"
    return UsageError(f"chat template:{where} {' '.join(str(fault).split())}")
