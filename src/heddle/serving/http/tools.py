"""Tool calls: what a model writes to call a function, found in its answer; forced calls obey their schema."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.serving.http.bodies import ChatBody
from heddle.serving.http.errors import ApiError
from heddle.tasks.generation import TextConstraints, make_constraints

OPEN, CLOSE = "<tool_call>", "</tool_call>"  # Hermes, Qwen, SmolLM
CALL = re.compile(rf"{OPEN}\s*(.*?)\s*{CLOSE}", re.DOTALL)
STARTS = (OPEN, "{", "[")  # Llama and Mistral write JSON alone
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Tools:
    """The functions that an answer may call."""

    given: Sequence[dict[str, Any]] = ()  # as the template takes them
    names: frozenset[str] = frozenset()
    forced: TextConstraints | None = None  # the answer is one call, of these

    @property
    def active(self) -> bool:
        """Tell whether an answer may be a call."""
        return bool(self.names)


def tools_of(body: ChatBody) -> Tools:
    """Return the tools of a body; refuse what is not a function."""
    given, choice = body.tools or [], body.tool_choice
    schemas = dict(map(_function, given))
    if choice in (None, "auto") and body.response_format is None:
        return Tools(given, frozenset(schemas))
    match choice:
        case None | "auto" | "none":
            return Tools(given)
        case "required" if schemas:
            wanted = schemas
        case {"type": "function", "function": {"name": str(name)}} if name in schemas:
            wanted = {name: schemas[name]}
        case _:
            want = "none, auto, required, or a function of tools"
            raise ApiError(400, f"tool_choice: want {want}", param="tool_choice")
    if body.response_format is not None:
        raise ApiError(400, "response_format: not supported with a forced tool call", param="response_format")
    return Tools(given, frozenset(wanted), make_constraints(schema={"anyOf": [_call(*one) for one in wanted.items()]}))


def _function(tool: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    match tool:
        case {"type": "function", "function": {"name": str(name), **rest}} if NAME.fullmatch(name):
            parameters = rest.get("parameters") or {"type": "object"}
            if isinstance(parameters, dict):
                return name, parameters
    raise ApiError(400, "tools: want functions, each with a name and a schema of its parameters", param="tools")


def _call(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": name}, "arguments": parameters}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def parse_tool_calls(text: str, names: frozenset[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text before the calls, and the calls in OpenAI's shape; none where they are not whole and valid."""
    marked = CALL.findall(text)
    before = text.partition(OPEN)[0].rstrip() if marked else ""
    found: list[dict[str, Any]] = []
    for piece in marked or [text]:
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            return text, []
        for one in value if isinstance(value, list) else [value]:
            call = _openai_call(one, names)
            if call is None:
                return text, []
            found.append(call)
    return (before, found) if found else (text, [])


def _openai_call(value: object, names: frozenset[str]) -> dict[str, Any] | None:
    match value:
        case {"name": str(name), "arguments": dict(arguments)} if name in names:
            pass
        case {"name": str(name), "parameters": dict(arguments)} if name in names:
            pass
        case _:
            return None
    written = json.dumps(arguments, ensure_ascii=False)
    if any("\ud800" <= letter <= "\udfff" for letter in written):  # half a character, which no answer can carry
        return None
    function = {"name": name, "arguments": written}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


@dataclass
class StreamingToolCallParser:
    """Holds back the part of a streamed answer that may be a call."""

    tools: Tools
    text: str = ""  # all of it
    sent: int = 0
    held: bool = field(default=False)

    def push(self, text: str) -> str:
        """Add text; return what is certainly not a part of a call."""
        self.text += text
        if not self.tools.active:
            self.sent = len(self.text)
            return text
        start = self.text.lstrip()
        if self.held or not start or any(start.startswith(one) or one.startswith(start) for one in STARTS):
            return ""
        at = self.text.find(OPEN)
        self.held = at >= 0
        safe = at if self.held else len(self.text) - _overlap(self.text)
        new, self.sent = self.text[self.sent : safe], max(self.sent, safe)
        return new

    def finish(self, whole: bool) -> tuple[str, list[dict[str, Any]]]:
        """Return the rest of the text, and the calls; an answer that was cut short has none."""
        before, calls = (
            parse_tool_calls(self.text, self.tools.names) if whole and self.tools.active else (self.text, [])
        )
        return before[self.sent :], calls


def _overlap(text: str) -> int:
    """Return how many of the last characters may begin a marked call."""
    return next((size for size in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:size])), 0)
