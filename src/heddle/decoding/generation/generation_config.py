"""Generation config: how many tokens, by which decoding strategy, where to stop; and what every strategy implements."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle.core import Config, ConfigError, check_at_least, kinds, replace, settings, within
from heddle.decoding.generation.outputs import BatchOutputs, Completion, StepOutput, StopCriterion
from heddle.decoding.runtime import Compile, PrefillOptions, PrefixCache, Request, StreamingConfig, check_cache
from heddle.decoding.sampling import Logits, NextTokens, PenaltyConfig, RowPosition
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import FullKVCacheConfig, KVCacheConfig

MAX_TOKENS = 1 << 24  # new tokens of a row
MAX_ROWS = 1024  # samples or beams of a prompt, which are decoded side by side

check_tokens = within(f"at most {MAX_TOKENS:,}", lambda number: number <= MAX_TOKENS)
check_rows = within(f"at most {MAX_ROWS:,}", lambda number: number <= MAX_ROWS)


class Sampler(ABC):
    """A distribution that tokens are drawn from, with seeded random numbers."""

    @abstractmethod
    def probabilities(self, logits: Logits) -> Logits:
        """Return the probabilities by which tokens are drawn, in double precision."""

    @abstractmethod
    def uniform(self, position: RowPosition, use: str = "next") -> float:
        """Return the random number in [0, 1) of a position; different uses draw independently."""


class TokenChooser(ABC):
    """How a token is chosen from its processed logits alone."""

    argmax = False  # whether it is always the most probable token, which a captured step can choose itself

    @abstractmethod
    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        """Return an id for each row; `NO_TOKEN` where every logit is -inf."""

    @property
    def batch_key(self) -> object:
        """Return what choosers must share so that one of them can choose for the rows of all."""
        return self

    def choose_batch(
        self, logits: Logits, positions: Sequence[RowPosition], choosers: "Sequence[TokenChooser]"
    ) -> NextTokens:
        """Return an id for each row, whose own chooser has the same batch key as this one."""
        return self.choose(logits, positions)

    @property
    def sampler(self) -> Sampler | None:
        """Return the distribution that tokens are drawn from; None: nothing is drawn."""
        return None


class DecodingStrategy(Config):
    """A decoding strategy: how new tokens, or whole sequences, are chosen.

    `StepStrategy` is the base of those that choose token by token, `TokenStrategy` of those that need the logits alone.
    """

    streams = True  # whether a token is final as soon as it is chosen
    compiles = True  # whether its steps can be compiled

    @property
    def chooser(self) -> TokenChooser | None:
        """Return how single tokens are chosen, for speculative decoding; None: not from the logits alone."""
        return None

    @property
    def draws(self) -> bool:
        """Tell whether tokens are drawn at random, by seed."""
        return self.chooser is not None and self.chooser.sampler is not None

    @property
    def max_samples(self) -> int | None:
        """Return the number of different sequences that one prompt can have; None: no limit."""
        return None if self.draws else 1

    def check(self, config: "GenerationConfig") -> None:
        """Refuse settings of a generation that this strategy cannot serve."""

    def check_source(self, has_source: bool) -> None:
        """Refuse settings that need a source, where the model reads none."""

    @abstractmethod
    def decode(self, job: "GenerationJob") -> BatchOutputs:
        """Yield what all rows do, step by step; in batches, since every yield costs more than a row."""

    def complete(self, job: "GenerationJob") -> list[list[Completion]]:
        """Return the completions of each request: `config.samples`, or fewer where a search finds no more."""
        samples = job.config.samples
        rows: list[list[StepOutput]] = [[] for _ in range(len(job.requests) * samples)]
        for outputs in self.decode(job):
            for step in outputs:
                rows[step.row].append(step)
        made = [Completion.from_steps(row) for row in rows]
        return [made[i : i + samples] for i in range(0, len(made), samples)]


def _greedy() -> DecodingStrategy:
    return kinds(DecodingStrategy)["greedy"]()


@settings
class GenerationConfig(Config):
    """Settings of a generation; `generation_config` makes them from the options of the library and the command line."""

    old_fields = {"choice": "strategy", "stretch": "max_length_ratio", "alternatives": "logprobs"}
    max_tokens: int = 128  # new tokens for each prompt, the stop id included
    min_tokens: int = 0  # new tokens before a stop id is allowed
    strategy: DecodingStrategy = field(default_factory=_greedy)
    penalties: PenaltyConfig = PenaltyConfig()
    samples: int = 1  # continuations of each prompt: drawn independently, or the best of the beams
    forced_end: bool = False  # whether the last of `max_tokens` tokens is the end
    seconds: float | None = None  # deadline after which rows end as they are, with one token or more
    max_length_ratio: float | None = None  # new tokens per source token, at most, plus a few
    logprobs: int | None = None  # most probable tokens returned with each chosen one's logprob; None: neither
    chunk: int = 1024  # tokens of each prompt read at once; changes memory alone
    cache: KVCacheConfig = FullKVCacheConfig()  # the kind of KV cache
    streaming: StreamingConfig | None = None  # attention sinks and a window in place of the whole context
    compile: Compile = "auto"  # auto: steps are captured as CUDA graphs on a GPU; on: compiled too, for long work
    stop: tuple[int, ...] = ()  # stop ids, the end of a document among them
    begin: int | None = None  # the id that an empty prompt starts from
    vocab: int | None = None  # ids of the tokenizer: larger ones are never chosen; None: all ids of the model

    def __post_init__(self) -> None:
        check_at_least(1, max_tokens=self.max_tokens, samples=self.samples, chunk=self.chunk)
        check_at_least(0, min_tokens=self.min_tokens, logprobs=self.logprobs)
        check_tokens(max_tokens=self.max_tokens)
        check_rows(samples=self.samples)
        for name in ("seconds", "max_length_ratio"):
            if self.__dict__[name] is not None and not 0 < self.__dict__[name] < math.inf:
                raise ConfigError(name, want="above 0", got=self.__dict__[name])
        if self.min_tokens > self.max_tokens:
            raise ConfigError("min_tokens", want=f"at most max_tokens, {self.max_tokens}", got=self.min_tokens)
        self.strategy.check(self)
        if self.streaming is not None:
            check_cache(self.streaming, self.cache)
            if self.strategy.chooser is None:
                raise ConfigError("sinks", f"not supported by {self.strategy.kind} decoding; use greedy or sampling")
            if self.compile == "on":
                raise ConfigError("compile", want="auto or off with sinks", got="on")

    @property
    def prefill(self) -> PrefillOptions:
        """Return the settings that prefill depends on."""
        return PrefillOptions(
            self.max_tokens, self.max_length_ratio, self.begin, self.chunk, self.cache, self.streaming
        )

    def with_special_tokens(
        self, begin: int, ends: tuple[int, ...], never: tuple[int, ...] = (), vocab: int | None = None
    ) -> "GenerationConfig":
        """Return the settings for documents that begin and end with these ids; ids in `never` are banned."""
        biased = {id for id, _ in self.penalties.bias}
        bias = (*self.penalties.bias, *((id, -math.inf) for id in never if id not in biased))
        made = replace(self, stop=(*self.stop, *ends), begin=begin, vocab=vocab)
        return replace(made, penalties=replace(self.penalties, bias=bias)) if never else made


@dataclass(frozen=True)
class GenerationJob:
    """What a strategy decodes: requests to a model, with the settings of the generation."""

    model: AutoregressiveModel
    requests: Sequence[Request]
    config: GenerationConfig
    should_stop: StopCriterion | None = None
    prefix_cache: PrefixCache | None = None
