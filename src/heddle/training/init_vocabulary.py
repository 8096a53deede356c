"""Vocabulary of a run that starts from another model: kept, extended or replaced, for pre-training in a domain.

Gururangan et al. 2020 keep it, SciBERT (Beltagy et al. 2019) has one of its own domain.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from heddle.core import Config, ConfigError, Positive, part
from heddle.text.tokenizers import Tokenizer, extend_tokenizer

Texts = Callable[[], Iterable[str]]


class InitVocabularyConfig(Config, ABC):
    """What becomes of the vocabulary of the model that a run starts from.

    changes: the run has other tokens than that model. replaces: its tokenizer is the one that the run describes.
    """

    changes: ClassVar[bool] = False
    replaces: ClassVar[bool] = False

    @abstractmethod
    def tokenizer(self, given: Tokenizer, texts: Texts) -> Tokenizer:
        """Return the run's tokenizer, from that of the model and, where it learns tokens, the training texts."""


@part("kept")
class KeptVocabularyConfig(InitVocabularyConfig):
    """The tokens stay as they are; only control tokens that the objective needs are added."""

    def tokenizer(self, given: Tokenizer, texts: Texts) -> Tokenizer:
        return given


@part("extended")
class ExtendedVocabularyConfig(InitVocabularyConfig):
    """Further tokens are learnt from the training text, such as the words of a domain; all others stay.

    BPE, WordPiece and unigram go on merging pieces, the most frequent pair first; a word tokenizer learns words.

    tokens: how many to add.
    least: how often a pair of pieces, or a word, must occur to become a token.
    """

    tokens: Positive = 1000
    least: Positive = 2

    changes: ClassVar[bool] = True

    def tokenizer(self, given: Tokenizer, texts: Texts) -> Tokenizer:
        try:
            return extend_tokenizer(given, texts(), self.tokens, self.least)
        except ConfigError as error:
            raise error.with_prefix("init_vocabulary") from None


@part("replaced")
class ReplacedVocabularyConfig(InitVocabularyConfig):
    """The tokenizer that the run describes takes the place of the model's: trained on the data, or a given one."""

    changes: ClassVar[bool] = True
    replaces: ClassVar[bool] = True

    def tokenizer(self, given: Tokenizer, texts: Texts) -> Tokenizer:
        raise ConfigError("init_vocabulary", want="kept or extended, to have the tokenizer of init", got="replaced")


def describe_vocabulary(pieces: Sequence[Sequence[int]]) -> str:
    """Return how many tokens of a new vocabulary begin as what, given the old tokens that each is made of."""
    kept, made = (sum(len(one) in size for one in pieces) for size in ((1,), range(2, 1 << 30)))
    new = f"{made:,} begin as the mean of their old pieces, {len(pieces) - kept - made:,} as the mean of all"
    return f"vocabulary of {len(pieces):,} tokens: {kept:,} begin as one of the model in init, {new}"
