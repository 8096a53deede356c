"""Exchanges: one request and its response: who asks, under which id, and what it used, for logs and metrics."""

import hashlib
import secrets
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from heddle.serving.http.metrics import Metrics
from heddle.serving.http.served_model import ServedModel, ServedModels


@dataclass
class RequestContext:
    """A request on its way."""

    models: ServedModels
    metrics: Metrics
    client: str  # whose turn it is in the queue: by key, or else by address
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    log: dict[str, object] = field(default_factory=dict)  # what the access log says of it, never text

    @classmethod
    def of(cls, request: Request) -> "RequestContext":
        """Return the exchange of a request."""
        state = request.app.state
        key = request.headers.get("authorization", "") or (request.client.host if request.client else "")
        found = cls(state.models, state.metrics, hashlib.sha256(key.encode()).hexdigest()[:12])
        request.scope["heddle.log"] = found.log
        found.log["id"] = found.id
        return found

    def find(self, name: str | None) -> ServedModel:
        """Return the model that a body names."""
        model = self.models.find(name)
        self.log["model"] = model.source.name
        return model

    def note_usage(self, prompt: int, new: int, cached: int) -> None:
        """Note what a request used."""
        self.log |= {"prompt_tokens": prompt, "completion_tokens": new, "cached_tokens": cached}
