"""Generation options: the keywords of `LM.generate` and the command line, and the generation config they mean."""

import logging
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypedDict, cast, get_args

from heddle.core import ConfigError, decode, nearest
from heddle.decoding.generation import (
    ContrastiveSearch,
    DecodingStrategy,
    GenerationConfig,
    GreedySearch,
    MultinomialSampling,
)
from heddle.decoding.runtime import Compile, StreamingConfig
from heddle.decoding.sampling import PenaltyConfig
from heddle.decoding.search import BeamSearch
from heddle.nn.state import KVCacheConfig


class GenerationOptions(TypedDict, total=False):
    """The settings of `GenerationConfig` that a caller may choose; None: the default. The tokenizer has the others."""

    max_tokens: int | None
    min_tokens: int | None
    forced_end: bool | None  # whether the last of max_tokens tokens is the end
    samples: int | None
    seconds: float | None
    max_length_ratio: float | None
    logprobs: int | None
    chunk: int | None
    cache: str | None  # full or int8
    compile: str | None  # auto, on or off
    temperature: float | None  # 0: greedy search, without filters; None: 0, or 1 with a filter
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    seed: int | None
    beams: int | None  # 1: no beam search
    length_penalty: float | None
    coverage: float | None
    groups: int | None
    diversity: float | None
    early_stopping: str | None  # never, heuristic or full
    contrast: float | None  # weight of novelty in contrastive search, among top_k candidates
    repetition: float | None
    presence: float | None
    frequency: float | None
    no_repeat_ngram: int | None  # n-grams of so many tokens occur once in a row
    bias: Mapping[int, float] | Mapping[str, float] | None  # added to the logits of ids; -inf bans; texts: `LM` only
    strategy: DecodingStrategy | str | None  # any other decoding strategy, or the name of its kind
    window: int | None  # with sinks: how many of the latest tokens are kept
    sinks: int | None  # attention sinks: first tokens that are kept, so that a text may be longer than the context


LIMITS = ("max_tokens", "min_tokens", "forced_end", "samples", "seconds", "max_length_ratio", "logprobs", "chunk")
FILTERS = ("top_k", "top_p", "min_p", "typical")
BEAMS = ("length_penalty", "coverage", "groups", "diversity", "early_stopping")
PENALTIES = ("repetition", "presence", "frequency", "no_repeat_ngram")
STRATEGY_OPTIONS = ("temperature", "seed", "beams", "contrast", *FILTERS, *BEAMS)  # what a strategy replaces

COUNTS = ("max_tokens", "min_tokens", "samples", "logprobs", "chunk")
INTEGERS = (*COUNTS, "window", "sinks", "top_k", "seed", "beams", "groups", "no_repeat_ngram")
NON_NUMERIC = ("cache", "compile", "bias", "strategy", "early_stopping", "forced_end")
NO_OP_VALUES = {"top_p": 1, "min_p": 0, "typical": 1}  # values that turn a filter off

SetOptions = dict[str, Any]  # the options that are not None
log = logging.getLogger("heddle")


RENAMED = {"stretch": "max_length_ratio", "alternatives": "logprobs"}  # former names of options, still accepted


def generation_config(options: GenerationOptions) -> GenerationConfig:
    """Make a generation config of options; refuse options that contradict each other."""
    for old in options.keys() & RENAMED.keys():
        log.warning("%s is now called %s", old, RENAMED[old])
    options = cast(GenerationOptions, {RENAMED.get(name, name): value for name, value in options.items()})
    for name in options:
        if name not in GenerationOptions.__annotations__:
            known = ", ".join(GenerationOptions.__annotations__)
            near = nearest(name, GenerationOptions.__annotations__)
            raise ConfigError(name, want=f"one of {known}", got=name, near=near)
    given: SetOptions = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name in INTEGERS and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise ConfigError(name, want="a whole number", got=value)
        if name not in NON_NUMERIC and (isinstance(value, bool) or not isinstance(value, Real)):
            raise ConfigError(name, want="a number", got=value)
    if not isinstance(given.get("forced_end", False), bool):
        raise ConfigError("forced_end", want="True or False", got=given["forced_end"])
    strategy, penalties = _strategy(given), {name: given[name] for name in PENALTIES if name in given}
    config = GenerationConfig(
        strategy=strategy,
        penalties=PenaltyConfig(bias=_biases(given.get("bias", {})), **penalties),
        cache=_cache(given.get("cache", "full")),
        compile=_compile(given.get("compile", "auto")),
        streaming=_streaming(given),
        **{name: given[name] for name in LIMITS if name in given},
    )
    if config.compile == "on" and not strategy.compiles:
        raise ConfigError("compile", f"'on' is not supported by the decoding strategy {strategy.kind}")
    if config.samples > 1 and strategy.max_samples == 1:
        raise ConfigError("samples", f"{strategy.kind} decoding gives one text; set `temperature` to 1 to sample")
    return config


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, Mapping):
        raise ConfigError("bias", want="a dict of tokens and numbers, such as {3: -5.0}", got=given)
    for value in given.values():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError("bias", want="a number for each token", got=value)
    return tuple(given.items())


def _compile(word: object) -> Compile:
    for known in get_args(Compile):
        if word == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError("compile", want=f"one of {', '.join(get_args(Compile))}", got=word)


def _streaming(given: SetOptions) -> StreamingConfig | None:
    if "sinks" not in given:
        if "window" in given:
            raise ConfigError("window", "only used with attention sinks; set `sinks`, perhaps to 4")
        return None
    if "window" not in given:
        raise ConfigError("window", want="a number of tokens beside sinks", got=None)
    return StreamingConfig(window=given["window"], sinks=given["sinks"])


def _cache(kind: Any) -> KVCacheConfig:
    """Return the KV cache by its kind."""
    try:
        return decode(KVCacheConfig, kind, "")
    except ConfigError as error:
        raise ConfigError("cache", want=error.want, got=error.got, near=error.near) from None


def _strategy(given: SetOptions) -> DecodingStrategy:
    """Return the decoding strategy that the options mean."""
    if "strategy" in given:
        return _own_strategy(given)
    if given.get("beams", 1) != 1:
        _refuse_sampling(given, "beam search", ("contrast", *FILTERS))
        return BeamSearch(beams=given["beams"], **{name: given[name] for name in BEAMS if name in given})
    for name in BEAMS:
        if given.get(name, BeamSearch.__dict__[name]) != BeamSearch.__dict__[name]:
            raise ConfigError(name, "only used by beam search; set `beams` to 2 or more")
    if "contrast" in given:
        _refuse_sampling(given, "contrastive search", ("top_p", "min_p", "typical"))
        return ContrastiveSearch(**{name: given[name] for name in ("contrast", "top_k") if name in given})
    filters = {name: given[name] for name in FILTERS if name in given}
    temperature = given.get("temperature", float(bool(filters)))
    if temperature == 0:
        MultinomialSampling(**filters)
        for name, value in filters.items():
            if name not in NO_OP_VALUES or value != NO_OP_VALUES[name]:
                raise ConfigError(name, "has no effect with temperature 0 (greedy); set a higher one")
        return GreedySearch()
    if not temperature > 0:
        raise ConfigError("temperature", want="0 or more", got=temperature)
    return MultinomialSampling(temperature=temperature, seed=given.get("seed", 0), **filters)


def _own_strategy(given: SetOptions) -> DecodingStrategy:
    """Return the strategy that was given itself, or by its kind."""
    for name in STRATEGY_OPTIONS:
        if name in given:
            raise ConfigError(name, "cannot be combined with strategy, which has its own settings")
    strategy = given["strategy"]
    return strategy if isinstance(strategy, DecodingStrategy) else decode(DecodingStrategy, strategy, "strategy")


def _refuse_sampling(given: SetOptions, search: str, names: tuple[str, ...]) -> None:
    for name in ("temperature", *names):
        if name in given and (name != "temperature" or given[name]):
            raise ConfigError(name, f"not used by {search}, which does not sample")
