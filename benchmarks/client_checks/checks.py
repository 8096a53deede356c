"""Checks of a client: each prints a JSON line. It runs in the client's environment, which has no Heddle."""

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

URL, KEY = os.environ["HEDDLE_URL"], os.environ["HEDDLE_KEY"]
BASE = f"{URL}/v1"
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🙂"}]
SCHEMA: Any = {
    "title": "answer",
    "description": "An answer.",
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


class Checks:
    """The checks of one client."""

    def __init__(self, package: str) -> None:
        self.package = package

    def __call__(self, what: str) -> Callable[[Callable[[], None]], None]:
        """Run the function that follows, and print what came of it."""

        def run(check: Callable[[], None]) -> None:
            fault = None
            try:
                check()
            except Exception as error:  # the report shows any
                fault = f"{type(error).__name__}: {error}"[:300]
            line = {"client": self.package, "version": version(self.package), "check": what, "ok": fault is None}
            print(json.dumps(line | ({} if fault is None else {"fault": fault})), flush=True)

        return run


def want(truth: object, found: object = None) -> None:
    """Fail unless something is true."""
    if not truth:
        raise ValueError(f"found {found!r}")


def raises(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    """Fail unless a call raises an error with some words."""
    try:
        call()
    except kind as error:
        want(words in str(error), str(error))
        return
    raise ValueError(f"no {kind.__name__}")
