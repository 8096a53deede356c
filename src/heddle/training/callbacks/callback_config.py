"""CallbackConfig: a callback of the user's own as a config, so that a run records it and has it again when resumed."""

from abc import ABC, abstractmethod

from heddle.core import Config
from heddle.training.loop import Callback


class CallbackConfig(Config, ABC):
    """A callback of the user's own; the library has no kinds of it."""

    @abstractmethod
    def build(self) -> Callback:
        """Return a new callback for one run."""
