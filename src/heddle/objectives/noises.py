"""BART's noises (Lewis et al. 2020): token masking and deletion, text infilling, sentence permutation, rotation.

A noise maps the tokens of a row to others, never to more of them. Control tokens stay where they are: documents that
are joined in a row do not mix.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, part, within
from heddle.data.rows import TokenTraits

Ids = NDArray[np.int64]
Fraction = Annotated[float, within("above 0 and at most 1", lambda share: 0 < share <= 1)]
Mean = Annotated[float, within("above 0", lambda mean: mean > 0)]


@dataclass(frozen=True)
class TokenView:
    """What a noise knows of the ids: the mask, which are control tokens, words and ends of sentences."""

    mask: int
    controls: Ids  # which stay as they are
    traits: TokenTraits

    def words(self, tokens: Ids) -> Ids:
        """Return the number of the word that each token belongs to; -1: a control token."""
        fixed = np.isin(tokens, self.controls)
        starts = self.traits.word_starts(tokens)
        starts[1:] |= fixed[:-1]
        starts &= ~fixed
        return np.where(fixed, -1, np.cumsum(starts) - 1)

    def sentences(self, tokens: Ids) -> Iterator[list[Ids]]:
        """Yield, for each document in a row, the places of the tokens of its sentences."""
        fixed = np.isin(tokens, self.controls)
        for document in np.split(np.arange(len(tokens)), np.flatnonzero(fixed)):
            inner = document[~fixed[document]]
            ends = np.flatnonzero(self.traits.ends_sentence[tokens[inner]]) + 1
            found = [sentence for sentence in np.split(inner, ends) if len(sentence)]
            if found:
                yield found


class NoiseConfig(Config, ABC):
    """A noise of denoising auto-encoding."""

    @abstractmethod
    def apply(self, tokens: Ids, view: TokenView, draw: np.random.Generator) -> Ids:
        """Return the tokens with noise; not more than there were."""


@part("token_masking")
class TokenMaskingConfig(NoiseConfig):
    """Token masking: words are chosen, and each of their tokens becomes the mask.

    share: share of the words.
    """

    share: Fraction = 0.15

    def apply(self, tokens: Ids, view: TokenView, draw: np.random.Generator) -> Ids:
        return np.where(_chosen(view.words(tokens), self.share, draw), view.mask, tokens)


@part("token_deletion")
class TokenDeletionConfig(NoiseConfig):
    """Token deletion: words are chosen and left out; the model must find out where.

    share: share of the words.
    """

    share: Fraction = 0.15

    def apply(self, tokens: Ids, view: TokenView, draw: np.random.Generator) -> Ids:
        return np.asarray(tokens[~_chosen(view.words(tokens), self.share, draw)])


def _chosen(words: Ids, share: float, draw: np.random.Generator) -> NDArray[np.bool_]:
    """Choose a share of the words, rounded up; tell which tokens are theirs."""
    count = int(words.max(initial=-1)) + 1
    chosen = draw.permutation(count) < math.ceil(share * count)
    return np.append(chosen, False)[words]  # the last is for control tokens


@part("text_infilling")
class TextInfillingConfig(NoiseConfig):
    """Text infilling: one mask stands for each span; lengths in words are Poisson, and 0 inserts a mask.

    Spans do not overlap, and all ways to arrange them are as likely; together they have an exact share of the words.

    share: share of the words that spans have together.
    mean_span: mean length of a span in words.
    """

    share: Fraction = 0.3
    mean_span: Mean = 3.0

    def apply(self, tokens: Ids, view: TokenView, draw: np.random.Generator) -> Ids:
        words = view.words(tokens)
        count = int(words.max(initial=-1)) + 1
        if not count:
            return tokens
        spans = _poisson_lengths(math.ceil(self.share * count), self.mean_span, draw)
        before = _arrange(spans, count, draw)  # the word before which each span begins
        hidden = np.zeros(count + 1, np.int64)
        np.add.at(hidden, before, 1)
        np.add.at(hidden, before + spans, -1)
        gone = np.append(np.cumsum(hidden)[:-1] > 0, False)[words]
        first = np.flatnonzero((words >= 0) & (np.diff(words, prepend=-1) != 0))  # token of each word
        first = np.append(first, np.flatnonzero(words >= 0)[-1] + 1)  # and the place after the last
        kept_before = np.append(0, np.cumsum(~gone))
        masked = before[_masked_spans(spans, int(gone.sum()))]
        return np.insert(tokens[~gone], kept_before[first[masked]], view.mask)


def _poisson_lengths(total: int, mean: float, draw: np.random.Generator) -> Ids:
    """Draw lengths until they make up the total; the last is cut to fit."""
    lengths = np.zeros(0, np.int64)
    while lengths.sum() < total:
        lengths = np.concatenate((lengths, draw.poisson(mean, size=16 + int(2 * total / mean))))
    last = int(np.searchsorted(np.cumsum(lengths), total))
    lengths = lengths[: last + 1].copy()
    lengths[last] -= lengths.sum() - total
    return lengths


def _arrange(lengths: Ids, count: int, draw: np.random.Generator) -> Ids:
    """Arrange spans among the words that are left, in their order; return the word before which each begins."""
    slots = count - int(lengths.sum()) + len(lengths)
    places = np.sort(draw.permutation(slots)[: len(lengths)])
    words_between = places - np.arange(len(lengths))
    return np.asarray(words_between + np.cumsum(lengths) - lengths)


def _masked_spans(lengths: Ids, capacity: int) -> NDArray[np.bool_]:
    """Tell which spans get a mask: all that hide words, and insertions as long as the row does not grow."""
    insertion = lengths == 0
    return np.asarray(~insertion | (np.cumsum(insertion) <= capacity - int((~insertion).sum())))


@part("sentence_permutation")
class SentencePermutationConfig(NoiseConfig):
    """Sentence permutation: sentences of a document come in another order.

    share: share of the sentences that are permuted, among themselves.
    """

    share: Fraction = 1.0

    def apply(self, tokens: Ids, view: TokenView, draw: np.random.Generator) -> Ids:
        made = tokens.copy()
        for sentences in view.sentences(tokens):
            moved = np.sort(draw.permutation(len(sentences))[: math.ceil(self.share * len(sentences))])
            order = np.arange(len(sentences))
            order[moved] = draw.permutation(moved)
            made[np.concatenate(sentences)] = tokens[np.concatenate([sentences[number] for number in order])]
        return made


@part("document_rotation")
class DocumentRotationConfig(NoiseConfig):
    """Document rotation: a document begins with any of its tokens, and what was before comes after its end.

    share: share of the documents that are rotated.
    """

    share: Fraction = 1.0

    def apply(self, tokens: Ids, view: TokenView, draw: np.random.Generator) -> Ids:
        made = tokens.copy()
        for sentences in view.sentences(tokens):
            places, (coin, cut) = np.concatenate(sentences), draw.random(2)
            if coin < self.share:
                made[places] = np.roll(tokens[places], -int(cut * len(places)))
        return made
