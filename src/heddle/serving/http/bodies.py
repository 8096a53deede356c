"""Bodies of requests: what each route takes, in OpenAI's names; unknown fields are refused, null means unset."""

import asyncio
import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from heddle.serving.http.errors import ApiError

MAX_BYTES = 2 << 20  # of a body
BODY_SECONDS = 10.0  # within which a body must have come
MAX_PROMPTS = 256
MAX_CHOICES = 16  # `n`
MAX_LOGPROBS = 20
MAX_NUMBER = 1 << 31

Stop = str | list[str] | None
Count = int | None


class Body(BaseModel):
    """A body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Body):
    """What all routes that generate have in common. The last six are of other servers, and of Heddle."""

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, max_length=1024)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Stop = Field(None)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    return_token_ids: bool | None = None
    top_k: int | None = Field(None, ge=-1, lt=MAX_NUMBER)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=1e-3, le=100)
    min_tokens: int | None = Field(None, ge=0, lt=MAX_NUMBER)
    beams: int | None = Field(None, ge=1, le=MAX_CHOICES)
    length_penalty: float | None = Field(None, ge=-10, le=10)


class CompletionBody(Sampling):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    max_tokens: int | None = Field(None, ge=0, lt=MAX_NUMBER)
    suffix: str | None = None
    output: list[int] | None = None  # of an encoder-decoder: what it has written so far, from its first id on
    response_format: dict[str, Any] | None = None


class ChatBody(Sampling):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    max_tokens: int | None = Field(None, ge=1, lt=MAX_NUMBER)
    max_completion_tokens: int | None = Field(None, ge=1, lt=MAX_NUMBER)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=128)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class EmbeddingBody(Body):
    """POST /v1/embeddings."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class TokenizeBody(Body):
    """POST /tokenize: a text, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, max_length=4096)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int] = Field(max_length=1 << 20)


class ScoreBody(Body):
    """POST /v1/heddle/score: texts, with a source for each where the model reads one."""

    model: str | None = None
    texts: str | list[str]
    sources: str | list[str] | None = None


class InspectionBody(Body):
    """What all routes that look inside a model have in common; `output` is what an encoder-decoder writes."""

    model: str | None = None
    text: str | list[int]
    output: str | list[int] | None = None
    top: int | None = Field(None, ge=1, le=64)
    max_tokens: int | None = Field(None, ge=1, le=64)


class AttentionBody(InspectionBody):
    """POST /v1/heddle/attention: thumbnails of all heads, or the weights of one head of a layer."""

    layer: int | None = Field(None, ge=0, lt=MAX_NUMBER)
    head: int | None = Field(None, ge=0, lt=MAX_NUMBER)


class ExplainBody(InspectionBody):
    """POST /v1/heddle/explain: what to look at, while the model reads a text or ids."""

    what: str | list[str] | None = None
    beams: int | None = Field(None, ge=1, le=8)


class LogitsBody(InspectionBody):
    """POST /v1/heddle/logits: all logits at one place."""

    place: int = Field(ge=0, lt=MAX_NUMBER)


class DivergenceBody(Body):
    """POST /v1/heddle/divergence: two models that read the same text."""

    models: list[str] = Field(min_length=2, max_length=2)
    text: str | list[int]


B = TypeVar("B", bound=Body)


async def read_body(request: Request, kind: type[B]) -> B:
    """Read, parse and check a body within the limits of size and time."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MAX_BYTES:
        raise ApiError(413, f"body: want at most {MAX_BYTES} bytes", code="body_too_large")
    try:
        raw = await asyncio.wait_for(_read(request), BODY_SECONDS)
    except TimeoutError:
        raise ApiError(408, f"body: want it within {BODY_SECONDS:g} s", code="timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "body: cut short") from None
    try:
        return kind.model_validate(_parse(raw))
    except ValidationError as error:
        raise _invalid(error) from None


async def _read(request: Request) -> bytes:
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > MAX_BYTES:
            raise ApiError(413, f"body: want at most {MAX_BYTES} bytes", code="body_too_large")
    return bytes(found)


def _parse(raw: bytes) -> Any:
    """Parse JSON strictly: UTF-8, without NaN, lone surrogates, endless nesting and numbers of thousands of digits."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise ApiError(400, "body: want JSON in UTF-8", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "body: want a JSON object", code="invalid_json")
    return value


def _invalid(error: ValidationError) -> ApiError:
    """Return the first fault as one line that names the field."""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = [str(one) for one in fault["loc"]]
    name = place[0] if place else "body"
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"{'.'.join(place)[:100]}: not a field of this route", param=name[:100])
    if fault["type"] == "missing":
        return ApiError(400, f"{name}: required", param=name)
    return ApiError(400, f"{name}: {fault['msg'][:200]}", param=name)
