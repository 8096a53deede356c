"""Constraints: each allows what a search over all texts would allow, and earlier constraints stay as they were."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from decoding.constrained import VOCABULARY, WORDS, ids_of, written
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.decoding.constraints import (
    CompiledPhrases,
    Conjunction,
    EndingConstraint,
    Vocabulary,
    allowed_tokens,
    apply_constraints,
)
from heddle.decoding.constraints.constraint import BatchedConstraint
from heddle.decoding.constraints.phrases import MAX_REQUIRED_BYTES

# words joined by spaces, as the word kind does: 4 ends a line, after which no space is written
SPACED = Vocabulary(
    (b"", b" a", b" b", b" ab", b"\n"),
    (b"", b"a", b"b", b"ab", b"\n"),
    fresh=frozenset([4]),
    silent=frozenset([0]),
    stop=frozenset([0]),
)


@dataclass(frozen=True)
class Listed:
    """A constraint that allows a list of ids for ever."""

    ids: tuple[int, ...]
    vocab: int = 6

    def allowed(self) -> Tensor | None:
        mask = torch.zeros(self.vocab, dtype=torch.bool)
        mask[list(self.ids)] = True
        return mask

    def advance(self, id: int) -> "Listed":
        return self

    @property
    def finished(self) -> bool:
        return not self.ids

    @property
    def may_end(self) -> bool:
        return 0 in self.ids


class Kindred(BatchedConstraint):
    """A constraint that counts how often its kin are asked."""

    requested: list[int] = []

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids

    @property
    def batch_key(self) -> object:
        return Kindred.requested

    def allowed_batch(self, constraints: Sequence["Kindred"]) -> Tensor:
        Kindred.requested.append(len(constraints))
        return torch.stack([Listed(constraint.ids, 5).allowed() for constraint in constraints])  # type: ignore[misc]

    def allowed(self) -> Tensor | None:
        return Listed(self.ids, 5).allowed()

    def advance(self, id: int) -> "Kindred":
        return self

    @property
    def finished(self) -> bool:
        return False


def test_rows_are_requested_together_and_none_means_anything() -> None:
    assert allowed_tokens([None, None], 6) is None
    shared = Kindred((1,))
    Kindred.requested.clear()
    masks = allowed_tokens([shared, None, Listed((2, 3)), Kindred((4,)), shared], 8)
    assert masks is not None and Kindred.requested == [2]
    assert [row.nonzero().flatten().tolist() for row in masks] == [[1], [*range(8)], [2, 3], [4], [1]]
    assert torch.equal(
        allowed_tokens([Kindred((1, 2)), shared], 5), torch.stack([Listed(i, 5).allowed() for i in ((1, 2), (1,))])
    )  # type: ignore[arg-type]


def test_scores_of_what_is_forbidden_are_minus_infinity() -> None:
    scores = torch.randn(2, 8)
    kept = apply_constraints(scores, [Listed((2, 3)), None])
    assert kept[0].isfinite().nonzero().flatten().tolist() == [2, 3]
    assert torch.equal(kept[1], scores[1])
    assert apply_constraints(scores, [None, None]) is scores
    assert apply_constraints(scores, [Listed(()), None])[0].isneginf().all()


def test_both_allow_what_each_does_and_end_where_both_may() -> None:
    both = Conjunction(Listed((0, 1, 2)), Listed((1, 2, 3)))
    assert ids_of(both, 6) == {1, 2}
    assert not both.may_end and not both.finished
    assert Conjunction(Listed((0, 1)), Listed((0, 2))).may_end
    assert not Conjunction(Listed(()), Listed((0,))).finished  # the first is at its end, where it may not end
    assert both.advance(1) == both


def reachable(prefix: tuple[int, ...], left: int, require: tuple[bytes, ...], forbid: tuple[bytes, ...]) -> bool:
    """Tell by search whether all can be said in the tokens left."""

    @cache
    def search(ids: tuple[int, ...], left: int) -> bool:
        text = written(ids, VOCABULARY)
        if any(phrase in text for phrase in forbid):
            return False
        if all(phrase in text for phrase in require):
            return True
        return left > 0 and any(search((*ids, id), left - 1) for id in range(1, 7))

    return search(prefix, left)


def cases() -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
    draw = random.Random(0)
    texts = [b"abc", b"cc", b"aab", b"cab", b"ac", b"bcb", b"b"]
    for _ in range(12):
        chosen = draw.sample(texts, 4)
        yield tuple(chosen[: draw.randint(0, 2)]), tuple(chosen[2 : 2 + draw.randint(0, 2)])


@pytest.mark.parametrize(("require", "forbid"), list(cases()))
def test_phrases_allow_exactly_what_a_search_over_all_texts_allows(
    require: tuple[bytes, ...], forbid: tuple[bytes, ...]
) -> None:
    draw = random.Random(1)
    book = CompiledPhrases(VOCABULARY, require, forbid)
    if not reachable((), 5, require, forbid):
        with pytest.raises(ConfigError, match="require: this tokenizer"):
            book.begin(max_tokens=5)
        return
    for _ in range(4):
        constraint, ids = book.begin(max_tokens=5), list[int]()
        for left in range(5, 0, -1):
            allowed = ids_of(constraint, len(WORDS))
            may_end = all(phrase in written(ids, VOCABULARY) for phrase in require)
            assert (0 in allowed) == may_end == constraint.may_end
            for id in range(1, 8):
                assert (id in allowed) == reachable((*ids, id), left - 1, require, forbid), (ids, id)
            ids.append(draw.choice(sorted(allowed - {0})))
            constraint = constraint.advance(ids[-1])
        text = written(ids, VOCABULARY)
        assert all(p in text for p in require) and not any(p in text for p in forbid)


def test_without_a_limit_only_the_end_waits_for_what_is_required() -> None:
    constraint = CompiledPhrases(VOCABULARY, [b"cc"]).begin()
    assert ids_of(constraint, len(WORDS)) == set(range(1, len(WORDS)))
    assert ids_of(constraint.advance(5).advance(7).advance(5), len(WORDS)) == set(
        range(len(WORDS))
    )  # a control token is no text


def test_half_characters_are_followed() -> None:
    constraint = CompiledPhrases(VOCABULARY, forbid=["€".encode()]).begin()
    assert ids_of(constraint, len(WORDS)) == set(range(len(WORDS)))
    assert 9 not in ids_of(constraint.advance(8), len(WORDS))
    with pytest.raises(UsageError, match="allowed here, got 9"):
        constraint.advance(8).advance(9)


def test_words_joined_by_spaces_are_spelt_as_they_are_written() -> None:
    constraint = CompiledPhrases(SPACED, forbid=[b"a b", b"\na"]).begin()
    assert 2 not in ids_of(constraint.advance(1), 5)  # "a b"
    assert ids_of(constraint.advance(1).advance(4), 5) == {0, 2, 4}  # no "a", no "ab" after a line's end
    required = CompiledPhrases(SPACED, require=[b"b\nb"])
    assert ids_of(required.begin(max_tokens=3), 5) == {2, 3}  # "b" and "ab"
    assert ids_of(required.begin(fresh=False, max_tokens=3), 5) == {2, 3}
    assert ids_of(required.begin(max_tokens=3).advance(2).advance(4), 5) == {2}


def test_earlier_constraints_of_phrases_stay_as_they_were() -> None:
    first = CompiledPhrases(VOCABULARY, [b"abc"], [b"cc"]).begin(max_tokens=9)
    before = ids_of(first, len(WORDS))
    branches = [first.advance(id) for id in (1, 3, 5)]
    assert ids_of(first, len(WORDS)) == before
    assert [b.advance(5).may_end for b in branches[:2]] == [False, True]


@pytest.mark.parametrize(
    ("require", "forbid", "message"),
    [
        ([b""], [], "require: want phrases of one character or more"),
        ([], [b"a", b""], "forbid: want phrases of one character or more"),
        ([b"a"] * 9, [], "require: want at most 8 phrases, got 9"),
        ([b"x" * MAX_REQUIRED_BYTES], [b"y"], "require and forbid: want phrases of at most"),
    ],
)
def test_bad_phrases_are_refused_in_one_line(require: list[bytes], forbid: list[bytes], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CompiledPhrases(VOCABULARY, require, forbid)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize("require", [[b"z"], [b"cc", b"acca"]])
def test_what_cannot_be_written_is_refused_at_the_start(require: list[bytes]) -> None:
    with pytest.raises(ConfigError, match="require: this tokenizer cannot produce the phrases"):
        CompiledPhrases(VOCABULARY, require, [b"cca"]).begin()


def test_a_limit_too_small_for_what_is_required_is_refused() -> None:
    with pytest.raises(ConfigError, match="the phrases need at least 2 tokens; max_tokens is 1"):
        CompiledPhrases(VOCABULARY, [b"cc"]).begin(max_tokens=1)


def test_thousands_of_forbidden_phrases_cost_one_pass_over_the_vocabulary() -> None:
    draw = random.Random(0)
    phrases = [bytes(draw.choice(b"abc") for _ in range(9)) for _ in range(3000)]
    constraint: EndingConstraint = CompiledPhrases(VOCABULARY, forbid=phrases).begin()
    ids: list[int] = []
    for _ in range(200):
        ids.append(draw.choice(sorted(ids_of(constraint, len(WORDS)) - {0})))
        constraint = constraint.advance(ids[-1])
    assert not any(phrase in written(ids, VOCABULARY) for phrase in phrases)
