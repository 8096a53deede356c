"""The app: OpenAI's routes over served models, as an ASGI application for any server."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heddle.core import HeddleError
from heddle.serving.http import routes, tasks
from heddle.serving.http.chat import chat_completions
from heddle.serving.http.completions import completions
from heddle.serving.http.errors import ApiError
from heddle.serving.http.gate import Access, Gate
from heddle.serving.http.metrics import Metrics
from heddle.serving.http.playground import (
    PAGE_PATHS,
    attention,
    capabilities,
    divergence,
    explain,
    logits,
    page,
    page_file,
)
from heddle.serving.http.responses import error_response, log_fault
from heddle.serving.http.served_model import ServedModels

DRAIN_SECONDS = 30.0

TASKS = {
    "classify": tasks.classify,
    "tag": tasks.tag,
    "answer": tasks.answer,
    "fill": tasks.fill,
    "embed": tasks.embed,
    "rescore": tasks.rescore,
    "translate": tasks.translate,
    "summarize": tasks.summarize,
}
ROUTES = (
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/embeddings", routes.embeddings),
    ("POST", "/v1/heddle/score", routes.score),
    *((("POST", f"/v1/heddle/{name}", handler)) for name, handler in TASKS.items()),
    ("POST", "/v1/heddle/explain", explain),
    ("POST", "/v1/heddle/attention", attention),
    ("POST", "/v1/heddle/logits", logits),
    ("POST", "/v1/heddle/divergence", divergence),
    ("GET", "/v1/heddle/models", capabilities),
    ("POST", "/v1/responses", routes.responses),
    ("GET", "/v1/models", routes.list_models),
    ("GET", "/v1/models/{id:path}", routes.one_model),
    ("POST", "/tokenize", routes.tokenize),
    ("POST", "/detokenize", routes.detokenize),
    ("GET", "/tokenizer_info", routes.tokenizer_info),
    ("GET", "/", page),
    ("GET", "/static/{name}", page_file),
    ("GET", "/health", routes.health),
    ("GET", "/ready", routes.ready),
    ("GET", "/metrics", routes.metrics),
)


def make_app(models: ServedModels, access: Access | None = None) -> FastAPI:
    """Return the application; whoever serves it sets `app.state.draining` before it ends, and closes the models.

    A server that tells the app of its shutdown (the lifespan protocol) has that done.
    """
    app = FastAPI(
        title="Heddle", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=_lifespan
    )
    app.state.models, app.state.metrics, app.state.draining = models, Metrics(models), threading.Event()
    app.state.capabilities = {}
    access = Access() if access is None else access
    app.state.has_keys = bool(access.keys)
    for method, path, handler in ROUTES:
        app.add_route(path, handler, methods=[method])
    for kind in (ApiError, HeddleError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(
        Gate,
        access=dataclasses.replace(access, open_paths=access.open_paths | PAGE_PATHS),
        metrics=app.state.metrics,
        draining=app.state.draining,
        paths={handler: path for _, path, handler in ROUTES},
    )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """End the engines when the server shuts down."""
    yield
    app.state.draining.set()
    await asyncio.to_thread(app.state.models.close, DRAIN_SECONDS)


async def _on_error(request: Request, error: Exception) -> Response:
    """Return any error in OpenAI's shape."""
    if isinstance(error, HTTPException):
        known = {404: "no such route", 405: "method not allowed here"}
        found = ApiError(error.status_code, known.get(error.status_code, "refused"), code="unknown_url")
    else:
        found = ApiError.of(error)
        log_fault(error)
    return error_response(found)
