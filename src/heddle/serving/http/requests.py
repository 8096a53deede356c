"""Requests: bodies of the routes that generate, as requests to the engine."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.core import replace
from heddle.decoding import GenerationOptions, generation_config
from heddle.decoding.generation import GenerationConfig
from heddle.decoding.runtime import Request
from heddle.serving import EngineRequest
from heddle.serving.http.bodies import Sampling
from heddle.serving.http.context import Client
from heddle.serving.http.errors import ApiError
from heddle.serving.http.served_model import ServedModel
from heddle.tasks.generation import TextConstraints, make_constraints
from heddle.tasks.scoring import with_special_tokens

MAX_STOPS, LONGEST_STOP = 16, 256
SEED_BITS = 53


@dataclass(frozen=True)
class RequestOptions:
    """What a body asks for beyond sampling, in one form for completions and chats.

    output: what an encoder-decoder has written so far; None: nothing.
    """

    max_tokens: int | None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    rules: TextConstraints | None = None
    chats: bool = False  # stop ids of the chat template end the answer
    output: Sequence[int] | None = None


def stop_strings(body: Sampling, more: Sequence[str] = ()) -> list[str]:
    """Return the stop strings of a body, and those of a template."""
    given = [body.stop] if isinstance(body.stop, str) else list(body.stop or ())
    if len(given) > MAX_STOPS or any(not 0 < len(text) <= LONGEST_STOP for text in given):
        want = f"at most {MAX_STOPS} texts of 1 to {LONGEST_STOP} characters"
        raise ApiError(400, f"stop: want {want}", param="stop")
    return [*given, *more]


def engine_requests(
    model: ServedModel, body: Sampling, prompts: Sequence[Sequence[int]], options: RequestOptions, client: Client
) -> list[EngineRequest]:
    """Return a request to the engine for each sample of each prompt; of a search, one for all samples."""
    config = _config(model, body, options)
    found: list[EngineRequest] = []
    for ids in prompts:
        request = _request(model, ids, options.output)
        new = _new_tokens(model, request, options.max_tokens)
        own = replace(config, max_tokens=new, min_tokens=min(config.min_tokens, new))
        if options.rules is not None:
            constraint = model.constraint(options.rules, request.ids, new, options.chats)
            request = Request(request.ids, request.source, constraint)
        samples = own.samples if own.strategy.streams else 1
        one = client.own(EngineRequest(request, own, prompt_logprobs=options.prompt_logprobs))
        found += [replace_sample(one, number) for number in range(samples)]
    return found


def replace_sample(request: EngineRequest, sample: int) -> EngineRequest:
    """Return the same request for another sample."""
    return dataclasses.replace(request, sample=sample)


def _request(model: ServedModel, ids: Sequence[int], output: Sequence[int] | None) -> Request:
    """Return a request for ids: a prompt, or the source of an encoder-decoder, which goes on with its output."""
    if model.source.model.reads_source:
        return Request(model.tokenizer.special_tokens.decoder_start if output is None else output, ids)
    return Request(ids)


def _new_tokens(model: ServedModel, request: Request, wanted: int | None) -> int:
    """Return how many new tokens a request may have; refuse more than its slot holds."""
    capacity, used = model.generating.capacity, len(request.ids)
    room = capacity + 1 - used  # the last token is never read
    if room < max(1, wanted or 0):
        message = f"prompt: {used} tokens and {wanted or 1} new ones are more than the model's context of {capacity}"
        raise ApiError(400, message, param="prompt", code="context_length_exceeded")
    return min(room, model.source.model.context) if wanted is None else max(1, wanted)


def _config(model: ServedModel, body: Sampling, options: RequestOptions) -> GenerationConfig:
    """Return the generation config of a body, by OpenAI's defaults: temperature 1, and a fresh seed each time."""
    config = with_special_tokens(generation_config(_sampling(model, body, options)), model.tokenizer)
    if not options.chats:
        return config
    return replace(config, stop=tuple(dict.fromkeys((*config.stop, *model.stop_ids(chats=True)))))


def _sampling(model: ServedModel, body: Sampling, wanted: RequestOptions) -> GenerationOptions:
    options: dict[str, Any] = {
        "presence": body.presence_penalty,
        "frequency": body.frequency_penalty,
        "repetition": body.repetition_penalty,
        "bias": _bias(model, body.logit_bias),
        "samples": body.n,
        "logprobs": wanted.logprobs,
        "min_tokens": body.min_tokens,
    }
    temperature = 1.0 if body.temperature is None else body.temperature
    if wanted.max_tokens:
        options["max_tokens"] = max(wanted.max_tokens, body.min_tokens or 0)
    elif body.min_tokens:
        options["max_tokens"] = body.min_tokens
    if body.beams is not None and body.beams > 1:
        if body.stop:
            raise ApiError(400, "stop: not supported with beams", param="stop")
        options |= {"beams": body.beams, "length_penalty": body.length_penalty}
    elif temperature > 0:
        top_k = None if body.top_k in (None, 0, -1) else body.top_k
        seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed
        top_p = None if body.top_p == 1 else body.top_p
        options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        options["min_p"] = body.min_p or None
    elif body.n is not None and body.n > 1:  # the same greedy text several times, as OpenAI does
        options |= {"temperature": 1.0, "top_k": 1, "seed": 0}
    return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]


def _bias(model: ServedModel, given: Mapping[str, float] | None) -> dict[int, float] | None:
    """Return the bias by id, whose names are numbers."""
    if not given:
        return None
    vocab = model.source.model.vocab or 0
    found: dict[int, float] = {}
    for name, value in given.items():
        known = name.isascii() and name.isdecimal() and len(name) <= 12 and int(name) < vocab
        if not known or not -100 <= value <= 100:
            want = f"ids from 0 to {vocab - 1} with numbers from -100 to 100"
            raise ApiError(400, f"logit_bias: want {want}", param="logit_bias")
        found[int(name)] = value
    return found


def response_rules(given: Mapping[str, Any] | None) -> TextConstraints | None:
    """Return the constraints of a response_format; None: any text."""
    match given:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return make_constraints(schema={"type": "object"})
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return make_constraints(schema=schema)
    want = "text, json_object, or json_schema with a schema"
    raise ApiError(400, f"response_format: want {want}", param="response_format")
