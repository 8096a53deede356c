"""Attention for the page, as bytes: thumbnails of all heads in one answer, and the exact weights of one head.

An answer is the length of a JSON text (four bytes, little-endian), the text, and the numbers.
"""

import asyncio
import json
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from heddle.explain import ExplainOptions, attention_of_head, attention_thumbnails
from heddle.serving.http.bodies import AttentionBody, read_body
from heddle.serving.http.context import RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.playground.capabilities import capabilities_of
from heddle.serving.http.playground.explain import computed, text_ids, with_output

MAX_WEIGHTS = 1 << 26  # of one layer, 256 MB


async def attention(request: Request) -> Response:
    """Answer POST /v1/heddle/attention: thumbnails of all heads, or with a layer and a head its weights as floats."""
    exchange = RequestContext.of(request)
    body = await read_body(request, AttentionBody)
    if (body.layer is None) != (body.head is None):
        raise ApiError(400, "head: want a layer and a head, or neither", param="head")
    model = exchange.find(body.model)
    ids = await asyncio.to_thread(text_ids, model, body.text)
    options = with_output(model, ExplainOptions(max_tokens=body.max_tokens or 40), body)
    length = max(len(ids), len(options.output or ()) or options.max_tokens * model.source.model.reads_source)
    most = int((MAX_WEIGHTS / max(1, (await capabilities_of(request, model)).layer_heads)) ** 0.5)
    if length > most:
        raise ApiError(400, f"text: want at most {most} tokens for attention, got {length}", param="text")
    about, arrays = await computed(model, lambda: _found(model.source, body, options))
    return await asyncio.to_thread(_binary, about, arrays)


def _found(source: Any, body: AttentionBody, options: ExplainOptions) -> tuple[Any, list[Any]]:
    """Return what an answer says, and its arrays."""
    if body.layer is None or body.head is None:
        layers = attention_thumbnails(source.model, source.tokenizer, body.text, options)
        return [one.plain() for one in layers], [one.codes.numpy() for one in layers]
    found = attention_of_head(source.model, source.tokenizer, body.text, (body.layer, body.head), options)
    return found.about(), [found.weights.numpy().astype("<f4")]


def _binary(about: Any, arrays: list[Any]) -> Response:
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)  # so that floats begin where a browser can read them in place
    data = [np.uint32(len(text)).astype("<u4").tobytes(), text, *(one.tobytes() for one in arrays)]
    return Response(b"".join(data), media_type="application/octet-stream")
