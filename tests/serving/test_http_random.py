"""Random requests: a streamed text is the whole one; what obeys a schema is valid JSON or was cut (serving.md A)."""

import json
import random
from typing import Any

import pytest
from serving.server import KEY, Running

openai = pytest.importorskip("openai", reason="openai-python is not installed")

ALPHABET = "aeß🙂中\x05 é,\n"
PROPERTIES: list[Any] = [
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["x", "ü", 3]},
    {"const": "🙂"},
    {"type": "string", "maxLength": 3},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"type": "object", "properties": {"k": {"type": "boolean"}}, "required": ["k"], "additionalProperties": False},
]


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as found:
        yield found


def check_streams(client: Any, count: int, seed: int) -> None:
    """Compare streamed texts with whole ones; characters have several bytes, and stop strings cross tokens."""
    draw, stopped = random.Random(seed), 0
    for number in range(count):
        stops = ["".join(draw.choices(ALPHABET, k=draw.randint(1, 2))) for _ in range(draw.randrange(4))]
        biased = {str(byte): draw.uniform(0, 6) for byte in "".join(stops).encode()}
        options: Any = {
            "model": draw.choice(["gpt", "lstm"]),
            "prompt": "".join(draw.choices(ALPHABET, k=draw.randint(1, 9))),
            "max_tokens": draw.randint(1, 24),
            "seed": number,
            "stop": stops or None,
            "logit_bias": biased or None,
        }
        whole = client.completions.create(**options)
        chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
        choice, (*pieces, last) = whole.choices[0], chunks
        assert "".join(one.choices[0].text for one in pieces) == choice.text, options
        assert pieces[-1].choices[0].finish_reason == choice.finish_reason
        assert last.usage.completion_tokens == whole.usage.completion_tokens
        assert not any(stop in choice.text for stop in stops)
        stopped += choice.finish_reason == "stop"
    assert 0 < stopped < count


def drawn_schema(draw: random.Random) -> dict[str, Any]:
    """Draw the schema of an object."""
    names = draw.sample(["a", "b", "ü", "key"], draw.randint(1, 2))
    properties = {name: draw.choice(PROPERTIES) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def obeys(value: Any, schema: dict[str, Any]) -> bool:
    """Tell whether a value has the keys of a schema and values of their types."""
    kinds = {"integer": int, "boolean": bool, "null": type(None), "string": str, "array": list, "object": dict}
    if value.keys() != schema["properties"].keys():
        return False
    return all(
        value[name] in own["enum"] if "enum" in own
        else value[name] == own["const"] if "const" in own
        else type(value[name]) is kinds[own["type"]]
        for name, own in schema["properties"].items()
    )  # fmt: skip


def check_schemas(client: Any, count: int, seed: int) -> None:
    """Cut answers with a schema anywhere, as texts and as tool calls."""
    draw, ends = random.Random(seed), dict[str, int]()
    for number in range(count):
        schema, tools = drawn_schema(draw), number % 2 == 1
        wanted: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}}
        if tools:
            function = {"name": "one", "parameters": schema}
            wanted = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        limit = draw.choice([draw.randint(1, 40), 120])
        asked: Any = {
            "model": "lstm" if tools else "gpt",
            "messages": [{"role": "user", "content": "é"}],
            "seed": number,
        }
        choice = client.chat.completions.create(**asked, **wanted, max_tokens=limit).choices[0]
        ends[choice.finish_reason] = ends.get(choice.finish_reason, 0) + 1
        if choice.finish_reason == "tool_calls":
            (call,) = choice.message.tool_calls
            assert obeys(json.loads(call.function.arguments), schema), (schema, call)
        elif choice.finish_reason == "stop":
            assert not tools and obeys(json.loads(choice.message.content), schema), (schema, choice)
        else:
            assert choice.finish_reason == "length" and not choice.message.tool_calls
    assert ends.keys() == {"stop", "length", "tool_calls"}


def test_streamed_texts_are_the_whole_ones(client: Any) -> None:
    check_streams(client, 20, 1)


def test_answers_by_random_schemas_are_valid_or_cut(client: Any) -> None:
    check_schemas(client, 12, 1)


@pytest.mark.full
def test_five_hundred_streamed_texts_are_the_whole_ones(client: Any) -> None:
    check_streams(client, 500, 2)


@pytest.mark.full
def test_answers_by_three_hundred_random_schemas_are_valid_or_cut(client: Any) -> None:
    check_schemas(client, 300, 2)
