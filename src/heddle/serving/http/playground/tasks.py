"""Tasks of encoders as a route: classes, tags, answers in a context, and masked tokens."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heddle.core import UsageError
from heddle.serving.http.bodies import TaskBody, read_body
from heddle.serving.http.context import Exchange
from heddle.serving.http.errors import ApiError
from heddle.serving.http.responses import json_response
from heddle.serving.http.served_model import ServedModel
from heddle.tasks.labelling import Answerer, Classifier, MaskFiller, Tagger

LONGEST = 1 << 14  # characters of a text


def _answer(model: ServedModel, body: TaskBody) -> Any:
    task = Answerer.of(model.source.model, model.tokenizer)
    if body.context is None:
        raise ApiError(400, "context: required by answer", param="context")
    return dataclasses.asdict(task.run([body.text], [body.context])[0])


def _classify(model: ServedModel, body: TaskBody) -> Any:
    return dataclasses.asdict(Classifier.of(model.source.model, model.tokenizer).run([body.text])[0])


def _fill(model: ServedModel, body: TaskBody) -> Any:
    gaps = MaskFiller.of(model.source.model, model.tokenizer).run([body.text])[0]
    return [[one.plain() for one in gap] for gap in gaps]


def _tag(model: ServedModel, body: TaskBody) -> Any:
    words = Tagger.of(model.source.model, model.tokenizer).run([body.text])[0].words
    return [dataclasses.asdict(one) for one in words]


RUN: dict[str, Callable[[ServedModel, TaskBody], Any]] = {
    "answer": _answer,
    "classify": _classify,
    "fill": _fill,
    "tag": _tag,
}
MAKE: dict[str, Callable[..., object]] = {
    "answer": Answerer.of,
    "classify": Classifier.of,
    "fill": MaskFiller.of,
    "tag": Tagger.of,
}


def tasks_of(model: ServedModel) -> tuple[str, ...]:
    """Return the tasks that a model was trained for."""
    found = []
    for name, make in MAKE.items():
        try:
            make(model.source.model, model.tokenizer)
        except UsageError:
            continue
        found.append(name)
    return tuple(found)


async def task(request: Request) -> Response:
    """Answer POST /v1/heddle/task: the result of a task."""
    exchange = Exchange.of(request)
    body = await read_body(request, TaskBody)
    model = exchange.find(body.model)
    for name, text in (("text", body.text), ("context", body.context)):
        if text is not None and not 0 < len(text) <= LONGEST:
            raise ApiError(400, f"{name}: want 1 to {LONGEST} characters", param=name)
    found = await asyncio.wrap_future(model.run(lambda: RUN[body.task](model, body)))
    return json_response({"object": "heddle.task", "task": body.task, "model": model.source.name, "result": found})
