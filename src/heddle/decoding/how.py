"""How to generate: how much, how boldly or how thoroughly, from which seed, and where to stop."""

from typing import TypedDict

from heddle.core import Config, ConfigError, replace, settings


@settings
class How(Config):
    """Wishes for generation; temperature 0 takes the best token each time, more beams look for the best sequence.

    The filters apply in the order temperature, top-k, top-p, min-p; a filter left empty is off.
    """

    max_tokens: int = 128  # new tokens for each prompt, the stop included
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    samples: int = 1  # continuations of each prompt: drawn apart, or the best that the beams found
    beams: int = 1  # sequences that grow side by side for each prompt
    length_penalty: float = 0.0  # beams rank by log-probability / length ** this: 0 the sum, 1 the mean over tokens
    stretch: float | None = None  # at most so many new tokens for each of the source's, and a few more
    stop: tuple[int, ...] = ()  # ids after which a row is finished, the end of a document among them
    begin: int | None = None  # the id that an empty prompt starts from

    def __post_init__(self) -> None:
        for name in ("max_tokens", "samples", "beams"):
            if self.__dict__[name] < 1:
                raise ConfigError(name, want="at least 1", got=self.__dict__[name])
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError("temperature", want="0 or more", got=self.temperature)
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError("top_k", want="at least 1", got=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError("top_p", want="more than 0 and at most 1", got=self.top_p)
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ConfigError("min_p", want="0 to 1", got=self.min_p)
        if self.stretch is not None and not 0 < self.stretch < float("inf"):
            raise ConfigError("stretch", want="above 0", got=self.stretch)
        self._check_beams()

    def _check_beams(self) -> None:
        if not abs(self.length_penalty) <= 10:  # more is beyond what numbers can hold for long rows
            raise ConfigError("length_penalty", want="a number from -10 to 10, such as 1", got=self.length_penalty)
        if self.beams == 1:
            return
        if self.temperature:
            raise ConfigError("temperature", want="0 with several beams, which draw nothing", got=self.temperature)
        if self.samples > self.beams:
            raise ConfigError("samples", want=f"at most the {self.beams} beams", got=self.samples)

    def at_end(self, end: int) -> "How":
        """Return the same wishes, with documents that begin and end at one id."""
        return replace(self, stop=(*self.stop, end), begin=end)

    def rank(self, logprob: float, length: int) -> float:
        """Return the score by which beams rank a sequence of so many new tokens."""
        return logprob / float(length**self.length_penalty)


class Wishes(TypedDict, total=False):
    """The words of `How` that a caller of the library may say; the tokenizer knows the rest."""

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int
    beams: int
    length_penalty: float
    stretch: float | None


def how_of(wishes: Wishes) -> How:
    """Return wishes as a config."""
    return replace(How(), **wishes)
