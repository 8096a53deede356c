"""Token traits: what noise must know of each id: whether a word begins or ends there, and whether a sentence ends."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.text.tokenizers import Tokenizer, sentence_ends, word_edges


@dataclass(frozen=True)
class TokenTraits:
    """Facts about each id of a tokenizer."""

    begins_word: NDArray[np.bool_]
    ends_word: NDArray[np.bool_]  # whether the next token begins a word, whatever it is
    ends_sentence: NDArray[np.bool_]

    def word_starts(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell where words begin in rows of tokens; the first token of a row always begins one."""
        starts = self.begins_word[tokens]
        starts[..., 1:] |= self.ends_word[tokens[..., :-1]]
        starts[..., :1] = True
        return starts


def token_traits(tokenizer: Tokenizer) -> TokenTraits:
    """Return the facts about a tokenizer's ids."""
    begins, ends = word_edges(tokenizer)
    return TokenTraits(np.array(begins), np.array(ends), np.array(sentence_ends(tokenizer)))


def guessed_traits(vocab: int) -> TokenTraits:
    """Return facts about random ids, to time a step without a tokenizer: words of two tokens, sentences of sixteen."""
    ids = np.arange(vocab)
    return TokenTraits(ids % 2 == 0, np.zeros(vocab, bool), ids % 16 == 1)
