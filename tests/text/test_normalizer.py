"""Text normalization: case, punctuation, abbreviations, and numbers as spoken."""

import time

import pytest

from heddle.core import ConfigError, decode
from heddle.text.normalize import NormalizerConfig, normalize_text
from heddle.text.normalize.spoken_numbers import cardinal, digits, ordinal, roman, spoken, year

PLAIN = {
    "Mr. Quilter's manner": "mister quilter's manner",
    "“Don’t!” said the ‘boys’": "don't said the boys",
    "'Tis the dogs' bone, he said": "tis the dogs bone he said",
    "to-day—so_called_ -- good-bye": "to day so called good bye",
    "Mrs. Smith, Dr. Jones & Messrs. Lee": "missus smith doctor jones and messrs lee",
    "St. James's, Capt. Ahab, Col. and Gen.": "saint james's captain ahab colonel and general",
    "the general and a col of the Alps": "the general and a col of the alps",
    "etc., &c.": "et cetera et cetera",
    "Mr.Smith": "mister smith",
    "  a\t\nb\u00a0 c ": "a b c",
    "ﬁne ½": "fine one half",
    "rock `n' roll": "rock n roll",
    "O'Clock o’clock": "o'clock o'clock",
    "": "",
    "...!?": "",
    "M. A. in the U.S.": "m a in the u s",
    "5% of 20°": "five percent of twenty degrees",
    "No. 5 and Nos. 6": "number five and numbers six",
    "It is no. Five": "it is no five",
    "café Æneas": "café æneas",
}
NUMBERS = {
    "in 1861, 1,861 men": "in eighteen sixty one one thousand eight hundred sixty one men",
    "1861-65": "eighteen sixty one sixty five",
    "1905 1900 2004 2010 1000 1066": (
        "nineteen oh five nineteen hundred two thousand four twenty ten one thousand ten sixty six"
    ),
    "the 1860s and the 1800's": "the eighteen sixties and the eighteen hundreds",
    "1st 2nd 3rd 21st 12th 40th 112th": "first second third twenty first twelfth fortieth one hundred twelfth",
    "2d and 3d": "second and third",
    "3.14 and 0.5": "three point one four and zero point five",
    ".5 and (.05), -.5": "zero point five and zero point zero five minus zero point five",
    "x.5 or ...5 or 1..5": "x five or five or one five",
    "$.50 $.5 $5 $ 3 $": "fifty cents zero point five dollars five dollars three dollars",
    "$5.50 $1 $0.05": "five dollars and fifty cents one dollar five cents",
    "£2 million, £1, £3.02": "two million pounds one pound three pounds and two pence",
    "$1,000 $3.456": "one thousand dollars three point four five six dollars",
    "10:30 10:05 10:00": "ten thirty ten oh five ten o'clock",
    "1/2 3/4 2 3/4 2/3": "one half three quarters two and three quarters two thirds",
    "007": "zero zero seven",
    "it was -5": "it was minus five",
    "3-5": "three five",
    "12,345,678": "twelve million three hundred forty five thousand six hundred seventy eight",
}


@pytest.mark.parametrize(("text", "wanted"), (PLAIN | NUMBERS).items())
def test_text_has_its_normal_form(text: str, wanted: str) -> None:
    assert normalize_text(text) == wanted


@pytest.mark.parametrize("text", [*(PLAIN | NUMBERS).values(), "i i've one two", "x" * 5000])
def test_normal_form_of_normal_text_is_itself(text: str) -> None:
    assert normalize_text(text) == text


def test_case_can_be_raised_or_kept() -> None:
    assert normalize_text("Mr. DR. mr", NormalizerConfig(case="upper")) == "MISTER DOCTOR MISTER"
    assert normalize_text("Mr. DR. mr", NormalizerConfig(case="keep")) == "Mister DOCTOR mister"


def test_what_is_kept_stays() -> None:
    kept = NormalizerConfig(case="keep", punctuation="keep", numbers="keep", short="keep")
    assert normalize_text("Mr. X paid $5 -- in full!", kept) == "Mr. X paid $5 -- in full!"


def test_accents_go_only_when_requested() -> None:
    assert (
        normalize_text("Café, Æneas, Ångström, ßtraße", NormalizerConfig(accents="drop"))
        == "cafe aeneas angstrom sstrasse"
    )


def test_roman_numerals_are_spoken_when_requested() -> None:
    roman_too = NormalizerConfig(roman="spoken")
    assert normalize_text("Chapter IV. Henry VIII and I", roman_too) == "chapter four henry the eighth and i"
    assert normalize_text("Chapter IV", NormalizerConfig()) == "chapter iv"
    assert normalize_text("CIVIL IIII did XV", roman_too) == "civil iiii did fifteen"


def test_numbers_count_up() -> None:
    said = [cardinal(n) for n in range(2000)]
    assert len(set(said)) == 2000
    assert said[0] == "zero" and said[115] == "one hundred fifteen" and said[1999].startswith("one thousand nine")
    assert cardinal(-3) == "minus three"
    assert len({ordinal(n) for n in range(2000)}) == 2000
    assert [ordinal(n) for n in (0, 8, 9, 20, 1000)] == ["zeroth", "eighth", "ninth", "twentieth", "one thousandth"]


def test_years_are_said_in_pairs() -> None:
    assert [year(n) for n in (1999, 1066, 2000, 2019, 999)] == [
        "nineteen ninety nine",
        "ten sixty six",
        "two thousand",
        "twenty nineteen",
        "nine hundred ninety nine",
    ]


def test_roman_numerals_read_back() -> None:
    assert [roman(x) for x in ("MCMXCIV", "XL", "IIX", "VV", "", "MIX")] == [1994, 40, None, None, None, 1009]


def test_endless_digits_are_said_one_by_one() -> None:
    long = "9" * 6000
    assert spoken(long).split() == ["nine"] * 6000
    assert spoken(f"${long}.50th {long}/{long}").split()[:2] == ["$", "nine"]
    assert spoken(f"{long} 1/2").split() == ["nine"] * 6000 + ["one", "half"]
    assert digits("10") == "one zero"


def test_wrong_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"case: want one of lower, upper, keep, got 'Lower'"):
        decode(NormalizerConfig, {"case": "Lower"})


@pytest.mark.parametrize("text", ["1." + "1" * 50_000 + "a1", "1234," * 20_000, "1,111" * 20_000, "$1.111" * 20_000])
def test_a_long_line_of_digits_takes_time_in_proportion(text: str) -> None:
    start = time.process_time()
    normalize_text(text)
    assert time.process_time() - start < 5  # some 0.2 s; it was minutes where every number looked to the end
