"""Label sets: the labels of a corpus, as numbers that are stored beside its tokens, and as targets of rows."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, DataError, hint, part
from heddle.data.sources import (
    Answers,
    ClassLabels,
    CorpusConfig,
    Document,
    DocumentCounter,
    Label,
    LabelKind,
    Score,
    Split,
    WordTags,
)
from heddle.text.tokenizers import Tokenizer

ANY = 1 << 32  # values of labels that are no numbers of classes
Numbers = NDArray[np.uint32]
LISTED = 12  # labels named in a message


@dataclass(frozen=True)
class TextWindow:
    """A stretch of a text's tokens in a row: tokens `start` to `stop` stand from place `at` on.

    Of several windows of one text, each is responsible for the tokens from `own_start` to `own_stop`.
    """

    start: int
    stop: int
    own_start: int
    own_stop: int
    at: int = 0

    @property
    def shift(self) -> int:
        """Return what to add to the number of a token, to get its place in the row."""
        return self.at - self.start


@dataclass(frozen=True)
class RowTargets:
    """What a row is to be predicted: a target and a weight for each place, and the labels of the row as a whole."""

    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    labels: NDArray[Any]


class LabelSet(Config, ABC):
    """The labels that a corpus has."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return the names of the labels, sorted; (): they have none."""
        return ()

    @property
    def values(self) -> int:
        """Return how many different numbers are stored."""
        return ANY

    @abstractmethod
    def encode(self, document: Document, tokenizer: Tokenizer) -> Sequence[int] | Numbers:
        """Return the label of a document as numbers."""

    @abstractmethod
    def row(self, numbers: Numbers, window: TextWindow, length: int) -> RowTargets:
        """Return what a row of some length is to be predicted, from the numbers of its document."""

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.all_names)}

    def _id(self, name: str, origin: str) -> int:
        if name not in self._ids:
            raise DataError(_unknown(name, origin, self.all_names))
        return self._ids[name]


def _unknown(name: str, origin: str, names: Sequence[str]) -> str:
    listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
    near = hint(name, names)
    return f"{origin}: label {name!r} is not among those of the training split: {listed}{near}"


def _whole_row(length: int, labels: NDArray[Any]) -> RowTargets:
    """Return the targets of a row that has one label as a whole: its first place counts."""
    weights = np.zeros(length, np.float32)
    weights[0] = 1
    return RowTargets(np.zeros(length, np.int64), weights, labels)


@part("classes")
class ClassSet(LabelSet):
    """Classes of texts.

    names: the classes, sorted.
    several: whether a text may have any number of them.
    counts: how many training texts have each.
    """

    names: tuple[str, ...]
    several: bool = False
    counts: tuple[int, ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def values(self) -> int:
        return max(1, len(self.names))

    def encode(self, document: Document, tokenizer: Tokenizer) -> Sequence[int]:
        assert isinstance(document.label, ClassLabels)
        return [self._id(name, document.origin) for name in document.label.classes]

    def row(self, numbers: Numbers, window: TextWindow, length: int) -> RowTargets:
        found = numbers.astype(np.int64)
        if self.several:
            found = np.bincount(found, minlength=len(self.names))
        return _whole_row(length, found)


@part("tags")
class TagSet(LabelSet):
    """Tags of words, of which the first token of each is labelled.

    names: the tags, sorted.
    """

    names: tuple[str, ...]

    @property
    def all_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def values(self) -> int:
        return len(self.names) + 1  # 0: a token that begins no word

    def encode(self, document: Document, tokenizer: Tokenizer) -> Numbers:
        assert isinstance(document.label, WordTags)
        spans = tokenizer.spans(document.text)
        numbers = np.zeros(len(spans), np.uint32)
        for token, word in first_tokens(spans, document.label.words):
            numbers[token] = 1 + self._id(document.label.tags[word], document.origin)
        return numbers

    def row(self, numbers: Numbers, window: TextWindow, length: int) -> RowTargets:
        targets, weights = np.zeros(length, np.int64), np.zeros(length, np.float32)
        own = numbers[window.own_start : window.own_stop].astype(np.int64)
        first = window.own_start + window.shift
        targets[first : first + len(own)] = np.maximum(own - 1, 0)
        weights[first : first + len(own)] = own > 0
        return RowTargets(targets, weights, np.zeros(0, np.int64))


@part("answers")
class AnswerSet(LabelSet):
    """Answers in the second text, as their first and last tokens; without one, both are the first token of the row."""

    def encode(self, document: Document, tokenizer: Tokenizer) -> Sequence[int]:
        assert isinstance(document.label, Answers) and document.pair is not None
        spans = tokenizer.spans(document.pair)
        found = [token_range(spans, span) for span in document.label.spans]
        return [number for edges in found if edges is not None for number in edges]

    def row(self, numbers: Numbers, window: TextWindow, length: int) -> RowTargets:
        """Return the first answer that lies in the window; one that does not is no answer of this row."""
        for first, last in numbers.astype(np.int64).reshape(-1, 2).tolist():
            if window.start <= first and last < window.stop:
                return _whole_row(length, np.array([first + window.shift, last + window.shift]))
        return _whole_row(length, np.zeros(2, np.int64))


@part("scores")
class ScoreSet(LabelSet):
    """Numbers, such as the similarity of two texts.

    mean: mean of the training scores.
    deviation: their standard deviation.
    """

    mean: float = 0.0
    deviation: float = 1.0

    def encode(self, document: Document, tokenizer: Tokenizer) -> Numbers:
        assert isinstance(document.label, Score)
        return np.array([document.label.value], "<f4").view("<u4")

    def row(self, numbers: Numbers, window: TextWindow, length: int) -> RowTargets:
        return _whole_row(length, numbers.astype("<u4").view("<f4").astype(np.float32))


@part("none")
class NoLabels(LabelSet):
    """Texts without labels, each an example by itself."""

    def encode(self, document: Document, tokenizer: Tokenizer) -> Sequence[int]:
        return []

    def row(self, numbers: Numbers, window: TextWindow, length: int) -> RowTargets:
        return _whole_row(length, np.zeros(0, np.int64))


# --- tokens and characters --------------------------------------------------------------------------------------------


def first_tokens(spans: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the first token of each word, with the word's number; both are given by characters, in their order.

    A token may reach beyond a word, to the space before it or, rarely, into the next word; it then belongs to the first
    of its words. A word that a tokenizer drops has none.
    """
    found: list[tuple[int, int]] = []
    token = 0
    for number, (start, stop) in enumerate(words):
        while token < len(spans) and (spans[token][1] <= start or spans[token][0] == spans[token][1]):
            token += 1
        if token < len(spans) and spans[token][0] < stop and (not found or found[-1][0] != token):
            found.append((token, number))
    return found


def token_range(spans: Sequence[tuple[int, int]], wanted: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first and the last token of a stretch of characters; None: no token has any of it."""
    inside = [n for n, (start, stop) in enumerate(spans) if start < wanted[1] and stop > wanted[0] and start < stop]
    return (inside[0], inside[-1]) if inside else None


# --- finding them -----------------------------------------------------------------------------------------------------


def find_labels(corpus: CorpusConfig, wanted: LabelKind | None = None) -> LabelSet:
    """Return the labels of a corpus's training split; a held-out label that is not among them is refused."""
    counts: Counter[str] = Counter()
    held_out: dict[str, str] = {}
    scores: list[float] = []
    first: tuple[Label, str] | None = None
    several, counter, splits = False, DocumentCounter(), dict.fromkeys(Split, 0)
    for split, document in corpus.split_documents(counter):
        splits[split] += 1
        label = document.label
        if label is None:
            continue
        first = first or (label, document.origin)
        _check_kind(label, document.origin, wanted or first[0].kind)
        if isinstance(label, ClassLabels):
            several = several or label.several
        if split is Split.VALID:
            held_out |= {name: document.origin for name in label.names if name not in held_out}
            continue
        counts.update(label.names)
        scores += [label.value] if isinstance(label, Score) else []
    corpus.check_splits(splits, counter)
    names = tuple(sorted(counts))
    for name, origin in held_out.items():
        if name not in counts:
            more = "" if corpus.split.kind == "file" else "; more examples of it or another data.split.seed may help"
            raise DataError(_unknown(name, origin, names) + more)
    if wanted == "classes" and len(names) == 1 and not several:
        raise DataError(f"{first[1] if first else corpus}: want texts of two classes or more, found only {names[0]!r}")
    return _label_set(None if first is None else first[0].kind, names, several, counts, scores)


def _check_kind(label: Label, origin: str, wanted: LabelKind) -> None:
    if label.kind != wanted:
        raise DataError(f"{origin}: want labels of the kind {wanted}, found {label.kind}")


def _label_set(
    kind: LabelKind | None, names: tuple[str, ...], several: bool, counts: Mapping[str, int], scores: Sequence[float]
) -> LabelSet:
    match kind:
        case "classes":
            return ClassSet(names=names, several=several, counts=tuple(counts[name] for name in names))
        case "tags":
            return TagSet(names=names)
        case "answers":
            return AnswerSet()
        case "score":
            spread = float(np.std(scores)) if len(scores) > 1 else 0.0
            return ScoreSet(mean=float(np.mean(scores)) if scores else 0.0, deviation=spread or 1.0)
    return NoLabels()


# --- windows of long texts --------------------------------------------------------------------------------------------


def text_windows(length: int, capacity: int, overlap: int) -> list[TextWindow]:
    """Divide a text of some tokens into windows that overlap; each token belongs to the one that shows most around it.

    The last window ends with the text, and may overlap more.
    """
    if length <= capacity:
        return [TextWindow(0, length, 0, length)]
    step = max(1, capacity - overlap)
    starts = [*range(0, length - capacity, step), length - capacity]
    cuts = [0, *((later + start + capacity) // 2 for start, later in pairwise(starts)), length]
    return [TextWindow(at, at + capacity, *own) for at, own in zip(starts, pairwise(cuts), strict=True)]
