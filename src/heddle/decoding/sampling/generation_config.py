"""How to generate: how much, chosen by what, from which seed, and where to stop."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypedDict, get_args

from heddle.core import Config, ConfigError, check_at_least, kinds, nearest, replace, settings
from heddle.decoding.sampling.penalties import PenaltyConfig
from heddle.decoding.sampling.strategies import (
    BeamSearch,
    ContrastiveSearch,
    DecodingStrategy,
    GreedySearch,
    MultinomialSampling,
)
from heddle.nn.state import FullKVCacheConfig, KVCacheConfig

Compile = Literal["auto", "on", "off"]


@settings
class GenerationConfig(Config):
    """Wishes for generation; `how_of` makes one from the words of the library and the command line."""

    max_tokens: int = 128  # new tokens for each prompt, the stop included
    min_tokens: int = 0  # new tokens before the first that may be a stop
    choice: DecodingStrategy = GreedySearch()
    penalties: PenaltyConfig = PenaltyConfig()
    samples: int = 1  # continuations of each prompt: drawn apart, or the best that the beams found
    seconds: float | None = None  # after which rows end as they are, with a token at least
    stretch: float | None = None  # at most so many new tokens for each of the source's, and a few more
    alternatives: int | None = None  # top tokens whose log-probabilities are kept with the chosen one's; None: nothing
    chunk: int = 1024  # tokens of each prompt read at once: more need more memory, and change nothing
    cache: KVCacheConfig = FullKVCacheConfig()  # how attention keeps what it must remember
    compile: Compile = "auto"  # auto: steps are recorded on a GPU; on: compiled first, for long work
    stop: tuple[int, ...] = ()  # ids after which a row is finished, the end of a document among them
    begin: int | None = None  # the id that an empty prompt starts from
    vocab: int | None = None  # ids that stand for something: those from here on are never chosen; None: all do

    def __post_init__(self) -> None:
        check_at_least(1, max_tokens=self.max_tokens, samples=self.samples, chunk=self.chunk)
        check_at_least(0, min_tokens=self.min_tokens, alternatives=self.alternatives)
        for name in ("seconds", "stretch"):
            if self.__dict__[name] is not None and not 0 < self.__dict__[name] < math.inf:
                raise ConfigError(name, want="above 0", got=self.__dict__[name])
        if self.min_tokens > self.max_tokens:
            raise ConfigError("min_tokens", want=f"at most max_tokens, {self.max_tokens}", got=self.min_tokens)
        if isinstance(self.choice, BeamSearch) and self.samples > self.choice.beams:
            raise ConfigError("samples", want=f"at most the {self.choice.beams} beams", got=self.samples)
        if isinstance(self.choice, ContrastiveSearch) and self.samples > 1:
            raise ConfigError("samples", want="1 with contrast, which draws nothing", got=self.samples)

    def between(
        self, begin: int, ends: tuple[int, ...], never: tuple[int, ...] = (), vocab: int | None = None
    ) -> "GenerationConfig":
        """Return the same wishes for documents that begin and end so, of so many ids that mean something."""
        said = {id for id, _ in self.penalties.bias}
        bias = (*self.penalties.bias, *((id, -math.inf) for id in never if id not in said))
        made = replace(self, stop=(*self.stop, *ends), begin=begin, vocab=vocab)
        return replace(made, penalties=replace(self.penalties, bias=bias)) if never else made


class GenerationOptions(TypedDict, total=False):
    """The words of `How` that a caller of the library may say; None: not said. The tokenizer knows the rest."""

    max_tokens: int | None
    min_tokens: int | None
    samples: int | None
    seconds: float | None
    stretch: float | None
    alternatives: int | None
    chunk: int | None
    cache: str | None  # full or quantised
    compile: str | None  # auto, on or off
    temperature: float | None  # 0: greedy, with no filter beside it; not said: 0, or 1 with a filter
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    seed: int | None
    beams: int | None  # 1: none
    length_penalty: float | None
    coverage: float | None
    groups: int | None
    diversity: float | None
    contrast: float | None  # weight of newness in contrastive search, of top_k candidates
    repetition: float | None
    presence: float | None
    frequency: float | None
    bias: Mapping[int, float] | Mapping[str, float] | None  # added to the scores of ids; -inf bans; text for `LM` only


AMOUNTS = ("max_tokens", "min_tokens", "samples", "seconds", "stretch", "alternatives", "chunk")
FILTERS = ("top_k", "top_p", "min_p", "typical")
BEAMS = ("length_penalty", "coverage", "groups", "diversity")
PENALTIES = ("repetition", "presence", "frequency")

WHOLE = ("max_tokens", "min_tokens", "samples", "alternatives", "chunk", "top_k", "seed", "beams", "groups")
WORDS = ("cache", "compile", "bias")  # which are no numbers
IDLE = {"top_p": 1, "min_p": 0, "typical": 1}  # at which a filter leaves all as it is

Said = dict[str, Any]  # the wishes that were said


def generation_config(options: GenerationOptions) -> GenerationConfig:
    """Compose wishes into a config; words that contradict each other are refused."""
    for name in options:
        if name not in GenerationOptions.__annotations__:
            known = ", ".join(GenerationOptions.__annotations__)
            raise ConfigError(
                name, want=f"one of {known}", got=name, near=nearest(name, GenerationOptions.__annotations__)
            )
    said: Said = {name: value for name, value in options.items() if value is not None}
    for name, value in said.items():
        if name in WHOLE and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise ConfigError(name, want="a whole number", got=value)
        if name not in WORDS and (isinstance(value, bool) or not isinstance(value, Real)):
            raise ConfigError(name, want="a number", got=value)
    if said.get("compile") == "on" and (said.get("beams", 1) != 1 or "contrast" in said):
        raise ConfigError("compile", want="auto or off with beams or contrast, which go step by step", got="on")
    choice, penalties = _choice(said), {name: said[name] for name in PENALTIES if name in said}
    if isinstance(choice, GreedySearch) and said.get("samples", 1) > 1:
        raise ConfigError("samples", want="1 where nothing is drawn; temperature=1 draws", got=said["samples"])
    return GenerationConfig(
        choice=choice,
        penalties=PenaltyConfig(bias=_biases(said.get("bias", {})), **penalties),
        cache=_cache(said.get("cache", "full")),
        compile=_compile(said.get("compile", "auto")),
        **{name: said[name] for name in AMOUNTS if name in said},
    )


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, Mapping):
        raise ConfigError("bias", want="a table of tokens and numbers, such as {3: -5.0}", got=given)
    for value in given.values():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError("bias", want="a number for each token", got=value)
    return tuple(given.items())


def _cache(name: object) -> KVCacheConfig:
    known = kinds(KVCacheConfig)
    if not isinstance(name, str) or name not in known:
        near = nearest(name, known) if isinstance(name, str) else None
        raise ConfigError("cache", want=" or ".join(known), got=name, near=near)
    return known[name]()


def _compile(word: object) -> Compile:
    for known in get_args(Compile):
        if word == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError("compile", want=" or ".join(get_args(Compile)), got=word)


def _choice(said: Said) -> DecodingStrategy:
    """Return the one way of choosing that the words mean."""
    if said.get("beams", 1) != 1:
        _refuse(said, "several beams, which draw nothing", ("contrast", *FILTERS))
        return BeamSearch(beams=said["beams"], **{name: said[name] for name in BEAMS if name in said})
    for name in BEAMS:
        if said.get(name, BeamSearch.__dict__[name]) != BeamSearch.__dict__[name]:
            raise ConfigError(name, want="it with several beams only", got=said[name])
    if "contrast" in said:
        _refuse(said, "contrast, which draws nothing", ("top_p", "min_p", "typical"))
        return ContrastiveSearch(**{name: said[name] for name in ("contrast", "top_k") if name in said})
    filters = {name: said[name] for name in FILTERS if name in said}
    temperature = said.get("temperature", float(bool(filters)))
    if temperature == 0:
        MultinomialSampling(**filters)
        for name, value in filters.items():
            if name not in IDLE or value != IDLE[name]:
                raise ConfigError(name, want="none with temperature 0, which draws nothing", got=value)
        return GreedySearch()
    if not temperature > 0:
        raise ConfigError("temperature", want="0 or more", got=temperature)
    return MultinomialSampling(temperature=temperature, seed=said.get("seed", 0), **filters)


def _refuse(said: Said, reason: str, names: tuple[str, ...]) -> None:
    if said.get("temperature", 0):
        raise ConfigError("temperature", want=f"0 with {reason}", got=said["temperature"])
    for name in names:
        if name in said:
            raise ConfigError(name, want=f"none with {reason}", got=said[name])
