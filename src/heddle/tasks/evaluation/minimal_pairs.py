"""BLiMP: minimal pairs of sentences, of which a model should give the grammatical one more probability.

Warstadt et al. 2020. Files of JSON lines with `sentence_good` and `sentence_bad`, alone, in a folder or in an archive
(as published: 67 files of 1,000 pairs in a tar file); the field `UID` names the paradigm.
"""

import lzma
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.core import DataError, UsageError, first_line
from heddle.core.system import parse_json
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.scoring import ScoringInput, scoring_config, text_scorer

FIELDS = ("sentence_good", "sentence_bad")
LARGEST = 1 << 26  # bytes of a file in an archive


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
    about = (
        "minimal pairs of sentences (accuracy, mean over paradigms) in JSON lines: a file, a folder, BLiMP's archive"
    )

    def examples(self, path: str) -> list[MinimalPair]:
        place = Path(path)
        if not place.exists():
            raise UsageError(f"{path}: no such file")
        files = sorted(place.glob("**/*.jsonl")) or sorted(place.glob("*.tar*")) if place.is_dir() else [place]
        return [pair for file in files for name, data in _opened(file) for pair in _pairs(name, data)]

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


def _opened(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of a file, or of each file of JSON lines in an archive; nothing is unpacked."""
    if not any(suffix.startswith(".tar") or suffix == ".tgz" for suffix in file.suffixes):
        yield str(file), file.read_bytes()
        return
    try:
        with tarfile.open(file) as archive:
            members = [one for one in archive if one.isfile() and one.name.endswith(".jsonl")]
            for member in sorted(members, key=lambda one: one.name):
                content = archive.extractfile(member) if member.size <= LARGEST else None
                if content is None:
                    raise DataError(f"{file}: want files of at most {LARGEST} bytes, found {member.name}")
                yield f"{file}:{member.name}", content.read(LARGEST)
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{file}: not an archive that can be read: {first_line(error)}") from None


def _pairs(file: str, data: bytes) -> list[MinimalPair]:
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            row: Any = parse_json(line.decode("utf-8", "replace"), f"{file}:{number}")
            good, bad = (row.get(name) if isinstance(row, dict) else None for name in FIELDS)
            if not isinstance(good, str) or not isinstance(bad, str) or not good.strip() or not bad.strip():
                raise DataError(f"{file}:{number}: want a sentence in each of {' and '.join(FIELDS)}")
            found.append(MinimalPair(good, bad, str(row.get("UID", Path(file).stem))))
    return found
