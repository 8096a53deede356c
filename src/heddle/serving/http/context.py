"""Exchanges: one request and its response: who asks, under which id, and what it used, for logs and metrics."""

import dataclasses
import hashlib
import secrets
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from heddle.serving import EngineRequest
from heddle.serving.http.metrics import Metrics
from heddle.serving.http.served_model import ServedModel, ServedModels


@dataclass(frozen=True)
class Client:
    """Who asks: whose turn it is in the queue, and with whom cached prefixes are shared."""

    name: str  # a hash of the key, or else of the address
    cache_salt: str  # with a key, its hash: how fast a prompt is read tells nothing about the prompts of others

    @classmethod
    def of(cls, request: Request) -> "Client":
        """Return the client of a request."""
        key = request.headers.get("authorization", "")
        name = _digest(key or (request.client.host if request.client else ""))
        return cls(name, name if key and request.app.state.has_keys else "")

    def own(self, request: EngineRequest) -> EngineRequest:
        """Return a request to the engine as this client's."""
        return dataclasses.replace(request, client=self.name, cache_salt=self.cache_salt)


@dataclass
class RequestContext:
    """A request on its way."""

    models: ServedModels
    metrics: Metrics
    client: Client
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    log: dict[str, object] = field(default_factory=dict)  # what the access log says of it, never text

    @classmethod
    def of(cls, request: Request) -> "RequestContext":
        """Return the exchange of a request."""
        state = request.app.state
        found = cls(state.models, state.metrics, Client.of(request))
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
