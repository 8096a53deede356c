"""Chat templates: Jinja's parser, and an evaluator of our own with hard limits.

A template comes with a model and is not trusted. It can read only the values that it is given and call only known
functions, filters and methods; it is stopped when it takes too many steps, too much time or memory, or nests too deep.
Every character of the result is marked as written by the template or by a message.
"""

from collections.abc import Mapping
from typing import final

from heddle.core import UsageError
from heddle.text.template.functions import FUNCTIONS
from heddle.text.template.marked import TRUSTED, WRITTEN, MarkedText
from heddle.text.template.parsing import parse
from heddle.text.template.rendering import Limits, Rendering, Scope
from heddle.text.template.statements import execute
from heddle.text.template.values import TemplateError, Value, trusted, value_of

__all__ = ["TRUSTED", "WRITTEN", "Limits", "MarkedText", "Template", "Value", "trusted", "value_of"]


@final
class Template:
    """A parsed template, which can be rendered many times."""

    def __init__(self, source: str, limits: Limits | None = None) -> None:
        self.source = source
        self._limits = Limits() if limits is None else limits
        try:
            self._body = parse(source)
        except (RecursionError, TemplateError) as fault:
            raise _error(fault) from None

    def render(self, values: Mapping[str, Value]) -> MarkedText:
        """Render the template with the values of some variables."""
        run = Rendering(self._limits, Scope({}, dict(values), dict(FUNCTIONS)))
        try:
            execute(run, self._body)
        except (RecursionError, TemplateError) as fault:
            raise _error(fault) from None
        return MarkedText("").join(run.out)


def _error(fault: RecursionError | TemplateError) -> UsageError:
    if isinstance(fault, RecursionError):
        fault = TemplateError("nests too deep")
    where = "" if fault.line is None else f" line {fault.line}:"
    return UsageError(f"chat template:{where} {' '.join(str(fault).split())}")
