"""Results of tasks: one entry for each text, and which tasks a model has."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from starlette.responses import Response

from heddle.core import HeddleError, UsageError
from heddle.decoding import generation_config
from heddle.serving.http.errors import ApiError
from heddle.serving.http.responses import json_response
from heddle.serving.http.served_model import ServedModel
from heddle.tasks.generation import summarizer, translator
from heddle.tasks.labelling import Answerer, Classifier, MaskFiller, Tagger

T = TypeVar("T")
TASKS: Mapping[str, Callable[..., object]] = {
    "classify": Classifier.of,
    "tag": Tagger.of,
    "answer": Answerer.of,
    "fill": MaskFiller.of,
    "translate": lambda model, tokenizer: translator(model, tokenizer, generation_config({})),
    "summarize": lambda model, tokenizer: summarizer(model, tokenizer, {}, {}),
}


def task_names(model: ServedModel) -> tuple[str, ...]:
    """Return the tasks that a model has, as their routes are named."""
    return tuple(_task_names(model))


def _task_names(model: ServedModel) -> Iterator[str]:
    if model.engine is not None:
        yield from ("classify", "answer")  # few-shot
    yield from trained_tasks(model)
    known = {"score": model.source.score, "rescore": model.source.score, "embed": model.source.embed}
    yield from (name for name, has in known.items() if has is not None)


def trained_tasks(model: ServedModel) -> Iterator[str]:
    """Yield the tasks that a model was trained for."""
    for name, make in TASKS.items():
        with contextlib.suppress(HeddleError):
            make(model.source.model, model.tokenizer)
            yield name


def made(make: Callable[[], T]) -> T:
    """Return a task of a model; a model that does not have it is refused as such."""
    try:
        return make()
    except UsageError as error:
        raise ApiError(400, str(error), param="model") from None


def paired(count: int, given: Sequence[str] | None, name: str) -> Sequence[str] | None:
    """Return second texts; refuse another number of them."""
    if given is not None and len(given) != count:
        raise ApiError(400, f"{name}: want {count}, one for each text, got {len(given)}", param=name)
    return given


def results(model: ServedModel, found: Sequence[Mapping[str, Any]]) -> Response:
    """Return a response with an entry for each text, in order."""
    data = [{"index": index} | dict(one) for index, one in enumerate(found)]
    return json_response({"object": "list", "data": data, "model": model.source.name})
