"""langchain-openai against `heddle serve`."""

from typing import Any

import openai
from checks import BASE, KEY, MESSAGES, SCHEMA, TOOL, Checks, raises, want
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

check = Checks("langchain-openai")
MORE: Any = {"base_url": BASE, "api_key": KEY, "max_retries": 0}


def chat(**more: Any) -> ChatOpenAI:
    """Return a chat model."""
    return ChatOpenAI(**({"model": "gpt", "max_tokens": 12, "temperature": 0} | MORE | more))


def text(**more: Any) -> OpenAI:
    """Return a completion model."""
    return OpenAI(**({"model": "lstm", "max_tokens": 9, "temperature": 0} | MORE | more))


@check("chat, with usage and a finish reason")
def _() -> None:
    found = chat().invoke(MESSAGES)
    want(found.content and found.usage_metadata["output_tokens"] == 12, found)
    want(found.response_metadata["finish_reason"] == "length", found)


@check("streamed chat is the whole one")
def _() -> None:
    pieces = list(chat(stream_usage=True).stream(MESSAGES))
    want("".join(str(one.content) for one in pieces) == chat().invoke(MESSAGES).content, pieces)
    want(sum((one.usage_metadata or {}).get("output_tokens", 0) for one in pieces) == 12, pieces)


@check("seed, null seed, stop, n and log-probabilities")
def _() -> None:
    texts = [chat(temperature=0.9, seed=5).invoke(MESSAGES).content for _ in range(2)]
    want(texts[0] == texts[1] and chat(seed=None).invoke(MESSAGES).content, texts)
    want(len(chat(n=3, temperature=1.0).generate([[HumanMessage("a")]]).generations[0]) == 3)
    logprobs = chat(logprobs=True, top_logprobs=2).invoke(MESSAGES).response_metadata["logprobs"]["content"]
    want(len(logprobs) == 12 and len(logprobs[0]["top_logprobs"]) == 2, logprobs)
    want("z" not in chat(stop=["z"], logit_bias={"122": 100}).invoke(MESSAGES).content)


@check("structured output by json_schema")
def _() -> None:
    found = chat(max_tokens=200).with_structured_output(SCHEMA, method="json_schema").invoke(MESSAGES)
    want(found.keys() == {"a", "b"}, found)


@check("a forced tool call, whole and streamed, and the turn after it")
def _() -> None:
    bound = chat(max_tokens=200, seed=2).bind_tools([TOOL], tool_choice="required")
    found = bound.invoke(MESSAGES)
    want([call["name"] for call in found.tool_calls] == ["add"] and not found.invalid_tool_calls, found)
    joined: Any = None
    for piece in bound.stream(MESSAGES):
        joined = piece if joined is None else joined + piece
    want([call["args"] for call in joined.tool_calls] == [call["args"] for call in found.tool_calls], joined)
    reply = {"role": "tool", "tool_call_id": found.tool_calls[0]["id"], "content": "3"}
    want(chat().invoke([*MESSAGES, found, reply]).usage_metadata["output_tokens"] > 0)


@check("a tool call that is cut is none")
def _() -> None:
    found = chat(max_tokens=3).bind_tools([TOOL], tool_choice="required").invoke(MESSAGES)
    want(not found.tool_calls and found.response_metadata["finish_reason"] == "length", found)


@check("completions, streamed and of several prompts, with its explicit nulls")
def _() -> None:
    whole = text().invoke("Grüße")
    want("".join(text().stream("Grüße")) == whole, whole)
    several = text().generate(["Grüße", "b"])
    want([len(one) for one in several.generations] == [1, 1] and several.generations[0][0].text == whole, several)


@check("embeddings, as base64 and without tiktoken")
def _() -> None:
    model = OpenAIEmbeddings(model="gpt", check_embedding_ctx_length=False, **MORE)
    first, second = model.embed_documents(["ab", "c"])
    want(len(first) == len(second) == 64 and model.embed_query("c") == second)


@check("wrong keys, models and lengths are errors of their kinds")
def _() -> None:
    raises(openai.AuthenticationError, "authorization", lambda: chat(api_key="wrong").invoke(MESSAGES))
    raises(openai.NotFoundError, "model: want one of", lambda: chat(model="other").invoke(MESSAGES))
    raises(openai.BadRequestError, "context", lambda: text(model="gpt").invoke("x" * 600))
