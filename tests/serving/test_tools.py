"""Tool calls: read from the text that a model writes, whole and valid or not at all."""

import pytest

pytest.importorskip("starlette", reason="tool calls are a part of the HTTP server (extra serve)")

from heddle.serving.http.tools import parse_tool_calls


def test_a_call_with_half_a_character_is_no_call() -> None:
    names = frozenset({"find"})
    (call,) = parse_tool_calls('{"name": "find", "arguments": {"what": "\\ud83d\\ude42"}}', names)[1]
    assert call["function"]["arguments"] == '{"what": "🙂"}'
    half = '{"name": "find", "arguments": {"what": "\\ud83d"}}'
    assert parse_tool_calls(half, names) == (half, [])
