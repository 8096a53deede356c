"""Capabilities: what each served model can show and do, found by asking it, so that the page offers nothing else."""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heddle.core import HeddleError
from heddle.explain import ExplainOptions
from heddle.explain import explain as look
from heddle.serving.http.context import RequestContext
from heddle.serving.http.responses import json_response
from heddle.serving.http.served_model import ServedModel
from heddle.serving.http.tasks import trained_tasks

FORMS = ("answer", "classify", "fill", "summarize", "tag", "translate")  # tasks that the page has a form for


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model can show, and how many numbers that is."""

    kind: str  # a language model, an encoder-decoder, an encoder
    shows: tuple[str, ...]
    tasks: tuple[str, ...]
    heads: int  # attention maps of all layers together
    layer_heads: int  # of the layer with most of them
    gates: int  # numbers of all cells for each token
    chats: bool

    @classmethod
    def of(cls, model: ServedModel) -> "ModelCapabilities":
        """Let a model read one token; called where it computes."""
        source = model.source
        found = look(source.model, source.tokenizer, [0], ExplainOptions(max_tokens=1))
        plain = found.plain()
        heads = [one["shape"][0] for one in plain.get("attention", ())]
        gates = sum(len(rows[0]) for cell in plain.get("gates", ()) for rows in cell["values"].values())
        shows = (*found.sections, *(() if model.engine is None else ("beams",)))
        chats = source.template is not None and model.engine is not None and not source.model.reads_source
        return cls(found.kind, shows, _forms(model), sum(heads), max(heads, default=0), gates, chats)

    def plain(self, model: ServedModel) -> dict[str, Any]:
        """Return it as plain data."""
        source, engine = model.source, model.engine
        special, pair = source.tokenizer.special_tokens, source.model.reads_source
        start, ends = (list(special.decoder_start), list(special.ends)) if pair else ([], [])
        context = source.model.context if engine is None else engine.capacity
        found: dict[str, Any] = {"id": source.name, "kind": self.kind, "vocab": source.model.vocab, "context": context}
        found |= {"shows": list(self.shows), "tasks": list(self.tasks), "generates": engine is not None}
        return found | {"chat": self.chats, "start": start, "ends": ends}


def _forms(model: ServedModel) -> tuple[str, ...]:
    """Return the tasks that a model was trained for and that the page has a form for."""
    return tuple(name for name in trained_tasks(model) if name in FORMS)


async def capabilities_of(request: Request, model: ServedModel) -> ModelCapabilities:
    """Return what a model can show; it is asked once."""
    known: dict[str, ModelCapabilities] = request.app.state.capabilities
    name = model.source.name
    if name not in known:
        known[name] = await asyncio.wrap_future(model.run(lambda: ModelCapabilities.of(model)))
    return known[name]


async def capabilities(request: Request) -> Response:
    """Answer GET /v1/heddle/models: what each model can show and do; one that cannot be looked into shows nothing."""
    data = []
    for model in RequestContext.of(request).models:
        try:
            found = await capabilities_of(request, model)
        except HeddleError:
            found = ModelCapabilities(model.source.model.config.noun, (), _forms(model), 0, 0, 0, False)
        data.append(found.plain(model))
    return json_response({"object": "list", "data": data})
