"""POST /v1/completions: texts that continue prompts, whole or streamed, with log-probabilities and echo."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heddle.decoding.generation import TokenLogprobs
from heddle.serving.http.answers import REASONS, Answer, Answers, Piece
from heddle.serving.http.bodies import MAX_PROMPTS, CompletionBody, read_body
from heddle.serving.http.context import Client, RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.logprobs import TokenTexts
from heddle.serving.http.requests import RequestOptions, engine_requests, response_rules, stop_strings
from heddle.serving.http.responses import EventStream, json_response, until_hang_up
from heddle.serving.http.served_model import ServedModel, check_ids

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@dataclass(frozen=True)
class Completions:
    """What one request works on."""

    exchange: RequestContext
    model: ServedModel
    body: CompletionBody
    prompts: list[list[int]]
    answers: Answers

    @property
    def samples(self) -> int:
        """Return how many texts each prompt has."""
        return self.body.n or 1

    def echoed(self, answer: Answer) -> list[int]:
        """Return the ids of the prompt that a text repeats."""
        return self.prompts[answer.index // self.samples] if self.body.echo else []


async def completions(request: Request) -> Response:
    """Answer POST /v1/completions."""
    exchange = RequestContext.of(request)
    body = await read_body(request, CompletionBody)
    model = exchange.find(body.model)
    _refuse(model, body)
    prompts, requests = await asyncio.to_thread(_prepare, model, body, exchange.client)
    answers = Answers(model.generating, model.tokenizer, requests, stop_strings(body))
    work = Completions(exchange, model, body, prompts, answers)
    answers.start(exchange.client.name)
    if body.stream:
        return EventStream(_stream(work), answers.cancel)
    await until_hang_up(request, answers.finish(), answers.cancel)
    choices = [_choice(work, answer) for answer in answers.all]
    return json_response(_envelope(work) | {"choices": choices, "usage": _usage(work)})


def _refuse(model: ServedModel, body: CompletionBody) -> None:
    if body.suffix is not None:
        raise ApiError(400, "suffix: not supported", param="suffix")
    if body.best_of not in (None, body.n or 1):
        raise ApiError(400, "best_of: want n, or nothing", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: want 1 or more without echo", param="max_tokens")
    if body.echo and model.source.model.reads_source:
        raise ApiError(400, "echo: not supported by an encoder-decoder, whose prompt is the source", param="echo")
    if body.output is not None and not model.source.model.reads_source:
        raise ApiError(400, "output: want none, because only an encoder-decoder writes an output", param="output")


def _prepare(model: ServedModel, body: CompletionBody, client: Client) -> tuple[list[list[int]], list[Any]]:
    """Encode prompts and make requests; it may take long, so it runs beside the event loop."""
    prompts = _prompts(model, body)
    count = body.logprobs
    wanted = RequestOptions(
        DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        count,
        count if body.echo and count is not None else None,
        response_rules(body.response_format),
        output=None if body.output is None else check_ids(model, body.output, "output"),
    )
    return prompts, engine_requests(model, body, prompts, wanted, client)


def _prompts(model: ServedModel, body: CompletionBody) -> list[list[int]]:
    """Return the ids of each prompt: a text, texts, ids or lists of ids."""
    given = body.prompt
    if isinstance(given, str):
        return [model.ids(given)]
    if not given or (len(given) * (body.n or 1) > MAX_PROMPTS and not isinstance(given[0], int)):
        raise ApiError(400, f"prompt: want 1 to {MAX_PROMPTS} prompts, samples counted", param="prompt")
    single = [one for one in given if isinstance(one, int)]
    if single:
        return [check_ids(model, single)]
    several = [one for one in given if not isinstance(one, int)]
    return [model.ids(one) if isinstance(one, str) else check_ids(model, one) for one in several]


def _envelope(work: Completions) -> dict[str, Any]:
    return {
        "id": f"cmpl-{work.exchange.id}",
        "object": "text_completion",
        "created": work.exchange.created,
        "model": work.model.source.name,
    }


def _choice(work: Completions, answer: Answer) -> dict[str, Any]:
    """Return one whole text."""
    echoed, none_new = work.echoed(answer), work.body.max_tokens == 0
    before = work.model.tokenizer.decode(echoed) if echoed else ""
    logprobs = None
    if work.body.logprobs is not None:
        known: Sequence[TokenLogprobs | None] = answer.handle.prompt_logprobs if echoed and answer.handle else ()
        new = [] if none_new else answer.ids
        found = [*known, *([] if none_new else answer.logprobs)]
        logprobs = TokenTexts(work.model).completion([*echoed, *new], found, work.body.logprobs)
    ids = {"token_ids": [] if none_new else answer.ids} if work.body.return_token_ids else {}
    return {
        "index": answer.index,
        "text": before + ("" if none_new else answer.text),
        **ids,
        "logprobs": logprobs,
        "finish_reason": "length" if none_new or answer.reason is None else REASONS[answer.reason],
        "heddle_finish_reason": answer.reason,
    }


def _usage(work: Completions) -> dict[str, Any]:
    new = 0 if work.body.max_tokens == 0 else sum(len(answer.ids) for answer in work.answers.all)
    return usage(sum(map(len, work.prompts)), new, work.answers.cached_tokens, work.exchange)


def usage(prompt: int, new: int, cached: int, exchange: RequestContext) -> dict[str, Any]:
    """Return the usage of a response, and note it for metrics."""
    exchange.note_usage(prompt, new, cached)
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": details,
    }


async def _stream(work: Completions) -> AsyncIterator[dict[str, Any]]:
    """Yield a chunk for each piece of text, and the usage if it is requested."""
    with_usage = work.body.stream_options is not None and bool(work.body.stream_options.include_usage)
    extra = {"usage": None} if with_usage else {}
    texts, started = TokenTexts(work.model), set[int]()
    async for piece in work.answers.pieces():
        answer = work.answers.all[piece.index]
        echo = piece.index not in started and bool(work.body.echo)
        started.add(piece.index)
        choice = _streamed(work, answer, piece, texts, echo)
        if choice["text"] or choice.get("token_ids") or choice["finish_reason"] or choice["logprobs"] is not None:
            yield _envelope(work) | {"choices": [choice]} | extra
    found = _usage(work)
    if with_usage:
        yield _envelope(work) | {"choices": [], "usage": found}


def _streamed(work: Completions, answer: Answer, piece: Piece, texts: TokenTexts, echo: bool) -> dict[str, Any]:
    """Return one chunk of a text; the first one repeats the prompt if that is requested."""
    echoed = work.echoed(answer) if echo else []
    none_new, count = work.body.max_tokens == 0, work.body.logprobs
    logprobs = None
    if count is not None:
        known: list[TokenLogprobs | None] = [*answer.handle.prompt_logprobs] if echoed and answer.handle else []
        new = [] if none_new or piece.id is None else [piece.id]
        logprobs = texts.completion([*echoed, *new], [*known, *([piece.logprobs] if new else [])], count)
    before = work.model.tokenizer.decode(echoed) if echoed else ""
    ids = {"token_ids": [] if none_new or piece.id is None else [piece.id]} if work.body.return_token_ids else {}
    return {
        "index": piece.index,
        "text": before + ("" if none_new else piece.text),
        **ids,
        "logprobs": logprobs,
        "finish_reason": None if piece.reason is None else "length" if none_new else REASONS[piece.reason],
    }
