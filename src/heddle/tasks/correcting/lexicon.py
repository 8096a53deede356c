"""The lexicon of spelling correction: known words with their counts, a unigram model."""

import importlib.resources
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

from heddle.core import DataError, MissingExtra
from heddle.core.system import read_text

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
MAX_BYTES = 1 << 27  # bytes of a file of words
COMMON = 3.5  # Zipf frequency (log10 per 1e9 words) from which a word counts, in the dictionary or not
RARE = 1e-9  # frequency of a dictionary word without a count
ADDED = 0.5  # smoothing: added to each count, so that no word is impossible
POSSESSIVE = re.compile(r"(?:['’]s|(?<=s)['’])$")


def plain(word: str) -> str:
    """Return a word as the lexicon stores it: lower case, with the straight apostrophe."""
    return word.lower().replace("’", "'")


@final
class Lexicon:
    """Known words and their counts."""

    def __init__(self, counts: Mapping[str, float]) -> None:
        self.counts = {plain(word): count for word, count in counts.items() if count > 0}
        if not self.counts:
            raise DataError("words: want one word or more, got none")
        self._total = math.log(math.fsum(self.counts.values()) + ADDED * len(self.counts))

    def __contains__(self, word: str) -> bool:
        return plain(word) in self.counts

    def knows(self, word: str) -> bool:
        """Tell whether a word is known, with or without a possessive ending."""
        known = plain(word)
        return known in self.counts or POSSESSIVE.sub("", known) in self.counts

    def logprob(self, word: str) -> float:
        """Return the log-probability of a word by itself, in nats."""
        return math.log(self.counts.get(plain(word), 0.0) + ADDED) - self._total


def count_lexicon(texts: Iterable[str], least: int = 2) -> Lexicon:
    """Count the words of texts; those seen fewer than `least` times may be errors themselves and are left out."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(plain(word) for word in WORD.findall(text))
    return Lexicon({word: count for word, count in counts.items() if count >= least})


def read_lexicon(path: Path) -> Lexicon:
    """Read a word list: one word per line, optionally with a count after whitespace."""
    counts: dict[str, float] = {}
    for number, line in enumerate(read_text(path, MAX_BYTES).splitlines(), 1):
        word, _, count = line.strip().rpartition("\t" if "\t" in line else " ")
        if not word and not count:
            continue
        if not word:
            word, count = count, "1"
        try:
            value = float(count)
        except ValueError:
            raise DataError(f"{path}:{number}: want a word and a count, got {line.strip()[:60]!r}") from None
        if not 0 <= value < math.inf:
            raise DataError(f"{path}:{number}: want a count of 0 or more, got {count!r}")
        counts[plain(word)] = counts.get(plain(word), 0.0) + value
    if not counts:
        raise DataError(f"{path}: want one word or more, got none")
    return Lexicon(counts)


def english_lexicon() -> Lexicon:
    """Return the English words of the packages of the extra `spell`: a dictionary, with frequencies from many sources.

    Frequent words that the dictionary lacks are added, unless they are one of its words without the apostrophe.
    """
    try:
        import wordfreq

        listed = importlib.resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
        lines = listed.read_text(encoding="utf-8-sig").splitlines()
    except ImportError:
        raise MissingExtra("symspellpy and wordfreq", "spell", "an English vocabulary (or give --words)") from None
    frequencies: dict[str, float] = wordfreq.get_frequency_dict("en", wordlist="large")
    words = {line.split()[0] for line in lines if line.strip()}
    bare = {word.replace("'", "") for word in words if "'" in word}
    common = 10**COMMON / 1e9
    bare |= {f"a{word}" for word in words}  # alot, aswell: an article that lost its space
    words |= {w for w, p in frequencies.items() if p >= common and w not in bare and WORD.fullmatch(w) and w.isascii()}
    return Lexicon({word: 1e9 * frequencies.get(word, RARE) for word in words})
