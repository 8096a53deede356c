"""Served models: a model with its engine, its tokenizer, its chat template and what else routes need."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from heddle.core import ConfigError, HeddleError, UsageError
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.serving import Engine, EngineConfig
from heddle.serving.http.bodies import MAX_PROMPTS
from heddle.serving.http.errors import ApiError
from heddle.tasks.generation import ConstraintCompiler, TextConstraints
from heddle.tasks.scoring import TextScore
from heddle.text.chat import Chat
from heddle.text.tokenizers import Tokenizer, token_bytes_of

T = TypeVar("T")
Scorer = Callable[[Sequence[str], Sequence[str] | None], Sequence[TextScore]]  # of texts, and their sources if any


@dataclass(frozen=True)
class ModelSource:
    """What a model is served from; `embed` and `score` compute for texts (and the sources of an encoder-decoder)."""

    name: str
    model: Model
    tokenizer: Tokenizer
    template: str | None = None
    embed: Callable[[Sequence[str]], Tensor] | None = None
    score: Scorer | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of an imported model: how it writes summaries


@dataclass
class ServedModel:
    """One model of the server."""

    source: ModelSource
    engine: Engine | None
    created: int = field(default_factory=lambda: int(time.time()))
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "heddle-encoder"))
    _compiling: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, source: ModelSource, config: EngineConfig) -> "ServedModel":
        """Start the engine of a model; an encoder needs none."""
        model = source.model
        if not model.can_generate:
            return cls(source, None)
        return cls(
            source, Engine(require(model, AutoregressiveModel, UsageError("model: want one that generates")), config)
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.source.tokenizer

    @property
    def generating(self) -> Engine:
        """Return the engine; refuse an encoder."""
        if self.engine is None:
            raise ApiError(400, f"model: {self.source.name} is an encoder, which does not generate", param="model")
        return self.engine

    @cached_property
    def chat(self) -> Chat:
        """Return the chat template; refuse a model without one."""
        if self.source.template is None:
            raise ApiError(400, f"model: {self.source.name} has no chat template; use /v1/completions", param="model")
        return Chat(self.source.template, self.tokenizer)

    @cached_property
    def token_bytes(self) -> Sequence[bytes] | None:
        """Return the bytes of each id inside a text; None: the tokenizer's decoder is unknown."""
        try:
            return token_bytes_of(self.tokenizer).inside
        except HeddleError:
            return None

    @cached_property
    def most_characters(self) -> int | None:
        """Return the length of a text beyond which it cannot fit; None: no limit."""
        if self.engine is None or self.token_bytes is None:
            return None
        return self.engine.capacity * max(1, max(map(len, self.token_bytes)))

    def stop_ids(self, chats: bool) -> tuple[int, ...]:
        """Return the ids that end an answer."""
        return tuple(dict.fromkeys((*self.tokenizer.special_tokens.ends, *(self.chat.stops.ids if chats else ()))))

    def constraint(self, rules: TextConstraints, after: Sequence[int], limit: int, chats: bool) -> Any:
        """Compile constraints, for a text that follows some ids."""
        with self._compiling:  # one at a time, and never on the event loop
            compiler = (
                self._compilers[chats]
                if chats in self._compilers
                else ConstraintCompiler(self.tokenizer, self.stop_ids(chats))
            )
            self._compilers[chats] = compiler
            return compiler.compile(rules).begin(after, limit)

    @cached_property
    def _compilers(self) -> dict[bool, ConstraintCompiler]:
        return {}

    def run(self, function: Callable[[], T]) -> "Future[T]":
        """Call a function where the model computes."""
        return self._worker.submit(function) if self.engine is None else self.engine.run(function)

    def ids(self, text: str, name: str = "prompt") -> list[int]:
        """Return the ids of a prompt, or of a source; refuse one that is certainly too long before reading it."""
        if self.most_characters is not None and len(text) > self.most_characters:
            raise ApiError(400, f"{name}: longer than the model's context", param=name, code="context_length_exceeded")
        return self.tokenizer.source(text) if self.source.model.reads_source else self.tokenizer.encode_prompt(text)

    async def compute(self, function: Callable[[], T]) -> T:
        """Call a function where the model computes, and wait for it beside the event loop."""
        return await asyncio.wrap_future(self.run(function))

    async def texts(self, given: str | Sequence[Any], name: str) -> list[str]:
        """Return the texts of a field, none of them empty or too long; ids are decoded."""
        return await asyncio.to_thread(self._texts, [given] if isinstance(given, str) else given, name)

    def _texts(self, several: Sequence[Any], name: str) -> list[str]:
        if several and all(isinstance(one, int) for one in several):
            several = [several]
        if not several or len(several) > MAX_PROMPTS or any(not one for one in several):
            raise ApiError(400, f"{name}: want 1 to {MAX_PROMPTS} texts, none of them empty", param=name)
        texts = [one if isinstance(one, str) else self.tokenizer.decode(check_ids(self, one, name)) for one in several]
        for text in texts:
            self.ids(text, name)
        return texts

    def close(self, drain: float | None) -> None:
        """End the engine."""
        if self.engine is not None:
            self.engine.close(drain)
        self._worker.shutdown(wait=False, cancel_futures=True)


class ServedModels:
    """The models of a server by name; a request that names none gets the first."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        names = [one.source.name for one in models]
        if not names or len(set(names)) < len(names):
            raise ConfigError("models", want="one or more, each with a name of its own", got=names)
        self.by_name: Mapping[str, ServedModel] = dict(zip(names, models, strict=True))

    def find(self, name: str | None) -> ServedModel:
        """Return a model by its name."""
        if name is None:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            known = ", ".join(self.by_name)
            raise ApiError(404, f"model: want one of {known}", param="model", code="model_not_found")
        return self.by_name[name]

    def __iter__(self) -> Any:
        """Iterate over the models."""
        return iter(self.by_name.values())

    @property
    def alive(self) -> bool:
        """Tell whether all engines work."""
        return all(one.engine is None or one.engine.is_alive() for one in self)

    def close(self, drain: float | None) -> None:
        """End all engines; the seconds to drain are those of all together."""
        end = None if drain is None else time.monotonic() + drain
        for one in self:
            one.close(None if end is None else max(0.0, end - time.monotonic()))


def check_ids(model: ServedModel, ids: Sequence[int], name: str = "prompt") -> list[int]:
    """Return ids that a client gave; refuse those that the model does not have."""
    vocab = model.source.model.vocab
    if not ids or vocab is None or not 0 <= min(ids) <= max(ids) < vocab:
        raise UsageError(f"{name}: want one or more ids from 0 to {(vocab or 1) - 1}")
    return list(ids)
