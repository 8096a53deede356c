"""Background: one piece of work at a time on a thread, whose failure is raised where the next call is made."""

import threading
from collections.abc import Callable


class Background:
    """Runs work on a thread; not a daemon, so that a program that ends lets a save finish first."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Start the work; an earlier one must have been waited for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # kept, and raised by wait
                self._failure = error

        self._thread = threading.Thread(target=run, name="heddle-save")
        self._thread.start()

    def join(self) -> None:
        """Wait for the work to end, well or badly."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait for the work to end, and raise its failure, once."""
        self.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
