"""Looking inside a served model: what `heddle explain` shows, all logits of a place, and two models on one text.

It runs where the model computes, between two steps of decoding, so that no hook sees a step of somebody else's request.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from heddle.explain import ExplainOptions, NextTokens, explain_options, kl_divergences, next_tokens, place_logits
from heddle.explain import explain as look
from heddle.serving.http.bodies import DivergenceBody, ExplainBody, InspectionBody, LogitsBody, read_body
from heddle.serving.http.context import RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.playground.capabilities import ModelCapabilities, capabilities_of
from heddle.serving.http.responses import json_response
from heddle.serving.http.served_model import ServedModel, check_ids

T = TypeVar("T")
SERVED = ("probabilities", "attention", "gates", "lens", "residual", "experts", "beams")
LONGEST = 1 << 14  # characters of a text
MAX_TOKENS = 2048
MAX_PASSES = 256  # tokens where each costs a pass, or a distribution for each layer
MAX_NUMBERS = 1 << 21  # attention weights or gates of an answer, about 24 MB
MAX_LOGITS = 1 << 25  # of two models side by side


async def computed(model: ServedModel, function: Callable[[], T]) -> T:
    """Call a function where the model computes, and wait for it beside the event loop."""
    return await asyncio.wrap_future(model.run(function))


async def explain(request: Request) -> Response:
    """Answer POST /v1/heddle/explain: the JSON of `heddle explain`."""
    exchange = RequestContext.of(request)
    body = await read_body(request, ExplainBody)
    model = exchange.find(body.model)
    given = {"what": body.what, "top": body.top, "beams": body.beams, "max_tokens": body.max_tokens}
    options = explain_options({name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    for name in options.what or ():
        if name not in SERVED:
            raise ApiError(400, f"what: {name} is not served; use `heddle explain`", param="what")
    ids = await asyncio.to_thread(text_ids, model, body.text)
    full = with_output(model, options, body)
    length = len(ids) + max(options.max_tokens, len(full.output or ()))
    _check_work(await capabilities_of(request, model), full, length if model.source.model.reads_source else len(ids))
    source = model.source
    found = await computed(model, lambda: look(source.model, source.tokenizer, body.text, full, source.name))
    text = await asyncio.to_thread(found.to_json)
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


def text_ids(model: ServedModel, text: str | Sequence[int], name: str = "text") -> Sequence[int]:
    """Return the ids of a text, or ids as given; refuse what is too long before the model reads it."""
    if isinstance(text, str) and len(text) > LONGEST:
        raise ApiError(400, f"{name}: want at most {LONGEST} characters", param=name)
    found = model.ids(text, name) if isinstance(text, str) else check_ids(model, text, name)
    context = model.source.model.context if model.engine is None else model.engine.capacity
    most = min(MAX_TOKENS, MAX_TOKENS if context is None else context)
    if len(found) > most:
        raise ApiError(400, f"{name}: want at most {most} tokens, got {len(found)}", param=name)
    return found


def with_output(model: ServedModel, options: ExplainOptions, body: InspectionBody) -> ExplainOptions:
    """Return the options with the output of an encoder-decoder."""
    if body.output is None:
        return options
    if not model.source.model.reads_source:
        raise ApiError(400, "output: want none, because only an encoder-decoder writes an output", param="output")
    if isinstance(body.output, str):
        if not 0 < len(body.output) <= LONGEST:
            raise ApiError(400, f"output: want 1 to {LONGEST} characters", param="output")
        return ExplainOptions(**asdict(options) | {"output": body.output})
    ids = check_ids(model, body.output, "output")
    if len(ids) > MAX_TOKENS:
        raise ApiError(400, f"output: want at most {MAX_TOKENS} tokens, got {len(ids)}", param="output")
    return ExplainOptions(**asdict(options) | {"output": tuple(ids)})


def _check_work(able: ModelCapabilities, options: ExplainOptions, length: int) -> None:
    """Refuse what would keep others waiting, or be too many numbers."""
    passes = able.kind.endswith("encoder") and "probabilities" in options.names
    most = MAX_PASSES if passes or {"lens", "residual"} & set(options.what or ()) else MAX_TOKENS
    if able.heads and "attention" in options.names:
        most = min(most, int((MAX_NUMBERS / able.heads) ** 0.5))
    if able.gates and "gates" in options.names:
        most = min(most, MAX_NUMBERS // able.gates)
    if length > most:
        names = ", ".join(name for name in options.names)
        raise ApiError(400, f"text: want at most {most} tokens for {names}, got {length}", param="text")


async def logits(request: Request) -> Response:
    """Answer POST /v1/heddle/logits: all logits at a place, from which every temperature's probabilities follow."""
    exchange = RequestContext.of(request)
    body = await read_body(request, LogitsBody)
    model = exchange.find(body.model)
    await asyncio.to_thread(text_ids, model, body.text)
    options = ExplainOptions(top=20 if body.top is None else body.top, max_tokens=body.max_tokens or 40)
    full, source = with_output(model, options, body), model.source
    found = await computed(model, lambda: place_logits(source.model, source.tokenizer, body.text, body.place, full))
    return json_response(await asyncio.to_thread(found.plain) | {"model": source.name})


async def divergence(request: Request) -> Response:
    """Answer POST /v1/heddle/divergence: log-probabilities by two models, and their KL divergence at each token."""
    exchange = RequestContext.of(request)
    body = await read_body(request, DivergenceBody)
    read = []
    for model in map(exchange.find, body.models):
        ids = await asyncio.to_thread(text_ids, model, body.text)
        if len(ids) * (model.source.model.vocab or 1) > MAX_LOGITS:
            most = MAX_LOGITS // (model.source.model.vocab or 1)
            raise ApiError(400, f"text: want at most {most} tokens, got {len(ids)}", param="text")
        read.append(await computed(model, partial(_next, model, body.text)))
    first, second = read
    kl = await asyncio.to_thread(kl_divergences, first, second)
    sequence = first.reading.main
    about: dict[str, Any] = {"models": body.models, "ids": list(sequence.ids), "tokens": list(sequence.texts), "kl": kl}
    return json_response(about | {"surprisals": [list(one.found.surprisals) for one in read]})


def _next(model: ServedModel, text: str | Sequence[int]) -> NextTokens:
    return next_tokens(model.source.model, model.tokenizer, text)
