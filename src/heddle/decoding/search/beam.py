"""Beam search: several sequences of each prompt grow side by side, and the best that end are kept (Lowerre 1976).

Finished sequences are ranked by the sum of their step scores over length to the power of `length_penalty` (GNMT, Wu et
al. 2016), where the length counts new tokens alone, plus the coverage penalty (`coverage.py`). A step score is the
log-probability of a token by the model; penalties change it, and constraints remove tokens, but the remaining ones are
not renormalized: the most probable of the allowed sequences wins.

Diverse beam search (Vijayakumar et al. 2016): groups of beams search in turn. A token costs a group `diversity` for
each live sequence of the earlier groups that took it at this step. This cost ranks candidates and is then dropped. One
beam is greedy search, unless a length penalty lets it continue after an end, for a better one.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch

from heddle.core import ConfigError, UsageError, check_at_least, part
from heddle.decoding.generation import (
    BatchOutputs,
    Completion,
    DecodingStrategy,
    GenerationConfig,
    StepOutput,
    StopCriterion,
    TokenLogprobs,
    all_samples,
    chosen_logprobs,
)
from heddle.decoding.runtime import PrefixCache, Request, eval_mode, prepare_prefill, read_all
from heddle.decoding.search.beam_loop import SearchSettings, run_search
from heddle.models.networks import AutoregressiveModel


@part("beams")
class BeamSearch(DecodingStrategy):
    """Beam search: the most probable sequence of each prompt, by `beams` sequences that grow side by side."""

    streams = False
    compiles = False

    beams: int = 4
    length_penalty: float = 0.0  # rank by log-probability / length ** this: 0 the sum, 1 the mean over tokens
    coverage: float = 0.0  # weight of the coverage penalty; 0: none
    groups: int = 1  # groups of beams, for diverse beam search
    diversity: float = 0.0  # what a token costs for each sequence of earlier groups that takes it at the same step

    def __post_init__(self) -> None:
        check_at_least(1, beams=self.beams)
        if not abs(self.length_penalty) <= 10:  # beyond it, long rows overflow
            raise ConfigError("length_penalty", want="a number from -10 to 10, such as 1", got=self.length_penalty)
        if not 0 <= self.coverage < math.inf:
            raise ConfigError("coverage", want="0 or more", got=self.coverage)
        if self.groups < 1 or self.beams % self.groups:
            raise ConfigError("groups", want=f"a number that divides the {self.beams} beams", got=self.groups)
        if not 0 <= self.diversity < math.inf:
            raise ConfigError("diversity", want="0 or more", got=self.diversity)
        if self.diversity and self.groups == 1:
            raise ConfigError("diversity", want="0 where all beams are one group", got=self.diversity)
        if self.groups > 1 and not self.diversity:
            raise ConfigError("diversity", want="above 0, for otherwise all groups find the same", got=0)

    @property
    def max_samples(self) -> int:
        return self.beams

    def check(self, config: GenerationConfig) -> None:
        """Refuse more samples than beams."""
        if config.samples > self.beams:
            raise ConfigError("samples", want=f"at most the {self.beams} beams", got=config.samples)

    def check_source(self, has_source: bool) -> None:
        """Refuse coverage of a source, where there is none."""
        if self.coverage and not has_source:
            raise ConfigError("coverage", want="0, since a language model has no source", got=self.coverage)

    def decode(
        self,
        model: AutoregressiveModel,
        requests: Sequence[Request],
        config: GenerationConfig,
        should_stop: StopCriterion | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> BatchOutputs:
        """Yield the ids of the best sequences, once the search is over."""
        found = self.complete(model, requests, config, should_stop, prefix_cache)
        for row, completion in enumerate(all_samples(found, config.samples)):
            ids, logprobs = completion.ids, completion.token_logprobs
            yield [
                StepOutput(
                    row,
                    id,
                    completion.reason if i + 1 == len(ids) else None,
                    logprobs[i] if logprobs else None,
                )
                for i, id in enumerate(ids)
            ] or [StepOutput(row, None, completion.reason)]

    def complete(
        self,
        model: AutoregressiveModel,
        requests: Sequence[Request],
        config: GenerationConfig,
        should_stop: StopCriterion | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> list[list[Completion]]:
        """Return the best sequences of each request, best first; fewer than `samples` where no more were found."""
        if should_stop is not None:
            raise UsageError("stop: want none with several beams, which end at the end token alone")
        settings = SearchSettings(
            config,
            frozenset(config.stop),
            self.beams,
            self.length_penalty,
            self.coverage,
            self.groups,
            self.diversity,
        )
        found = run_search(model, requests, settings, prefix_cache)
        if config.alternatives is None:
            return found
        flat = [(request, best) for request, each in zip(requests, found, strict=True) for best in each]
        logprobs = iter(_compute_logprobs(model, [(request, best.ids) for request, best in flat], config))
        return [[dataclasses.replace(best, token_logprobs=next(logprobs)) for best in each] for each in found]


@torch.inference_mode()
def _compute_logprobs(
    model: AutoregressiveModel, found: Sequence[tuple[Request, Sequence[int]]], config: GenerationConfig
) -> list[list[TokenLogprobs]]:
    """Return the log-probabilities of all new ids of each request, read once more in parallel."""
    prefill = prepare_prefill(model, [request for request, _ in found], config.prefill)
    rows = [[*prompt, *ids[:-1]] for prompt, (_, ids) in zip(prefill.prompts, found, strict=True)]
    computed = []
    with eval_mode(model):
        vectors, _, _ = read_all(model, prefill, rows)
        for row, prompt, (_, ids) in zip(vectors, prefill.prompts, found, strict=True):
            logits = model.head.logits(row[len(prompt) - 1 : len(prompt) - 1 + len(ids)])
            each = chosen_logprobs(
                logits, torch.tensor(ids, dtype=torch.long, device=logits.device), config.alternatives
            )
            computed.append([one for one in each if one is not None])
    return computed
