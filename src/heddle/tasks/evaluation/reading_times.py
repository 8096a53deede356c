"""Natural Stories: how much surprisal adds to the prediction of reading times (Futrell et al. 2021; Hale 2001).

The log of each word's geometric mean reading time is predicted by linear regression. The baseline has the length and
the log frequency of the word and of the word before it, and the word's place in its story and in its sentence; the full
model adds the surprisal of both words (spill-over). Each story is predicted from the nine others. The gain is the mean
difference of Gaussian log-likelihoods per word (Goodkind & Bicknell 2018). The first and the last word of a sentence
are read in their context but not predicted: readers pause there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import DataError, MissingExtra, UsageError
from heddle.core.metrics import pearson
from heddle.data.files import decoded, read_faults
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.scoring import ScoringInput, scoring_config, text_scorer

WORDS, TIMES = "all_stories.tok", "processed_wordinfo.tsv"  # as published, or compressed as .xz or .gz
LARGEST = 1 << 26  # bytes of a file
RAREST = 1e-9  # the frequency of a word that is in no list
ENDS, CLOSING = ".?!", "'\")”’"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReadWord:
    """A word of a story, the log of its geometric mean reading time in ms, and what the baseline knows."""

    text: str
    story: int
    place: int  # in its story, from 1
    log_time: float
    log_frequency: float
    in_sentence: int = 0  # its place in its sentence, from 0
    predicted: bool = False  # whether it is neither the first nor the last word of a sentence


@dataclass(frozen=True)
class ReadingPrediction:
    """The surprisal of a word in bits, and by how many nats it helps; None: the word is not predicted."""

    surprisal: float
    gain: float | None


@register_task
class NaturalStoriesTask(EvaluationTask):
    """Reading times by the gain in log-likelihood of surprisal over the baseline, by stories."""

    name = "naturalstories"
    about = "reading times of the Natural Stories corpus (gain in nats per word, correlation), a folder of its files"

    def examples(self, path: str) -> list[ReadWord]:
        return in_sentences(_words(Path(path)))

    def limited(self, examples: list[ReadWord], most: int) -> list[ReadWord]:
        """Return the beginning of each story, as many words of each."""
        stories = {one.story for one in examples}
        return [one for one in examples if one.place <= max(8, most // len(stories))]

    def predict(self, graded: GradedModel, examples: Sequence[ReadWord]) -> list[ReadingPrediction]:
        surprisal = _surprisal(graded, examples)
        gains = cross_validated_gains(examples, surprisal)
        return [
            ReadingPrediction(bits, float(gain) if one.predicted else None)
            for one, bits, gain in zip(examples, surprisal.tolist(), gains, strict=True)
        ]

    def metrics(self, predictions: Sequence[ReadingPrediction], examples: Sequence[ReadWord]) -> Metrics:
        rows = [
            (found.gain, found.surprisal, one.log_time)
            for found, one in zip(predictions, examples, strict=True)
            if found.gain is not None
        ]
        gains, surprisals, times = zip(*rows, strict=True) if rows else ((0.0,), (0.0,), (0.0,))
        mean = sum(found.surprisal for found in predictions) / len(predictions)
        return {
            "loglik_gain": math.fsum(gains) / len(gains),
            "correlation": pearson(surprisals, times),
            "bits_per_word": mean,
        }


def cross_validated_gains(words: Sequence[ReadWord], surprisal: Floats) -> Floats:
    """Return by how many nats surprisal improves the prediction of each word, each story predicted from the others."""
    times = np.array([one.log_time for one in words])
    stories = np.array([one.story for one in words])
    baseline = np.stack([np.ones(len(words)), *_features(words)], 1)
    full = np.concatenate([baseline, np.stack([surprisal, _before(surprisal)], 1)], 1)
    counted = np.array([one.predicted for one in words])
    gains = np.zeros(len(words))
    for story in np.unique(stories):
        held, train = stories == story, (stories != story) & counted
        if train.sum() <= full.shape[1]:
            raise DataError(f"naturalstories: want more than {full.shape[1]} words outside story {story}")
        logs = [_log_likelihood(x[train], times[train], x[held], times[held]) for x in (baseline, full)]
        gains[held] = logs[1] - logs[0]
    return gains


def _features(words: Sequence[ReadWord]) -> list[Floats]:
    lengths = np.array([float(len(one.text)) for one in words])
    frequencies = np.array([one.log_frequency for one in words])
    places = np.array([float(one.place) for one in words]), np.array([float(one.in_sentence) for one in words])
    return [lengths, _before(lengths), frequencies, _before(frequencies), *places]


def _before(values: Floats) -> Floats:
    """Return the value of the word before each; words without one are the first of a sentence, and not predicted."""
    return np.concatenate([values[:1], values[:-1]])


def _log_likelihood(x: Floats, y: Floats, held_x: Floats, held_y: Floats) -> Floats:
    """Return the Gaussian log-likelihoods of held-out values under least squares."""
    weights, *_ = np.linalg.lstsq(x, y, rcond=None)
    variance = float(((y - x @ weights) ** 2).mean())
    found: Floats = -0.5 * np.log(2 * np.pi * variance) - (held_y - held_x @ weights) ** 2 / (2 * variance)
    return found


def _surprisal(graded: GradedModel, words: Sequence[ReadWord]) -> Floats:
    """Return the surprisal of each word in bits, each story read as one text."""
    scorer = text_scorer(graded.model, graded.tokenizer, scoring_config({}))
    stories = [[w.text for w in words if w.story == story] for story in dict.fromkeys(w.story for w in words)]
    found: list[float] = []
    for scored, texts in zip(scorer.run([ScoringInput(" ".join(texts)) for texts in stories]), stories, strict=True):
        if len(scored.words) != len(texts):
            read = f"{len(texts)} words as the tokenizer reads them"
            raise DataError(f"naturalstories: want {read}, got {len(scored.words)}")
        found += [word.surprisal for word in scored.words]
    return np.array(found)


def in_sentences(words: Sequence[ReadWord]) -> list[ReadWord]:
    """Return words with their places in their sentences, and whether they are predicted."""
    found: list[ReadWord] = []
    place = 0
    for number, one in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else None
        last = one.text.rstrip(CLOSING).endswith(tuple(ENDS)) or following is None or following.story != one.story
        found.append(replace(one, in_sentence=place, predicted=place > 0 and not last))
        place = 0 if last else place + 1
    return found


# --- files ------------------------------------------------------------------------------------------------------------


def _words(folder: Path) -> list[ReadWord]:
    """Return the words of all stories in order, with their reading times."""
    try:
        import wordfreq
    except ImportError:
        raise MissingExtra("wordfreq", "spell", "naturalstories (for the frequencies of words)") from None
    times = {}
    for row in _table(folder, TIMES, ("zone", "item", "gmeanItemRT")):
        times[int(row["item"]), int(row["zone"])] = math.log(float(row["gmeanItemRT"]))
    found = []
    for row in _table(folder, WORDS, ("word", "zone", "item")):
        story, place = int(row["item"]), int(row["zone"])
        if (story, place) not in times:
            raise DataError(f"{folder}: want a reading time of each word, found none for word {place} of story {story}")
        frequency = math.log2(wordfreq.word_frequency(row["word"], "en", minimum=RAREST))
        found.append(ReadWord(row["word"], story, place, times[story, place], frequency))
    return sorted(found, key=lambda one: (one.story, one.place))


def _table(folder: Path, name: str, wanted: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table, plain or compressed."""
    paths = [folder / (name + suffix) for suffix in ("", ".xz", ".gz") if (folder / (name + suffix)).is_file()]
    if not paths:
        raise UsageError(f"{folder}: want the folder of Natural Stories, with {WORDS} and {TIMES}, found no {name}")
    with paths[0].open("rb") as file, read_faults():
        text = decoded(file).read(LARGEST + 1)
    if len(text) > LARGEST:
        raise DataError(f"{paths[0]}: want at most {LARGEST:,} bytes")
    with read_faults():
        lines = text.decode().split("\n")
    header = lines[0].rstrip("\r").split("\t")
    if not set(wanted) <= set(header):
        raise DataError(f"{paths[0]}: want the columns {', '.join(wanted)}, found {', '.join(header)[:120]}")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.rstrip("\r").split("\t")
        if line.strip() and len(cells) != len(header):
            raise DataError(f"{paths[0]}:{number}: want {len(header)} columns, found {len(cells)}")
        if line.strip():
            rows.append(dict(zip(header, cells, strict=True)))
    return rows
