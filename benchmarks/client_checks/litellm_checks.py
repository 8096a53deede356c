"""litellm against `heddle serve`."""

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices

import litellm
from checks import BASE, FORMAT, KEY, MESSAGES, TOOL, Checks, raises, want

check = Checks("litellm")
MORE: Any = {"api_base": BASE, "api_key": KEY, "num_retries": 0, "max_retries": 0}


def chat(**more: Any) -> Any:
    """Ask for a chat."""
    given = {"model": "openai/gpt", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    return litellm.completion(**(given | MORE | more))


def text(**more: Any) -> Any:
    """Ask for a completion."""
    given = {"model": "text-completion-openai/lstm", "prompt": "Grüße", "max_tokens": 9, "temperature": 0}
    return litellm.text_completion(**(given | MORE | more))


@check("chat, with usage and a finish reason")
def _() -> None:
    found = chat()
    want(found.usage.completion_tokens == 12 and found.choices[0].finish_reason == "length", found)


@check("streamed chat is the whole one, with usage")
def _() -> None:
    pieces = list(chat(stream=True, stream_options={"include_usage": True}))
    streamed = "".join(one.choices[0].delta.content or "" for one in pieces if one.choices)
    want(streamed == chat().choices[0].message.content, streamed)
    want(pieces[-1].usage.completion_tokens == 12, pieces[-1])


@check("seed, n, stop, bias and log-probabilities")
def _() -> None:
    texts = [chat(temperature=0.9, seed=5).choices[0].message.content for _ in range(2)]
    want(texts[0] == texts[1], texts)
    want(len(chat(n=3, temperature=1).choices) == 3)
    logprobs = chat(logprobs=True, top_logprobs=2).choices[0].logprobs
    want(len(logprobs.content) == 12, logprobs)
    want("z" not in (chat(logit_bias={"122": 100}, stop=["z"]).choices[0].message.content or ""))


@check("structured output by json_schema")
def _() -> None:
    found = chat(response_format=FORMAT, max_tokens=200)
    want(json.loads(found.choices[0].message.content).keys() == {"a", "b"}, found)


@check("a forced tool call, and one that is cut")
def _() -> None:
    choice = chat(tools=[TOOL], tool_choice="required", max_tokens=200, seed=2).choices[0]
    (call,) = choice.message.tool_calls
    want(choice.finish_reason == "tool_calls" and json.loads(call.function.arguments).keys() == {"a", "b"}, choice)
    cut = chat(tools=[TOOL], tool_choice="required", max_tokens=3).choices[0]
    want(cut.finish_reason == "length" and not cut.message.tool_calls, cut)


@check("completions, streamed, of several prompts, with echo and log-probabilities")
def _() -> None:
    whole = text().choices[0].text
    want("".join(one.choices[0].text or "" for one in text(stream=True) if one.choices) == whole, whole)
    want(text(prompt=["Grüße", "b"]).choices[0].text == whole)
    scored = text(echo=True, logprobs=1, max_tokens=1).choices[0]
    want(scored.text.startswith("Grüße") and scored.logprobs.token_logprobs[0] is None, scored)


@check("embeddings, with encoding_format null")
def _() -> None:
    found = litellm.embedding(model="openai/gpt", input=["ab", "c"], **MORE)
    want([len(one["embedding"]) for one in found.data] == [64, 64], found)


@check("wrong keys, models and fields are errors of their kinds")
def _() -> None:
    raises(litellm.AuthenticationError, "authorization", lambda: chat(api_key="wrong"))
    raises(litellm.NotFoundError, "model: want one of", lambda: chat(model="openai/other"))
    raises(litellm.BadRequestError, "bogus: not a field", lambda: chat(extra_body={"bogus": 1}))
