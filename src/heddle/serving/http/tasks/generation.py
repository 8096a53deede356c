"""Routes of tasks that generate, by requests to the engine beside all others: translate, summarize, answer."""

import asyncio
from collections.abc import Sequence
from math import fsum
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heddle.core import replace
from heddle.decoding import generation_config
from heddle.decoding.generation import GenerationConfig
from heddle.decoding.runtime import Request as Prompt
from heddle.serving import EngineRequest
from heddle.serving.http.answers import Answer, Answers
from heddle.serving.http.bodies import MAX_PROMPTS, read_body
from heddle.serving.http.context import RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.responses import until_hang_up
from heddle.serving.http.served_model import ServedModel
from heddle.serving.http.tasks.bodies import AnswerBody, GenerationTaskBody, SummarizeBody, TranslateBody
from heddle.serving.http.tasks.results import made, paired, results
from heddle.tasks.few_shot import AnswerGenerator, few_shot
from heddle.tasks.generation import Translator, merged, summarizer, translator
from heddle.tasks.labelling import Answerer
from heddle.tasks.scoring import with_special_tokens

MAX_LENGTH_RATIO = 2.0  # new tokens of a translation per source token, as `heddle translate` has it
TOGETHER = 8  # requests of one HTTP request that are in the engine at once


async def generated(
    request: Request,
    exchange: RequestContext,
    model: ServedModel,
    wanted: Sequence[EngineRequest],
    stop: Sequence[str] = (),
) -> list[Answer]:
    """Generate for requests, some at a time; a client that hangs up ends them."""
    found: list[Answer] = []
    for first in range(0, len(wanted), TOGETHER):
        answers = Answers(model.generating, model.tokenizer, wanted[first : first + TOGETHER], stop)
        answers.start(exchange.client.name)
        await until_hang_up(request, answers.finish(), answers.cancel)
        found += answers.all
    prompts = sum(len(one.request.source or one.request.ids) for one in wanted)
    exchange.note_usage(prompts, sum(len(one.ids) for one in found), 0)
    return found


def _options(body: GenerationTaskBody, *more: str) -> Any:
    """Return the options of a search that are given."""
    names = ("beams", "length_penalty", "max_tokens", *more)
    return {name: value for name, value in body if name in names and value is not None}


# --- encoder-decoders -------------------------------------------------------------------------------------------------


async def translate(request: Request) -> Response:
    """Answer POST /v1/heddle/translate: by beam search, as `heddle translate` does; a blank text stays blank."""
    exchange = RequestContext.of(request)
    body = await read_body(request, TranslateBody)
    model = exchange.find(body.model)
    texts = await model.texts(body.texts, "texts")
    given = {"beams": 4, "max_tokens": 512, "max_length_ratio": MAX_LENGTH_RATIO} | _options(body)
    if given["beams"] > 1:
        given = {"length_penalty": 1.0} | given
    task = made(lambda: translator(model.source.model, model.tokenizer, generation_config(given)))
    sources = await asyncio.to_thread(lambda: [task.source(text) for text in texts])
    found = iter(await _written(request, exchange, model, task, [one for one in sources if one is not None]))
    return results(model, [{"text": "" if one is None else next(found)} for one in sources])


async def summarize(request: Request) -> Response:
    """Answer POST /v1/heddle/summarize: windows of a long text are summarized, and their summaries joined."""
    exchange = RequestContext.of(request)
    body = await read_body(request, SummarizeBody)
    model = exchange.find(body.model)
    texts = [body.texts] if isinstance(body.texts, str) else body.texts
    if not any(texts):
        raise ApiError(400, "texts: want one or more", param="texts")
    options = _options(body, "min_tokens", "no_repeat_ngram")
    task = made(lambda: summarizer(model.source.model, model.tokenizer, model.source.settings, options))
    windows = await asyncio.to_thread(lambda: [task.windows(text) for text in texts])
    every = [ids for own in windows for ids in own]
    if len(every) > MAX_PROMPTS:
        want = f"texts of at most {MAX_PROMPTS} windows of the model's context, got {len(every)}"
        raise ApiError(400, f"texts: want {want}", param="texts")
    found = iter(await _written(request, exchange, model, task.translator, every))
    data = [{"text": merged([next(found) for _ in own]), "windows": max(1, len(own))} for own in windows]
    return results(model, data)


async def _written(
    request: Request, exchange: RequestContext, model: ServedModel, task: Translator, sources: Sequence[Sequence[int]]
) -> list[str]:
    """Return what an encoder-decoder writes to sources."""
    config = with_special_tokens(task.config, model.tokenizer)
    start = model.tokenizer.special_tokens.decoder_start
    wanted = [exchange.client.own(EngineRequest(Prompt(start, source), config)) for source in sources]
    return [task.text(one.ids) for one in await generated(request, exchange, model, wanted)]


# --- answers ----------------------------------------------------------------------------------------------------------


async def answer(request: Request) -> Response:
    """Answer POST /v1/heddle/answer: a span of the context by an encoder, or generated (few-shot)."""
    exchange = RequestContext.of(request)
    body = await read_body(request, AnswerBody)
    model = exchange.find(body.model)
    questions = await model.texts(body.questions, "questions")
    seconds = None if body.contexts is None else await model.texts(body.contexts, "contexts")
    contexts = paired(len(questions), seconds, "contexts")
    given = body.prompt("max_tokens")
    if given or (contexts is None and model.engine is not None):
        if body.must:
            raise ApiError(400, "must: has no effect on answers that are generated", param="must")
        return results(model, await _generated_answers(request, exchange, body, questions, contexts))
    if contexts is None:
        raise ApiError(400, "contexts: want one for each question", param="contexts")
    task = made(lambda: Answerer.of(model.source.model, model.tokenizer, bool(body.must)))
    found = []
    for question, context in zip(questions, contexts, strict=True):
        (one,) = await model.compute(lambda q=question, c=context: task.run([q], [c]))  # type: ignore[misc]
        found.append(one.plain())
    return results(model, found)


async def _generated_answers(
    request: Request,
    exchange: RequestContext,
    body: AnswerBody,
    questions: Sequence[str],
    contexts: Sequence[str] | None,
) -> list[dict[str, Any]]:
    """Return answers that are generated after a few-shot prompt."""
    model = exchange.find(body.model)
    model.generating  # noqa: B018 - refuses an encoder
    given: Any = body.prompt("max_tokens")
    prompting = few_shot(given, tuple(given))
    task = AnswerGenerator.of(model.source.model, model.tokenizer, prompting, contexts is not None)
    task.prompts.noted = True  # logs have no texts; results count the examples
    fitted = await asyncio.to_thread(task.fitted, questions, contexts)
    config: GenerationConfig = replace(task.config, compile="off")
    wanted = [exchange.client.own(EngineRequest(task.request(one), config)) for one in fitted]
    found = await generated(request, exchange, model, wanted, [task.stop])
    return [
        {"text": one.text.strip(), "logprob": fsum(step.logprob for step in one.logprobs), "examples": prompt.examples}
        for one, prompt in zip(found, fitted, strict=True)
    ]
