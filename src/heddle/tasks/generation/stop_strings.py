"""Until: a guide that is over where a text has come to a stop, so that beams end at strings too, each for itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Bool
from torch import Tensor

from heddle.core import UsageError, brief
from heddle.decoding.constraints import Constraint
from heddle.text.tokenizers import TextStream

StopStrings = str | Sequence[str] | None  # texts before which to end


@final
@dataclass(frozen=True)
class StopStringConstraint:
    """Where a row stands in its text, and in another guide that it obeys, if there is one."""

    text: TextStream  # never pushed: whoever goes on takes a fork
    inner: Constraint | None = None

    def allowed(self) -> Bool[Tensor, " vocab"] | None:
        """Tell which ids may come next: a stop may stand anywhere, so all that the other guide allows."""
        return None if self.inner is None else self.inner.allowed()

    def take(self, id: int) -> "StopStringConstraint":
        """Return where the row stands after one more id."""
        text = self.text.fork()
        text.push(id)
        return StopStringConstraint(text, None if self.inner is None else self.inner.take(id))

    @property
    def finished(self) -> bool:
        """Tell whether the text has come to a stop, or the other guide to its end."""
        return self.text.stopped or (self.inner is not None and self.inner.finished)


def check_stop_strings(stop: StopStrings) -> list[str]:
    """Return the texts before which to end."""
    if stop is None:
        return []
    found = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [""]
    if not all(isinstance(text, str) and text for text in found):
        raise UsageError(f"stop: want a text or a list of texts, none of them empty, got {brief(stop)}")
    return found
