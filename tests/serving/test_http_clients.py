"""openai-python, with strict validation where OpenAI's own answers pass it, against `heddle serve` as a process."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from serving.server import KEY, Running

openai = pytest.importorskip("openai", reason="openai-python is not installed")

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🙂"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def strict(server: Running) -> Any:
    with openai.OpenAI(
        base_url=server.url + "/v1", api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def plain(server: Running) -> Any:
    """Return a client for what OpenAI's own answers break in strict validation: nulls in streams, base64 vectors."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("name", ["gpt", "lstm", "pair"])
def test_completion_is_the_librarys_own(name: str, strict: Any, lms: dict[str, Any]) -> None:
    for options in ({"temperature": 0}, {"temperature": 0.9, "seed": 3}):
        found = strict.completions.create(model=name, prompt="hello", max_tokens=12, **options)
        assert found.choices[0].text == lms[name].generate("hello", max_tokens=12, **options)
        assert found.usage.completion_tokens <= 12 and found.usage.prompt_tokens == 6


def test_samples_and_several_prompts_come_in_order(strict: Any, lms: dict[str, Any]) -> None:
    found = strict.completions.create(model="gpt", prompt=["a", "bc"], n=3, max_tokens=6, temperature=1, seed=5)
    assert [choice.index for choice in found.choices] == list(range(6))
    wanted = lms["gpt"].generate(["a", "bc"], samples=3, max_tokens=6, temperature=1, seed=5)
    assert [choice.text for choice in found.choices] == wanted
    ids = strict.completions.create(model="gpt", prompt=[[256, 97], [256, 98, 99]], max_tokens=6, temperature=0)
    texts = strict.completions.create(model="gpt", prompt=["a", "bc"], max_tokens=6, temperature=0)
    assert [choice.text for choice in ids.choices] == [choice.text for choice in texts.choices]


def test_without_a_seed_texts_differ(strict: Any) -> None:
    texts = {strict.completions.create(model="lstm", prompt="a", max_tokens=8).choices[0].text for _ in range(20)}
    assert len(texts) > 1


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_stream_is_the_whole_text_with_usage(name: str, plain: Any) -> None:
    for seed in range(4):
        options: Any = {"model": name, "prompt": "Grüße", "max_tokens": 30, "seed": seed, "stop": ["e", "\x05"]}
        whole = plain.completions.create(**options)
        chunks = list(plain.completions.create(**options, stream=True, stream_options={"include_usage": True}))
        assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
        assert len({(c.id, c.created) for c in chunks}) == 1
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == whole.choices[0].finish_reason


def test_echo_with_logprobs_scores_the_prompt_as_lm_eval_does(plain: Any, lms: dict[str, Any]) -> None:
    ids = [256, *b"hello world"]
    found = plain.completions.create(model="gpt", prompt=[ids], max_tokens=1, temperature=0, echo=True, logprobs=1)
    logprobs = found.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and len(logprobs.token_logprobs) == len(ids) + 1
    wanted = lms["gpt"].score("hello world").logprobs
    assert logprobs.token_logprobs[1:-1] == pytest.approx(wanted.tolist(), abs=1e-4)
    for own, best in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True):
        assert own <= max(best.values()) and own in best.values()
    assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values())
    none = plain.completions.create(model="gpt", prompt="hello", max_tokens=0, echo=True)
    assert (none.choices[0].text, none.usage.completion_tokens) == ("hello", 0)


def test_chat_streams_roles_text_and_reasons(strict: Any) -> None:
    options: Any = {"model": "gpt", "messages": MESSAGES, "max_tokens": 9, "seed": 1, "n": 2}
    whole = strict.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    chunks = list(strict.chat.completions.create(**options, stream=True))
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    for index in (0, 1):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert "".join(c.delta.content or "" for c in own) == whole.choices[index].message.content
        assert own[-1].finish_reason == whole.choices[index].finish_reason
        entries = whole.choices[index].logprobs.content
        assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_chat_with_structured_output_is_valid_or_cut(strict: Any) -> None:
    schema = ADD["function"]["parameters"]
    wanted = {"type": "json_schema", "json_schema": {"name": "add", "schema": schema}}
    ends = set()
    for number in range(12):
        found = strict.chat.completions.create(
            model="gpt", messages=MESSAGES, response_format=wanted, max_tokens=4 + 8 * number, seed=number
        )
        choice = found.choices[0]
        ends.add(choice.finish_reason)
        if choice.finish_reason == "stop":
            assert json.loads(choice.message.content).keys() == {"a", "b"}
    assert ends == {"stop", "length"}


def test_forced_tool_call_is_whole_or_none(strict: Any) -> None:
    ends = set()
    for limit in (3, 20, 200):
        options: Any = {"model": "gpt", "messages": MESSAGES, "tools": [ADD], "max_tokens": limit, "seed": 2}
        choice = strict.chat.completions.create(**options, tool_choice="required").choices[0]
        chunks = [c.choices[0] for c in strict.chat.completions.create(**options, tool_choice="required", stream=True)]
        ends.add(choice.finish_reason)
        assert chunks[-1].finish_reason == choice.finish_reason
        streamed = [call for c in chunks for call in c.delta.tool_calls or []]
        if choice.finish_reason == "tool_calls":
            (call,) = choice.message.tool_calls
            assert call.function.name == "add" and json.loads(call.function.arguments).keys() == {"a", "b"}
            assert [one.function.arguments for one in streamed] == [call.function.arguments]
            again: Any = [*MESSAGES, choice.message.model_dump(exclude_none=True)]
            again.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
            assert strict.chat.completions.create(model="gpt", messages=again, tools=[ADD], max_tokens=2).choices
        else:
            assert not streamed and not choice.message.tool_calls
    assert ends == {"length", "tool_calls"}


def test_embeddings_are_the_librarys_own(plain: Any, strict: Any, lms: dict[str, Any]) -> None:
    for name in ("gpt", "lstm", "pair"):
        packed = plain.embeddings.create(model=name, input=["ab", "c"])
        floats = strict.embeddings.create(model=name, input=["ab", "c"], encoding_format="float")
        assert packed.data[1].embedding == floats.data[1].embedding
        assert floats.data[0].embedding == pytest.approx(lms[name].embed("ab").tolist(), abs=1e-5)
    response = plain.embeddings.with_raw_response.create(model="gpt", input="c", encoding_format="base64")
    raw = json.loads(response.text if isinstance(response.text, str) else response.text())
    packed_floats = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    assert len(packed_floats) == 64


def test_models_are_listed_and_found(strict: Any) -> None:
    assert [one.id for one in strict.models.list()] == ["gpt", "lstm", "pair", "reader"]
    assert strict.models.retrieve("lstm").id == "lstm"
    with pytest.raises(openai.NotFoundError, match="model: want one of gpt, lstm, pair, reader"):
        strict.models.retrieve("other")


def test_nulls_mean_unset_and_what_changes_nothing_is_accepted(plain: Any) -> None:
    body = {"seed": None, "stop": None, "logit_bias": None, "user": "me", "metadata": {"a": "b"}, "store": False}
    found = plain.completions.create(model="gpt", prompt="a", max_tokens=2, temperature=0, extra_body=body)
    assert found.usage.completion_tokens == 2


def test_bias_penalties_and_stop_ids_are_obeyed(strict: Any) -> None:
    found = strict.completions.create(
        model="gpt", prompt="a", max_tokens=5, temperature=0, logit_bias={str(ord("z")): 100}
    )
    assert found.choices[0].text == "zzzzz"
    ends = strict.completions.create(model="gpt", prompt="a", max_tokens=5, temperature=0, logit_bias={"256": 100})
    assert (ends.choices[0].text, ends.choices[0].finish_reason, ends.usage.completion_tokens) == ("", "stop", 1)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ({"model": "no"}, "NotFoundError", "model: want one of"),
        ({"prompt": "x" * 600}, "BadRequestError", "longer than the model's context"),
        ({"prompt": [[256] * 510], "max_tokens": 9}, "BadRequestError", "more than the model's context of 512"),
        ({"extra_body": {"bogus": 1}}, "BadRequestError", "bogus: not a field of this route"),
        ({"temperature": -1}, "BadRequestError", "temperature: "),
        ({"n": 99}, "BadRequestError", "n: "),
        ({"prompt": [[1, 999]]}, "BadRequestError", "prompt: want one or more ids from 0 to 256"),
        ({"logit_bias": {"x": 1}}, "BadRequestError", "logit_bias: want ids"),
        ({"logit_bias": {"0" * 5000: 1}}, "BadRequestError", "logit_bias: want ids"),
        ({"stop": [""]}, "BadRequestError", "stop: want at most"),
        ({"suffix": "x"}, "BadRequestError", "suffix: not supported"),
        ({"extra_body": {"response_format": {"type": "xml"}}}, "BadRequestError", "response_format: want text"),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value),
)
def test_fault_is_named_in_one_line(fault: Any, error: str, words: str, plain: Any) -> None:
    with pytest.raises(getattr(openai, error)) as caught:
        plain.completions.create(**({"model": "gpt", "prompt": "a", "max_tokens": 2} | fault))
    assert words in caught.value.body["message"] and "\n" not in caught.value.body["message"]


def test_wrong_key_is_refused(server: Running) -> None:
    wrong = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
