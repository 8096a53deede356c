"""The error model: probabilities that sum to one, learning, and what is near a word."""

import itertools
import math
from pathlib import Path

import pytest

from heddle.core import DataError
from heddle.tasks.correcting import ErrorModel, Lexicon, exclude_test_pairs, parse_error_pairs, read_error_pairs
from heddle.tasks.correcting.error_model import FIRST, LAST, UNKNOWN, prior
from heddle.tasks.correcting.keyboard import LETTERS, key_neighbours
from heddle.tasks.correcting.metaphone import phonetic_key
from heddle.tasks.correcting.neighbours import NeighbourIndex

PAIRS = [
    ("receive", "recieve"),
    ("believe", "beleive"),
    ("separate", "seperate"),
    ("definite", "definate"),
    ("necessary", "neccesary"),
    ("address", "adress"),
    ("their", "thier"),
    ("weird", "wierd"),
    ("achieve", "acheive"),
    ("friend", "freind"),
]


@pytest.mark.parametrize("letter", [*LETTERS, FIRST, LAST])
def test_prior_of_a_letter_sums_to_one(letter: str) -> None:
    assert math.fsum(prior(letter).values()) == pytest.approx(1)


@pytest.mark.parametrize("model", [ErrorModel(), ErrorModel.learn(PAIRS)], ids=["prior", "learnt"])
def test_probabilities_of_every_piece_sum_to_one(model: ErrorModel) -> None:
    for piece in [*LETTERS, FIRST, *model.changed, "ab", "ei"]:
        unknown = 0.0 if len(piece) > 1 or piece == LAST else UNKNOWN
        total = math.fsum(model.probabilities(piece).values())
        assert 1 - unknown <= total + 1e-9 and total <= 1 + 1e-9
        assert all(p >= 0 for p in model.probabilities(piece).values())


def test_a_probable_error_is_more_probable_than_an_improbable_one() -> None:
    model = ErrorModel()
    assert model.logprob("hte", "the") > model.logprob("qxe", "the")
    assert model.logprob("tge", "the") > model.logprob("tqe", "the")  # g lies beside h
    assert model.logprob("definate", "definite") > model.logprob("defintte", "definite")  # a vowel for a vowel
    assert model.logprob("adress", "address") > model.logprob("adxxss", "address")


def test_learning_makes_seen_errors_more_probable() -> None:
    before, after = ErrorModel(), ErrorModel.learn(PAIRS * 10)
    for right, wrong in [("relieve", "releive"), ("thief", "theif")]:  # of the kind, but not among the pairs
        assert after.logprob(wrong, right) > before.logprob(wrong, right)


def test_alignments_spell_both_words() -> None:
    model = ErrorModel.learn(PAIRS)
    for right, wrong in [*PAIRS, ("a", "xyz"), ("abc", "é"), ("through", "thru"), ("x", "xxxxxxxxxx")]:
        steps = model.align(wrong, right)
        assert "".join(piece for piece, _ in steps) == FIRST + right + LAST
        assert "".join(written for _, written in steps) == FIRST + wrong + LAST
        assert math.isfinite(model.logprob(wrong, right))


def test_a_saved_model_comes_back_the_same(tmp_path: Path) -> None:
    model = ErrorModel.learn(PAIRS)
    model.save(tmp_path / "errors.json")
    again = ErrorModel.load(tmp_path / "errors.json")
    assert again.logprob("thier", "their") == model.logprob("thier", "their")
    assert dict(again.seen) == dict(model.seen) and again.changed == model.changed


@pytest.mark.parametrize("text", ["{}", "[1]", '{"format": "heddle errors 1", "seen": {"a": -1}, "changed": {}}', "{"])
def test_what_is_no_error_model_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "errors.json").write_text(text)
    with pytest.raises(Exception, match="want"):
        ErrorModel.load(tmp_path / "errors.json")


def test_pairs_are_read_in_both_forms(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("right: rihgt rite\n\nnew_word: x\nAlbert: albert\ntwo\ttoo\n")
    assert read_error_pairs(tmp_path / "pairs.txt") == [("right", "rihgt"), ("right", "rite"), ("two", "too")]
    with pytest.raises(DataError, match="pairs:2"):
        parse_error_pairs("a: b\nnothing\n")


def test_what_is_tested_is_not_learnt() -> None:
    pairs = [("access", "acess"), ("access", "akses"), ("Access", "ACESS"), ("other", "othr")]
    kept, same_pair, same_right = exclude_test_pairs(pairs, [("access", "acess")])
    assert (kept, same_pair, same_right) == ([("other", "othr")], 2, 1)


# --- near words -------------------------------------------------------------------------------------------------------


def damerau(one: str, other: str) -> int:
    """Return the distance in the plainest way."""
    table = [[max(i, j) if 0 in (i, j) else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i, j in itertools.product(range(1, len(one) + 1), range(1, len(other) + 1)):
        same = one[i - 1] == other[j - 1]
        table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (not same))
        if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
            table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


def test_near_words_are_those_within_two_edits_or_of_like_sound() -> None:
    letters = "abcde"
    words = sorted({"".join(w) for size in (3, 4, 5) for w in itertools.product(letters, repeat=size)})[::3]
    index = NeighbourIndex(Lexicon(dict.fromkeys(words, 1.0)))
    for written in ("abcd", "eabda", "bcdxe"):
        found = {near.word: near.edits for near in index.find(written, most=len(words))}
        wanted = {word: damerau(written, word) for word in words if word != written}
        close = {word: edits for word, edits in wanted.items() if edits <= 2}
        assert close.items() <= found.items()
        assert all(phonetic_key(word) == phonetic_key(written) for word in found.keys() - close.keys())


def test_the_most_likely_near_words_come_first() -> None:
    index = NeighbourIndex(Lexicon({"the": 1000, "then": 100, "tee": 1, "thee": 5, "elephant": 50}))
    found = index.find("teh", most=2)
    assert [near.word for near in found] == ["the", "tee"]
    assert index.find("", most=5) == [] and index.find("x" * 200, most=5) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("nite", "knight"), ("fone", "phone"), ("rite", "write"), ("sene", "scene"), ("serkus", "circus")],
)
def test_words_that_sound_alike_share_a_key(one: str, other: str) -> None:
    assert phonetic_key(one) == phonetic_key(other)


def test_words_that_sound_apart_do_not() -> None:
    assert len({phonetic_key(word) for word in ("dog", "cat", "house", "tree", "letter", "window")}) == 6


def test_neighbours_on_the_board_are_mutual() -> None:
    assert key_neighbours("g") >= set("fhtyvb")
    for one, other in itertools.product(LETTERS, LETTERS):
        assert (one in key_neighbours(other)) == (other in key_neighbours(one))
