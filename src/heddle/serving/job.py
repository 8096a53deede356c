"""Jobs: requests as the engine's thread sees them, and counters of what it did."""

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from heddle.core import HeddleError, UsageError
from heddle.decoding.generation import GenerationJob, MixedRow, StepOutput, mixed_row
from heddle.decoding.runtime import FinishReason, Prefill, prepare_prefill
from heddle.decoding.speculative import speculate
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import KVCacheConfig
from heddle.serving.chunked_prefill import PromptReader
from heddle.serving.handle import EngineFault, EngineRequest, Event, Handle

log = logging.getLogger("heddle")


@dataclass
class Counters:
    """What the engine has done so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    moved: int = 0  # slots copied so that steps have fewer rows


@dataclass(eq=False)
class Job:
    """A request, and how far it is: waiting, being read, in a slot, or searching by itself."""

    request: EngineRequest
    prefill: Prefill
    row: MixedRow | None  # None: it needs more than one step's logits, and runs by itself
    handle: Handle = field(init=False)
    reader: PromptReader | None = None
    steps: Iterator[list[StepOutput]] | None = None

    def report(self, event: Event) -> bool:
        """Report to the client; False: the client fails, and is no longer there."""
        try:
            self.handle.notify(event)
        except Exception:  # a client's fault is nobody else's
            log.exception("the listener of a request failed")
            return False
        return True

    def release(self) -> None:
        """Give up the row of its prompt."""
        if self.reader is not None:
            self.reader.move(None)
            self.reader = None

    def fail(self, error: BaseException) -> None:
        """Report what went wrong, in one line."""
        if not isinstance(error, HeddleError):
            log.error("a request failed", exc_info=error)
            error = EngineFault(f"request: stopped by {type(error).__name__}")
        self.report(error)

    def search(self, model: AutoregressiveModel) -> Iterator[list[StepOutput]]:
        """Return the steps of a generation that runs by itself."""
        request = self.request
        if request.draft is not None:
            steps = speculate(model, [request.request], request.config, request.draft, request.should_stop)
            return ([step] for step in steps)
        return request.config.strategy.decode(
            GenerationJob(model, [request.request], request.config, request.should_stop)
        )


@dataclass(frozen=True)
class SlotLimits:
    """How many tokens a slot holds: of prompt and answer together, and of a source."""

    capacity: int
    source: int


def make_job(model: AutoregressiveModel, request: EngineRequest, cache: KVCacheConfig, limits: SlotLimits) -> Job:
    """Check a request and return its job; refuse a prompt that does not fit into a slot."""
    config = request.config
    prefill = prepare_prefill(model, [request.request], config.prefill)
    alone = config.strategy.chooser is None or request.draft is not None or config.cache != cache
    if alone:
        return Job(request, prefill, None)
    if not 0 <= request.sample < config.samples:
        raise UsageError(f"sample: want one from 0 to {config.samples - 1}, got {request.sample}")
    if prefill.sources is not None and len(prefill.sources[0]) > limits.source:
        raise UsageError(f"source: want at most {limits.source} tokens, got {len(prefill.sources[0])}")
    prefill = _within(prefill, limits.capacity)
    return Job(request, prefill, mixed_row(prefill, request.request, config, request.sample, request.should_stop))


def _within(prefill: Prefill, capacity: int) -> Prefill:
    """Return the prefill with the end that a slot allows; its last token is never read."""
    length, end = len(prefill.prompts[0]), prefill.ends[0]
    if length > capacity:
        raise UsageError(f"prompt: want at most {capacity} tokens, got {length}")
    if end <= capacity + 1:
        return prefill
    return dataclasses.replace(prefill, ends=(capacity + 1,), end_reasons=(FinishReason.CONTEXT,))
