"""BLiMP: minimal pairs of sentences, of which a model should give the grammatical one more probability.

Warstadt et al. 2020. Files of JSON lines with `sentence_good` and `sentence_bad`; the field `UID` names the paradigm.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.core import DataError, UsageError
from heddle.core.system import parse_json
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.scoring import ScoringInput, scoring_config, text_scorer

FIELDS = ("sentence_good", "sentence_bad")


@dataclass(frozen=True)
class MinimalPair:
    """A grammatical sentence and one that is not, and what they differ in."""

    good: str
    bad: str
    paradigm: str


@register_task
class BlimpTask(EvaluationTask):
    """BLiMP by log-probability of whole sentences; of an encoder, by pseudo-log-likelihood."""

    name = "blimp"
    about = "minimal pairs of sentences (accuracy, mean over paradigms) in BLiMP's JSON lines, a file or a folder"

    def examples(self, path: str) -> list[MinimalPair]:
        place = Path(path)
        if not place.exists():
            raise UsageError(f"{path}: no such file")
        files = sorted(place.glob("**/*.jsonl")) if place.is_dir() else [place]
        return [pair for file in files for pair in _pairs(file)]

    def predict(self, graded: GradedModel, examples: Sequence[MinimalPair]) -> list[bool]:
        scorer = text_scorer(graded.model, graded.tokenizer, scoring_config({}))
        texts = [text for one in examples for text in (one.good, one.bad)]
        scores = [found.logprob for found in scorer.run([ScoringInput(text) for text in texts])]
        return [good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True)]

    def metrics(self, predictions: Sequence[bool], examples: Sequence[MinimalPair]) -> Metrics:
        by_paradigm: dict[str, list[bool]] = defaultdict(list)
        for right, one in zip(predictions, examples, strict=True):
            by_paradigm[one.paradigm].append(right)
        means = [sum(found) / len(found) for found in by_paradigm.values()]
        return {"accuracy": sum(means) / len(means)}


def _pairs(file: Path) -> list[MinimalPair]:
    found = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if line.strip():
            row: Any = parse_json(line.decode("utf-8", "replace"), f"{file}:{number}")
            good, bad = (row.get(name) if isinstance(row, dict) else None for name in FIELDS)
            if not isinstance(good, str) or not isinstance(bad, str) or not good.strip() or not bad.strip():
                raise DataError(f"{file}:{number}: want a sentence in each of {' and '.join(FIELDS)}")
            found.append(MinimalPair(good, bad, str(row.get("UID", file.stem))))
    return found
