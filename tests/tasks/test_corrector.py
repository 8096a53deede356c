"""Correcting in context: errors go, right words stay, and so does everything that is no word."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.spelling import SENTENCES, known_words, small_model

from heddle.core import ConfigError, DataError, UsageError, replace
from heddle.models.presets import PresetConfig
from heddle.tasks.correcting import (
    Corrector,
    CorrectorConfig,
    Lexicon,
    NoisyChannelWeights,
    count_lexicon,
    read_lexicon,
)
from heddle.tasks.correcting.lexicon import WORD
from heddle.tasks.correcting.word_layout import begins_sentence, find_words, match_case, split_segments

ALONE = Corrector(known_words())
WEIGHTS = NoisyChannelWeights(rate=0.05, context=0.7, frequency=0.1, errors=0.7, known=0.0, unknown=5.0, name=6.0)


@pytest.fixture(scope="module")
def corrector() -> Corrector:
    model, tokenizer = small_model()
    return Corrector(known_words(), None, CorrectorConfig(weights=WEIGHTS), model, tokenizer)


def fixed(corrector: Corrector, text: str) -> str:
    (found,) = corrector.run([text])
    return found.text


# --- what is changed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("the wether is cold in the north today.", "the weather is cold in the north today."),
        ("i do not know wether he will come home.", "i do not know whether he will come home."),
        ("we tought about it and he tought me to swim.", "we thought about it and he taught me to swim."),
        ("alot of peopel live together in the city.", "a lot of people live together in the city."),
        ("a lot of people live to gether in the city.", "a lot of people live together in the city."),
        ("it's a fine day and they dont care.", "it's a fine day and they don't care."),
    ],
)
def test_context_decides_what_was_meant(corrector: Corrector, wrong: str, right: str) -> None:
    assert fixed(corrector, wrong) == right


def test_a_known_word_in_the_wrong_place_is_found(corrector: Corrector) -> None:
    assert fixed(corrector, "she wrote a letter form the old town.") == SENTENCES[0]
    assert fixed(corrector, "please fill in the from and send it back.") == SENTENCES[1]


def test_right_sentences_stay(corrector: Corrector) -> None:
    assert [found.text for found in corrector.run(SENTENCES)] == SENTENCES
    assert all(not found.changes for found in corrector.run(SENTENCES))


def test_many_texts_are_corrected_as_each_alone(corrector: Corrector) -> None:
    texts = ["the wether is cold", "", "we tought about it and he tought me to swim.", "peopel", "  \n"]
    assert [found.text for found in corrector.run(texts)] == [fixed(corrector, text) for text in texts]


def test_a_higher_threshold_changes_less(corrector: Corrector) -> None:
    model, tokenizer = small_model(10)
    texts = ["the wether is colt in teh nort tody.", "i do nott know whether hee will kome"]
    counts = []
    for threshold in (0.01, 1.0, 1e9):
        config = CorrectorConfig(threshold=threshold, weights=WEIGHTS)
        found = Corrector(known_words(), None, config, model, tokenizer).run(texts)
        assert all(change.odds >= threshold for each in found for change in each.changes)
        counts.append(sum(len(each.changes) for each in found))
    assert counts[0] >= counts[1] >= counts[2] and counts[0] > counts[2]


def test_changes_tell_place_odds_and_alternatives(corrector: Corrector) -> None:
    text = "The  wether is cold.\tAlot of Peopel live."
    (found,) = corrector.run([text])
    rebuilt, at = "", 0
    for change in found.changes:
        assert text[change.start : change.end] == change.before
        rebuilt += text[at : change.start] + change.after
        at = change.end
        assert math.fsum(a.probability for a in change.alternatives) == pytest.approx(1)
        probabilities = {a.text: a.probability for a in change.alternatives}
        assert change.odds == pytest.approx(probabilities[change.after] / probabilities[change.before], rel=1e-6)
    assert rebuilt + text[at:] == found.text
    assert found.changes


# --- what stays -------------------------------------------------------------------------------------------------------


LAYOUTS = [
    ("\tthe  weathr,\r\nIs  COLD… ", "\tthe  weather,\r\nIs  COLD… "),
    ("The PEOPEL live", "The PEOPLE live"),
    ("(Peopel) “peopel” peopel's", "(People) “people” people's"),
    ("they don’t thnik", "they don’t thnik"),
    ("", ""),
    (" \n\n ", " \n\n "),
    ("日本語 Größe ñandú — 42 %", "日本語 Größe ñandú — 42 %"),
]
CODE = "http://peopel.com/wether, peopel@wether.org, wether_peopel, 3peopel U.S.A. cafe\u0301peopel"


@pytest.mark.parametrize(("wrong", "right"), LAYOUTS)
def test_words_change_and_nothing_else(corrector: Corrector, wrong: str, right: str) -> None:
    assert fixed(ALONE, wrong) == right
    assert WORD.sub("", fixed(corrector, wrong)) == WORD.sub("", wrong)


def test_addresses_and_code_stay(corrector: Corrector) -> None:
    assert fixed(ALONE, CODE) == CODE
    assert fixed(corrector, CODE) == CODE


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=120))
def test_a_text_without_changes_comes_out_the_same(text: str) -> None:
    (found,) = ALONE.run([text])
    if not found.changes:
        assert found.text == text
    rebuilt, at = "", 0
    for change in found.changes:
        rebuilt, at = rebuilt + text[at : change.start] + change.after, change.end
    assert rebuilt + text[at:] == found.text


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=2000))
def test_pieces_are_all_of_a_text(text: str) -> None:
    assert "".join(text[start:end] for start, end in split_segments(text)) == text
    for span in find_words(text):
        assert text[span.start : span.end] == span.text


def test_a_long_line_takes_bounded_time(corrector: Corrector) -> None:
    start = time.perf_counter()
    text = "x" * 500_000 + " peopel " + "the old town. " * 2000
    (found,) = ALONE.run([text])
    assert " people " in found.text and len(found.text) == len(text)
    assert time.perf_counter() - start < 20


# --- parts ------------------------------------------------------------------------------------------------------------


def test_words_take_the_dress_of_those_before() -> None:
    assert match_case("the", "TEH") == "THE"
    assert match_case("the", "Teh") == "The"
    assert match_case("the", "teh") == "the"
    assert match_case("don't", "dont’") == "don’t"
    assert match_case("a", "I") == "A"


def test_the_first_word_of_a_sentence_is_known() -> None:
    text = 'One. Two "Three" four\nFive'
    assert [begins_sentence(text, span.start) for span in find_words(text)] == [True, True, False, False, True]


def test_words_are_read_with_and_without_counts(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("the 500\nofficial\t20\nplain\n\n")
    words = read_lexicon(path)
    assert words.counts == {"the": 500, "official": 20, "plain": 1}
    assert words.knows("Plain's") and not words.knows("plane")
    assert words.logprob("the") > words.logprob("plain") > words.logprob("plane")
    path.write_text("the five hundred\n")
    with pytest.raises(DataError, match=r"words\.txt:1"):
        read_lexicon(path)
    path.write_text("")
    with pytest.raises(DataError, match="one word or more"):
        read_lexicon(path)


def test_words_of_texts_are_counted() -> None:
    words = count_lexicon(["The cat and the hat", "the cat's hat"], least=2)
    assert words.counts == {"the": 3, "hat": 2}


def test_english_words_hold_everyday_ones_and_no_errors() -> None:
    pytest.importorskip("symspellpy")
    pytest.importorskip("wordfreq")
    from heddle.tasks.correcting import english_lexicon

    words = english_lexicon()
    assert all(word in words for word in ("the", "don't", "favour", "colour", "tv"))
    assert not any(word in words for word in ("dont", "alot", "teh", "recieve"))


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"most": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        replace(CorrectorConfig(), **wrong)


def test_wrong_weights_and_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="rate"):
        NoisyChannelWeights(rate=1.0)
    with pytest.raises(DataError):
        Lexicon({})
    model, tokenizer = small_model(1)
    encoder = PresetConfig(name="bert-base", layers=1, width=16, heads=2, vocab=50, context=16).build()
    with pytest.raises(UsageError, match="language model"):
        Corrector(known_words(), None, None, encoder, tokenizer)
    with pytest.raises(UsageError, match="tokenizer"):
        Corrector(known_words(), None, None, model)
