"""Text normalization: the common form of corpora and speech recognition (case, punctuation, numbers, abbreviations)."""

import re
import unicodedata
from typing import Literal

from heddle.core import Config, settings
from heddle.text.normalize.spoken_numbers import cardinal, ordinal, roman, spoken

QUOTES = dict.fromkeys(map(ord, "‘’‚‛`´ʼ′"), "'") | dict.fromkeys(map(ord, "“”„‟«»″"), '"')
DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−"), "-")
LETTERS = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ß": "ss", "Æ": "AE", "Œ": "OE", "Ø": "O"})
FOLD = str.maketrans(QUOTES | DASHES)

# Abbreviations with a full stop, as spoken: those with one usual meaning in books.
ABBREVIATIONS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "st": "saint",
    "messrs": "messrs",
    "capt": "captain",
    "col": "colonel",
    "gen": "general",
    "lieut": "lieutenant",
    "lt": "lieutenant",
    "sergt": "sergeant",
    "rev": "reverend",
    "hon": "honorable",
    "prof": "professor",
    "esq": "esquire",
    "jr": "junior",
    "sr": "senior",
    "vol": "volume",
    "vols": "volumes",
    "viz": "namely",
    "etc": "et cetera",
    "&c": "et cetera",
}
BARE = {"mr", "mrs", "dr", "messrs", "etc", "&c"}  # abbreviations even without the full stop
ABBREVIATION = re.compile(
    rf"(?<![\w&])(?:({'|'.join(map(re.escape, sorted(BARE, key=len, reverse=True)))})\b\.?"
    rf"|({'|'.join(map(re.escape, sorted(ABBREVIATIONS.keys() - BARE, key=len, reverse=True)))})\.)",
    re.IGNORECASE,
)
NUMBERED = re.compile(r"\b[Nn]os?\.(?=\s?\d)")
SIGNS = (("&", " and "), ("%", " percent "), ("+", " plus "), ("=", " equals "), ("@", " at "), ("°", " degrees "))
MINUS = re.compile(r"(?<![\w\-.,])-(?=\.?\d)")
ROMANS = re.compile(r"(?<![\w.])(?:([A-Za-z]+)\.?\s)?(?=[IVXLCDM]{2})([IVXLCDM]+)(?!\w)")
PARTS = re.compile("chapter|book|part|volume|act|scene|canto|section|number|page|letter|article|stave", re.IGNORECASE)
EDGES = re.compile(r"(?<!\w)'+|'+(?!\w)")
MARKS = re.compile(r"[^\w\s']|_")


@settings
class NormalizerConfig(Config):
    """Which differences between texts are removed; the defaults leave lower-case words only."""

    case: Literal["lower", "upper", "keep"] = "lower"
    punctuation: Literal["drop", "keep"] = "drop"  # keeps apostrophes inside words; hyphens and dashes separate words
    numbers: Literal["spoken", "keep"] = "spoken"  # in English
    roman: Literal["spoken", "keep"] = "keep"  # of two letters or more
    short: Literal["spoken", "keep"] = "spoken"  # Mr., Dr., &c. and signs such as %
    accents: Literal["drop", "keep"] = "keep"


def normalize_text(text: str, config: NormalizerConfig = NormalizerConfig()) -> str:  # noqa: B008 - frozen
    """Normalize a text; its words are separated by one space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(FOLD)
        text = _plain(text) if config.accents == "drop" else text
    elif "`" in text:
        text = text.replace("`", "'")
    if config.roman == "spoken":
        text = ROMANS.sub(_spoken_roman, text)
    if config.short == "spoken":
        text = _expand_abbreviations(text)
    if config.numbers == "spoken":
        text = spoken(MINUS.sub("minus ", text))
    if config.punctuation == "drop":
        text = EDGES.sub(" ", MARKS.sub(" ", text))
    if config.case != "keep":
        text = text.lower() if config.case == "lower" else text.upper()
    return " ".join(text.split())


def _plain(text: str) -> str:
    """Drop accents, and split ligatures."""
    parted = unicodedata.normalize("NFD", text.translate(LETTERS))
    return unicodedata.normalize("NFC", "".join(c for c in parted if not unicodedata.combining(c)))


def _expand_abbreviations(text: str) -> str:
    """Expand abbreviations and signs as they are spoken."""
    text = NUMBERED.sub(lambda found: "numbers" if found[0][2] == "s" else "number", text)
    text = ABBREVIATION.sub(_expand_abbreviation, text)
    for sign, word in SIGNS:
        if sign in text:
            text = text.replace(sign, word)
    return text


def _expand_abbreviation(found: re.Match[str]) -> str:
    """Expand an abbreviation with the same capitals, separated from what follows."""
    short = found[1] or found[2]
    long = ABBREVIATIONS[short.lower()]
    if short.isupper():
        long = long.upper()
    elif short[0].isupper():
        long = long.capitalize()
    return f"{long} " if found.string[found.end() : found.end() + 1].isalnum() else long


def _spoken_roman(found: re.Match[str]) -> str:
    """Chapter IV is chapter four, Henry VIII Henry the eighth."""
    number = roman(found[2])
    if number is None:
        return found[0]
    before = found[1]
    if before is None:
        return cardinal(number)
    kept = found[0][: found.start(2) - found.start()]
    king = before[0].isupper() and before[1:].islower() and not PARTS.fullmatch(before)
    return kept + (f"the {ordinal(number)}" if king else cardinal(number))
