"""Stop strings: generation ends before any of these texts. As a constraint, each beam of a search stops by itself."""

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
    """The text of a row so far, and the state of another constraint if there is one."""

    text: TextStream  # never changed: `advance` forks it
    inner: Constraint | None = None

    def allowed(self) -> Bool[Tensor, " vocab"] | None:
        """Return which ids may come next: all that the other constraint allows, since a text may stop anywhere."""
        return None if self.inner is None else self.inner.allowed()

    def advance(self, id: int) -> "StopStringConstraint":
        """Return the state after one more id."""
        text = self.text.fork()
        text.push(id)
        return StopStringConstraint(text, None if self.inner is None else self.inner.advance(id))

    @property
    def finished(self) -> bool:
        """Tell whether the text has reached a stop string, or the other constraint its end."""
        return self.text.stopped or (self.inner is not None and self.inner.finished)


def check_stop_strings(stop: StopStrings) -> list[str]:
    """Return stop strings as a list; refuse anything but non-empty texts."""
    if stop is None:
        return []
    found = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [""]
    if not all(isinstance(text, str) and text for text in found):
        raise UsageError(f"stop: want a text or a list of texts, none of them empty, got {brief(stop)}")
    return found
