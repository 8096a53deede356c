"""POST /v1/chat/completions: answers in a chat by the model's own template, with tools and structured output."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heddle.decoding.runtime import FinishReason
from heddle.serving.http.answers import REASONS, Answer, Answers
from heddle.serving.http.bodies import ChatBody, read_body
from heddle.serving.http.completions import usage
from heddle.serving.http.context import Client, RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.logprobs import TokenTexts
from heddle.serving.http.requests import RequestOptions, engine_requests, response_rules, stop_strings
from heddle.serving.http.responses import EventStream, json_response, until_hang_up
from heddle.serving.http.served_model import ServedModel
from heddle.serving.http.tools import StreamingToolCallParser, Tools, tools_of


@dataclass(frozen=True)
class ChatWork:
    """What one request works on."""

    exchange: RequestContext
    model: ServedModel
    body: ChatBody
    prompt: list[int]
    tools: Tools
    answers: Answers

    def envelope(self, kind: str) -> dict[str, Any]:
        """Return what all parts of the response share."""
        return {
            "id": f"chatcmpl-{self.exchange.id}",
            "object": kind,
            "created": self.exchange.created,
            "model": self.model.source.name,
        }

    def token_ids(self, answer: Answer) -> dict[str, list[int]]:
        """Return the ids of an answer, if they are requested."""
        return {"token_ids": answer.ids} if self.body.return_token_ids else {}

    def usage(self) -> dict[str, Any]:
        """Return the usage."""
        new = sum(len(answer.ids) for answer in self.answers.all)
        return usage(len(self.prompt), new, self.answers.cached_tokens, self.exchange)


async def chat_completions(request: Request) -> Response:
    """Answer POST /v1/chat/completions."""
    exchange = RequestContext.of(request)
    body = await read_body(request, ChatBody)
    model = exchange.find(body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: want logprobs beside it", param="top_logprobs")
    if model.source.model.reads_source:
        raise ApiError(400, "model: an encoder-decoder does not chat; use /v1/completions", param="model")
    tools = tools_of(body)
    prompt, requests, stop = await asyncio.to_thread(_prepare, model, body, tools, exchange.client)
    answers = Answers(model.generating, model.tokenizer, requests, stop)
    work = ChatWork(exchange, model, body, prompt, tools, answers)
    answers.start(exchange.client.name)
    if body.stream:
        return EventStream(_stream(work), answers.cancel)
    await until_hang_up(request, answers.finish(), answers.cancel)
    choices = [_choice(work, answer) for answer in answers.all]
    return json_response(work.envelope("chat.completion") | {"choices": choices, "usage": work.usage()})


def _prepare(
    model: ServedModel, body: ChatBody, tools: Tools, client: Client
) -> tuple[list[int], list[Any], list[str]]:
    """Render the conversation and make requests; it may take long, so it runs beside the event loop."""
    limit, characters = model.most_characters, sum(len(str(one)) for one in body.messages)
    if limit is not None and characters > limit:
        message = "messages: longer than the model's context"
        raise ApiError(400, message, param="messages", code="context_length_exceeded")
    prompt = model.chat.ids(messages_of(body.messages), tools=list(tools.given) or None)
    rules = tools.forced or response_rules(body.response_format)
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    wanted = RequestOptions(most, (body.top_logprobs or 0) if body.logprobs else None, rules=rules, chats=True)
    requests = engine_requests(model, body, [prompt], wanted, client)
    return prompt, requests, stop_strings(body, model.chat.stops.texts)


def messages_of(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as templates take them: contents as one text, arguments of calls as tables."""
    return [_message(one, number) for number, one in enumerate(given)]


def _message(given: dict[str, Any], number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(given.get("role"), str):
        raise ApiError(400, f"{where}: want a role", param="messages")
    content = given.get("content")
    if isinstance(content, list):
        parts = [one for one in content if isinstance(one, dict) and one.get("type") == "text"]
        texts = [text for one in parts if isinstance(text := one.get("text"), str)]
        if len(texts) < len(content):
            raise ApiError(400, f"{where}: want parts of type text; nothing else is read", param="messages")
        content = "".join(texts)
    if content is not None and not isinstance(content, str):
        raise ApiError(400, f"{where}: want a text as content", param="messages")
    if content is None and not given.get("tool_calls"):
        raise ApiError(400, f"{where}: want a content", param="messages")
    kept = {name: value for name, value in given.items() if value is not None}
    if not isinstance(kept.get("tool_calls", []), list):
        raise ApiError(400, f"{where}: want a list as tool_calls", param="messages")
    calls = [_table(call) for call in kept.get("tool_calls", [])]
    return kept | {"content": content or ""} | ({"tool_calls": calls} if calls else {})


def _table(call: Any) -> Any:
    """Return a call with its arguments as a table, as templates expect."""
    match call:
        case {"function": {"arguments": str(text), **function}, **rest}:
            try:
                return {**rest, "function": {**function, "arguments": json.loads(text)}}
            except (ValueError, RecursionError):
                return call
    return call


def _finish(work: ChatWork, answer: Answer, calls: bool) -> str:
    return "tool_calls" if calls else REASONS[answer.reason or FinishReason.LENGTH]


def _choice(work: ChatWork, answer: Answer) -> dict[str, Any]:
    """Return one whole answer."""
    watch = StreamingToolCallParser(work.tools)
    shown = watch.push(answer.text)
    rest, calls = watch.finish(answer.reason is FinishReason.STOP)
    content: str | None = shown + rest
    if work.tools.forced is not None and not calls:
        content = ""  # a call that was cut short is no text
    message = {"role": "assistant", "content": (content or None) if calls else content, "refusal": None}
    count = work.body.top_logprobs or 0
    found = TokenTexts(work.model).chat(answer.ids, answer.logprobs, count) if work.body.logprobs else None
    return {
        "index": answer.index,
        "message": message | ({"tool_calls": calls} if calls else {}),
        **work.token_ids(answer),
        "logprobs": found,
        "finish_reason": _finish(work, answer, bool(calls)),
        "heddle_finish_reason": answer.reason,
    }


async def _stream(work: ChatWork) -> AsyncIterator[dict[str, Any]]:
    """Yield chunks: the role, pieces of text, calls, why each answer ended, and the usage if it is requested."""
    with_usage = work.body.stream_options is not None and bool(work.body.stream_options.include_usage)
    extra = {"usage": None} if with_usage else {}
    texts, envelope = TokenTexts(work.model), work.envelope("chat.completion.chunk")

    def chunk(index: int, delta: Any, reason: str | None = None, logprobs: Any = None, ids: Any = None) -> Any:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason} | (ids or {})
        return envelope | {"choices": [choice]} | extra

    watches = [StreamingToolCallParser(work.tools) for _ in work.answers.all]
    for index in range(len(watches)):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for piece in work.answers.pieces():
        answer, watch = work.answers.all[piece.index], watches[piece.index]
        text, logprobs = watch.push(piece.text), None
        if work.body.logprobs and piece.id is not None and piece.logprobs is not None:
            logprobs = texts.chat([piece.id], [piece.logprobs], work.body.top_logprobs or 0)
        if work.tools.forced is None and (text or logprobs is not None):
            yield chunk(piece.index, {"content": text}, logprobs=logprobs)
        if piece.reason is None:
            continue
        rest, calls = watch.finish(piece.reason is FinishReason.STOP)
        if rest and work.tools.forced is None:
            yield chunk(piece.index, {"content": rest})
        if calls:
            yield chunk(piece.index, {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]})
        yield chunk(piece.index, {}, _finish(work, answer, bool(calls)), ids=work.token_ids(answer))
    found = work.usage()
    if with_usage:
        yield envelope | {"choices": [], "usage": found}
