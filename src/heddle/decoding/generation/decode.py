"""Autoregressive generation: prompts -> new ids, whole or as they are chosen, by any decoding strategy."""

import contextlib
from collections.abc import Iterator, Sequence

from heddle.core import replace
from heddle.decoding.generation.generation_config import GenerationConfig, GenerationJob
from heddle.decoding.generation.outputs import Completion, StepOutputs, StopCriterion, all_samples
from heddle.decoding.runtime import PrefixCache, Prompt, Request, Source, make_requests, prepare_prefill
from heddle.models.networks import AutoregressiveModel


def generate(
    model: AutoregressiveModel,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    sources: Sequence[Source] | None = None,
) -> list[list[int]]:
    """Return the new ids of each prompt, a stop id included; the samples of a prompt side by side.

    An encoder-decoder needs a source for each prompt; the prompt is then the beginning of the target, mostly empty.
    """
    return [completion.ids for completion in complete(model, make_requests(prompts, sources), config)]


def complete(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    should_stop: StopCriterion | None = None,
    prefix_cache: PrefixCache | None = None,
) -> list[Completion]:
    """Return the completions of all requests, the samples of a request side by side.

    The ids of a row never depend on the other rows. A prefix cache changes the speed alone.
    """
    job = GenerationJob(model, requests, config, should_stop, prefix_cache)
    return all_samples(config.strategy.complete(job), config.samples)


def follow(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    should_stop: StopCriterion | None = None,
    prefix_cache: PrefixCache | None = None,
) -> StepOutputs:
    """Yield every new id of every row, row by row within a step; strategies that do not stream yield at the end."""
    job = GenerationJob(model, requests, config, should_stop, prefix_cache)
    with contextlib.closing(config.strategy.decode(job)) as steps:
        for outputs in steps:
            yield from outputs


def stream(
    model: AutoregressiveModel, prompt: Prompt, config: GenerationConfig, source: Prompt | None = None
) -> Iterator[int]:
    """Yield the ids of the first sample one by one, as they are chosen."""
    with contextlib.closing(follow(model, [Request(prompt, source)], replace(config, samples=1))) as steps:
        yield from (step.id for step in steps if step.id is not None)


def max_new_tokens(model: AutoregressiveModel, request: Request, config: GenerationConfig) -> int:
    """Return how many new tokens a request can have at most."""
    prefill = prepare_prefill(model, [request], config.prefill)
    return prefill.ends[0] - len(prefill.prompts[0])
