"""Sentence similarities, the utilities of minimum Bayes risk decoding (`decoding/search/mbr.py`): chrF, BLEU, word F1.

chrF is computed here and equals sacrebleu's for single texts (Popović 2015: the F-score of character n-grams, with
recall weighted double); BLEU is sacrebleu's own; `words` is the F1 of bags of words.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from heddle.core import ConfigError, MissingExtra
from heddle.decoding.search import token_f1

Similarity = Callable[[str, str], float]  # (candidate, reference) -> 0 to 1

ORDER, BETA = 6, 2.0
CACHE_SIZE = 4096  # texts whose n-grams are kept, since each is compared with all others


def chrf(candidate: str, reference: str) -> float:
    """Return chrF: the mean F-score of character n-grams without whitespace, over the orders that both texts have."""
    pairs = [(c, t) for c, t in zip(_grams(candidate), _grams(reference), strict=True) if c and t]
    if not pairs:
        return 0.0
    shared = [(c & t).total() for c, t in pairs]
    precision = sum(s / c.total() for s, (c, _) in zip(shared, pairs, strict=True)) / len(pairs)
    recall = sum(s / t.total() for s, (_, t) in zip(shared, pairs, strict=True)) / len(pairs)
    if not precision + recall:
        return 0.0
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


@lru_cache(maxsize=CACHE_SIZE)
def _grams(text: str) -> tuple[Counter[str], ...]:
    letters = "".join(text.split())
    return tuple(Counter(letters[i : i + n] for i in range(len(letters) - n + 1)) for n in range(1, ORDER + 1))


def words(candidate: str, reference: str) -> float:
    """Return the F1 of two bags of words."""
    return token_f1(candidate.split(), reference.split())


def sacrebleu_for(purpose: str) -> Callable[..., Any]:
    """Return sacrebleu's BLEU class; say which extra installs it."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtra("sacrebleu", "eval", purpose) from None
    found: Callable[..., Any] = BLEU
    return found


def bleu() -> Similarity:
    """Return sentence BLEU by sacrebleu."""
    metric = sacrebleu_for("choosing by BLEU")(effective_order=True)
    return lambda candidate, reference: float(metric.sentence_score(candidate, [reference]).score) / 100


SIMILARITIES: dict[str, Callable[[], Similarity]] = {"bleu": bleu, "chrf": lambda: chrf, "words": lambda: words}


def similarity_named(name: str) -> Similarity:
    """Return the similarity of a name."""
    if name not in SIMILARITIES:
        raise ConfigError.unknown("utility", name, SIMILARITIES)
    return SIMILARITIES[name]()
