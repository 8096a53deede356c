"""ROUGE of summaries (Lin 2004), as the package rouge-score computes it: F1 of n-grams and longest subsequences."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from heddle.core import DataError, MissingExtra

KINDS = ("rouge1", "rouge2", "rougeL")


def rouge_scorer() -> Any:
    """Return rouge-score's scorer with the stemmer; call it before the work, to learn early if it is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtra("rouge-score", "eval", "scoring summaries") from None
    return RougeScorer(KINDS, use_stemmer=True)


def rouge_each(summaries: Sequence[str], references: Sequence[str]) -> list[dict[str, float]]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L of each summary, from 0 to 100."""
    if len(summaries) != len(references):
        raise DataError(f"references: want {len(summaries)}, one for each summary, found {len(references)}")
    scorer = rouge_scorer()
    found = (scorer.score(right, mine) for mine, right in zip(summaries, references, strict=True))
    return [{kind: 100 * float(one[kind].fmeasure) for kind in KINDS} for one in found]


def rouge(summaries: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the means over all summaries."""
    each = rouge_each(summaries, references)
    if not each:
        raise DataError("references: want one summary or more, found none")
    return {kind: sum(one[kind] for one in each) / len(each) for kind in KINDS}


def rouge_signature() -> str:
    """Say how it was computed."""
    return f"rouge-score {version('rouge-score')}, F1, stemmer"
