"""Routes of tasks that compute and do not generate: classify, tag, fill, embed, rescore; one text after the other."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heddle.serving.http.bodies import MAX_PROMPTS, read_body
from heddle.serving.http.context import RequestContext
from heddle.serving.http.errors import ApiError
from heddle.serving.http.served_model import ServedModel
from heddle.serving.http.tasks.bodies import (
    MAX_CANDIDATES,
    ClassifyBody,
    EmbedBody,
    FillBody,
    RescoreBody,
    TagBody,
)
from heddle.serving.http.tasks.results import made, paired, results
from heddle.tasks.few_shot import FewShotClassifier, few_shot
from heddle.tasks.labelling import Classifier, MaskFiller, Tagger
from heddle.tasks.rescoring import (
    NBest,
    Rescorer,
    RescoringConfig,
    ScoringModel,
    feature_weights,
    parse_nbest,
)

WEIGHT = 0.5  # of a model, unless one is given


async def classify(request: Request) -> Response:
    """Answer POST /v1/heddle/classify: by an encoder's output, or few-shot by a model that writes text."""
    exchange = RequestContext.of(request)
    body = await read_body(request, ClassifyBody)
    model = exchange.find(body.model)
    texts = await model.texts(body.texts, "texts")
    pairs = paired(len(texts), None if body.pairs is None else await model.texts(body.pairs, "pairs"), "pairs")
    task = _classifier(model, body)
    found = []
    for index, text in enumerate(texts):
        own = None if pairs is None else [pairs[index]]
        (result,) = await model.compute(lambda text=text, own=own: task.run([text], own))  # type: ignore[misc]
        found.append(result.plain())
    return results(model, found)


def _classifier(model: ServedModel, body: ClassifyBody) -> Classifier | FewShotClassifier:
    network, tokenizer = model.source.model, model.tokenizer
    given: Any = body.prompt("labels", "calibrate")
    if not given:
        return made(lambda: Classifier.of(network, tokenizer))
    task = FewShotClassifier.of(network, tokenizer, few_shot(given, tuple(given)), body.pairs is not None)
    task.prompts.noted = True  # logs have no texts; results count the examples
    return task


async def tag(request: Request) -> Response:
    """Answer POST /v1/heddle/tag."""
    exchange = RequestContext.of(request)
    body = await read_body(request, TagBody)
    model = exchange.find(body.model)
    given = [body.texts] if isinstance(body.texts, str) else body.texts
    if (
        not given
        or len(given) > MAX_PROMPTS
        or any(not one or (not isinstance(one, str) and "" in one) for one in given)
    ):
        raise ApiError(400, f"texts: want 1 to {MAX_PROMPTS} texts or lists of words, none empty", param="texts")
    task = made(lambda: Tagger.of(model.source.model, model.tokenizer))
    found = [(await model.compute(lambda one=one: task.run([one])))[0].plain() for one in given]  # type: ignore[misc]
    return results(model, found)


async def fill(request: Request) -> Response:
    """Answer POST /v1/heddle/fill."""
    exchange = RequestContext.of(request)
    body = await read_body(request, FillBody)
    model = exchange.find(body.model)
    texts = await model.texts(body.texts, "texts")
    task = made(lambda: MaskFiller.of(model.source.model, model.tokenizer, body.top or 5))
    found = []
    for text in texts:
        (gaps,) = await model.compute(lambda text=text: task.run([text]))  # type: ignore[misc]
        found.append({"masks": [[token.plain() for token in gap] for gap in gaps]})
    return results(model, found)


async def embed(request: Request) -> Response:
    """Answer POST /v1/heddle/embed: what /v1/embeddings gives, as floats."""
    exchange = RequestContext.of(request)
    body = await read_body(request, EmbedBody)
    model = exchange.find(body.model)
    compute = model.source.embed
    if compute is None:
        raise ApiError(400, f"model: {model.source.name} does not embed texts", param="model")
    found = []
    for text in await model.texts(body.texts, "texts"):
        vector = (await model.compute(lambda text=text: compute([text])))[0]  # type: ignore[misc]
        found.append({"embedding": vector.float().tolist()})
    return results(model, found)


async def rescore(request: Request) -> Response:
    """Answer POST /v1/heddle/rescore: the best candidate of each n-best list."""
    exchange = RequestContext.of(request)
    body = await read_body(request, RescoreBody)
    model = exchange.find(body.model)
    lists = await asyncio.to_thread(lambda: [_nbest(model, record) for record in body.lists])
    source = model.source
    task = Rescorer(
        (ScoringModel(source.name, source.model, model.tokenizer),), RescoringConfig(ending=body.ending or "document")
    )
    found = [await model.compute(lambda one=one: _chosen(task, one, body)) for one in lists]  # type: ignore[misc]
    return results(model, found)


def _nbest(model: ServedModel, record: dict[str, Any]) -> NBest:
    """Read a list; refuse one that is too long, or texts that do not fit."""
    one = parse_nbest(record)
    if len(one.candidates) > MAX_CANDIDATES:
        raise ApiError(400, f"lists: want at most {MAX_CANDIDATES} candidates in each", param="lists")
    for text in (one.context, one.source or "", *(candidate.text for candidate in one.candidates)):
        model.ids(text, "lists")
    return one


def _chosen(task: Rescorer, one: NBest, body: RescoreBody) -> dict[str, Any]:
    """Return the choice of a list, its total and what the total is made of."""
    weight = body.weight if isinstance(body.weight, float) else WEIGHT
    names = [scoring.name for scoring in task.scoring_models]
    weighting = feature_weights(one.names, names, body.weights, weight=weight, bonus=body.bonus or 0.0)
    features = task.features([one])
    (index,) = weighting.arrays(features).choose(weighting.vector).tolist()
    scores = {name: float(values[index]) for name, values in features[0].items()}
    total = sum(weighting.weights[name] * value for name, value in scores.items())
    return {"id": one.id, "chosen": index, "text": one.candidates[index].text, "total": total, "scores": scores}
