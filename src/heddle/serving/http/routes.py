"""The other routes: embeddings, scores, models, tokens, health, readiness and metrics."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from heddle.serving.http.bodies import (
    DetokenizeBody,
    EmbeddingBody,
    ScoreBody,
    TokenizeBody,
    read_body,
)
from heddle.serving.http.chat import messages_of
from heddle.serving.http.completions import usage
from heddle.serving.http.context import RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.logprobs import number
from heddle.serving.http.responses import json_response
from heddle.serving.http.served_model import ServedModel, check_ids
from heddle.serving.http.tasks import task_names

# --- embeddings and scores --------------------------------------------------------------------------------------------


async def embeddings(request: Request) -> Response:
    """Answer POST /v1/embeddings: one text after the other, so that none depends on its neighbours."""
    exchange = RequestContext.of(request)
    body = await read_body(request, EmbeddingBody)
    model = exchange.find(body.model)
    embed = model.source.embed
    if embed is None:
        raise ApiError(400, f"model: {model.source.name} does not embed texts", param="model")
    if body.dimensions is not None:
        raise ApiError(400, "dimensions: not supported; embeddings have the model's width", param="dimensions")
    texts = await model.texts(body.input, "input")
    data = []
    for index, text in enumerate(texts):
        (row,) = await model.compute(lambda text=text: embed([text]))  # type: ignore[misc]
        vector = row.float().tolist()
        packed = base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
        found = packed if body.encoding_format == "base64" else vector
        data.append({"object": "embedding", "index": index, "embedding": found})
    counted = sum(len(model.tokenizer.encode(text)) for text in texts)
    numbers = usage(counted, 0, 0, exchange)
    kept = {name: numbers[name] for name in ("prompt_tokens", "total_tokens")}
    return json_response({"object": "list", "data": data, "model": model.source.name, "usage": kept})


async def score(request: Request) -> Response:
    """Answer POST /v1/heddle/score: the log-probability of each text."""
    exchange = RequestContext.of(request)
    body = await read_body(request, ScoreBody)
    model = exchange.find(body.model)
    compute = model.source.score
    if compute is None:
        raise ApiError(400, f"model: {model.source.name} does not score texts", param="model")
    texts = await model.texts(body.texts, "texts")
    sources = None if body.sources is None else await model.texts(body.sources, "sources")
    if sources is not None and len(sources) != len(texts):
        raise ApiError(400, f"sources: want {len(texts)}, one for each text", param="sources")
    data = []
    for index, text in enumerate(texts):
        own = None if sources is None else [sources[index]]
        (found,) = await model.compute(lambda text=text, own=own: compute([text], own))  # type: ignore[misc]
        data.append(
            {
                "index": index,
                "logprob": number(found.logprob),
                "tokens": len(found.ids),
                "perplexity": found.perplexity,
                "bits_per_byte": found.bits_per_byte,
            }
        )
    return json_response({"object": "list", "data": data, "model": model.source.name})


# --- models and tokens ------------------------------------------------------------------------------------------------


def _card(model: ServedModel) -> dict[str, Any]:
    limit = model.source.model.context if model.engine is None else model.engine.capacity
    card = {"id": model.source.name, "object": "model", "created": model.created, "owned_by": "heddle"}
    return card | {"max_model_len": limit, "tasks": list(task_names(model))}


async def list_models(request: Request) -> Response:
    """Answer GET /v1/models."""
    return json_response({"object": "list", "data": [_card(model) for model in RequestContext.of(request).models]})


async def one_model(request: Request) -> Response:
    """Answer GET /v1/models/{id}."""
    return json_response(_card(RequestContext.of(request).find(request.path_params["id"])))


async def tokenize(request: Request) -> Response:
    """Answer POST /tokenize; without special tokens, the name of one alone has its id."""
    exchange = RequestContext.of(request)
    body = await read_body(request, TokenizeBody)
    model = exchange.find(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt: want a prompt or messages, one of them", param="prompt")
    ids = await asyncio.to_thread(_tokenized, model, body)
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": _card(model)["max_model_len"]})


def _tokenized(model: ServedModel, body: TokenizeBody) -> Sequence[int]:
    if body.messages is not None:
        prompts = body.add_generation_prompt is not False
        return model.chat.ids(messages_of(body.messages), add_generation_prompt=prompts)
    text = body.prompt or ""
    if body.add_special_tokens is not False:
        return model.ids(text)
    named = model.tokenizer.special_tokens.named_ids.values()  # lm-eval asks for the id of `eos_token` in this way
    return next(([id] for id in named if model.tokenizer.token(id) == text), model.tokenizer.encode(text))


async def detokenize(request: Request) -> Response:
    """Answer POST /detokenize."""
    exchange = RequestContext.of(request)
    body = await read_body(request, DetokenizeBody)
    model = exchange.find(body.model)
    ids = check_ids(model, body.tokens, "tokens") if body.tokens else []
    return json_response({"prompt": model.tokenizer.decode(ids, special=True)})


async def tokenizer_info(request: Request) -> Response:
    """Answer GET /tokenizer_info: the special tokens, and the chat template, as lm-eval reads them."""
    model = RequestContext.of(request).find(request.query_params.get("model"))
    tokenizer = model.tokenizer
    named = {name: tokenizer.token(id) for name, id in tokenizer.special_tokens.named_ids.items()}
    info: dict[str, Any] = {"tokenizer_class": "HeddleTokenizer", "vocab_size": tokenizer.vocab} | named
    info["model_max_length"] = _card(model)["max_model_len"]
    return json_response(info if model.source.template is None else info | {"chat_template": model.source.template})


# --- the server itself ------------------------------------------------------------------------------------------------


async def health(request: Request) -> Response:
    """Answer GET /health: 200 while all engines take turns."""
    alive = request.app.state.models.alive
    return json_response({"status": "ok" if alive else "failed"}, 200 if alive else 503)


async def ready(request: Request) -> Response:
    """Answer GET /ready: 200 while new requests are accepted."""
    open_ = request.app.state.models.alive and not request.app.state.draining.is_set()
    return json_response({"status": "ready" if open_ else "not ready"}, 200 if open_ else 503)


async def metrics(request: Request) -> Response:
    """Answer GET /metrics in Prometheus' text format."""
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4")


async def responses(request: Request) -> Response:
    """Refuse /v1/responses by name."""
    raise ApiError(404, "/v1/responses: not served; use /v1/chat/completions", code="not_served")
