"""Answers: exact match and F1 over words, after SQuAD's normalization (Rajpurkar et al. 2016)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(found: str, gold: Sequence[str]) -> float:
    """Return 1 if an answer equals one of the right ones; where there is none, an empty answer is right."""
    return float(normalize_answer(found) in [normalize_answer(one) for one in gold or [""]])


def answer_f1(found: str, gold: Sequence[str]) -> float:
    """Return the largest F1 over words with one of the right answers."""
    return max(_f1(normalize_answer(found).split(), normalize_answer(one).split()) for one in gold or [""])


def _f1(found: list[str], gold: list[str]) -> float:
    if not found or not gold:
        return float(found == gold)
    shared = sum((Counter(found) & Counter(gold)).values())
    return 2 * shared / (len(found) + len(gold))
