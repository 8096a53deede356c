"""How to generate: how much, how boldly, from which seed, and where to stop."""

from heddle.core import Config, ConfigError, replace, settings


@settings
class How(Config):
    """Wishes for generation; temperature 0 takes the best token each time.

    The filters apply in the order temperature, top-k, top-p, min-p; a filter left empty is off.
    """

    max_tokens: int = 128  # new tokens for each prompt, the stop included
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    samples: int = 1  # continuations of each prompt, drawn apart
    stop: tuple[int, ...] = ()  # ids after which a row is finished, the end of a document among them
    begin: int | None = None  # the id that an empty prompt starts from

    def __post_init__(self) -> None:
        for name in ("max_tokens", "samples"):
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

    def at_end(self, end: int) -> "How":
        """Return the same wishes, with documents that begin and end at one id."""
        return replace(self, stop=(*self.stop, end), begin=end)
