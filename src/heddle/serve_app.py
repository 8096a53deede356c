"""The app of `heddle serve` for any ASGI server: `serve_app({"first": heddle.load("runs/first")})`; needs `serve`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from heddle.lm import LM
from heddle.serving import Address, EngineConfig

if TYPE_CHECKING:
    from fastapi import FastAPI

    from heddle.serving.http import ModelSource, Scorer
    from heddle.tasks.scoring import TextScore


def serve_app(
    models: Mapping[str, LM], config: EngineConfig | None = None, address: Address | None = None
) -> "FastAPI":
    """Start an engine for each model, by the name that requests give; return the app over them.

    The app ends its engines when its server shuts down (the lifespan protocol of ASGI). Of the address, the keys, the
    origins and the names in the Host header count.
    """
    from heddle.serving.http import Access, ServedModel, ServedModels, make_app

    config = EngineConfig() if config is None else config
    started = [ServedModel.start(model_source(name, lm), config) for name, lm in models.items()]
    return make_app(ServedModels(started), Access.of(Address() if address is None else address))


def model_source(name: str, lm: LM) -> "ModelSource":
    """Return what a loaded model is served from."""
    from heddle.serving.http import ModelSource

    return ModelSource(name, lm.model, lm.tokenizer, lm.origin.template, lm.embed, _scorer(lm), lm.origin.settings)


def _scorer(lm: LM) -> "Scorer":
    def score(texts: Sequence[str], sources: Sequence[str] | None) -> "Sequence[TextScore]":
        return lm.score(texts) if sources is None else lm.score(texts, source=sources)

    return score
