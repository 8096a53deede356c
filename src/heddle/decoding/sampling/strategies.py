"""Choices: what decides the next token, or the whole sequence; one kind for each way.

Greedy takes the most probable token. A draw follows the odds that the filters leave (`filters.py` cites them). Beams
look for the most probable sequence (Lowerre 1976), in groups that shun each other (Vijayakumar et al. 2016) or with
regard to how much of the source was read (Wu et al. 2016). Contrastive search takes a probable token that says
something new (Su et al. 2022).
"""

import math

from heddle.core import Config, ConfigError, check_at_least, part


class DecodingStrategy(Config):
    """What decides the next token, or the whole sequence."""


@part("greedy")
class GreedySearch(DecodingStrategy):
    """Take the most probable token each time, of equals the first."""


@part("draw")
class MultinomialSampling(DecodingStrategy):
    """Draw each token by its odds.

    The filters apply in the order temperature, top-k, top-p, min-p, typical; one left empty is off.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError("temperature", want="above 0, to draw by", got=self.temperature)
        check_at_least(1, top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError("top_p", want="more than 0 and at most 1", got=self.top_p)
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ConfigError("min_p", want="0 to 1", got=self.min_p)
        if self.typical is not None and not 0 < self.typical <= 1:
            raise ConfigError("typical", want="more than 0 and at most 1", got=self.typical)


@part("beams")
class BeamSearch(DecodingStrategy):
    """Look for the most probable sequence: so many grow side by side for each prompt."""

    beams: int = 4
    length_penalty: float = 0.0  # rank by log-probability / length ** this: 0 the sum, 1 the mean over tokens
    coverage: float = 0.0  # weight of how much of the source was attended to; 0: none
    groups: int = 1  # of beams, each searching apart from those before it
    diversity: float = 0.0  # what a token costs for each sequence of earlier groups that takes it at the same step

    def __post_init__(self) -> None:
        check_at_least(1, beams=self.beams)
        if not abs(self.length_penalty) <= 10:  # more is beyond what numbers can hold for long rows
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
            raise ConfigError("diversity", want="above 0, for groups that do not shun each other are the same", got=0)

    def rank(self, logprob: float, length: int) -> float:
        """Return the score by which a sequence of so many new tokens is ranked."""
        return logprob / float(length**self.length_penalty)


@part("contrastive")
class ContrastiveSearch(DecodingStrategy):
    """Take, of the most probable tokens, the one with the best balance of odds and newness."""

    top_k: int = 4
    contrast: float = 0.6  # weight of newness against odds: 0 is greedy, 1 asks for newness alone

    def __post_init__(self) -> None:
        check_at_least(1, top_k=self.top_k)
        if not 0 <= self.contrast <= 1:
            raise ConfigError("contrast", want="0 to 1", got=self.contrast)
