"""Text classification: the class of each text with its probability, all its classes, or a score."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.models.networks import Model
from heddle.tasks.labelling.reader import EncoderReader, encoder_reader
from heddle.text.tokenizers import Tokenizer

KINDS = ("sequence_class", "multi_label", "regression")
LIKELY = 0.5  # the probability from which a text has a class, where it may have several


@dataclass(frozen=True)
class ClassifiedText:
    """The most probable class of a text, its probability, and those of all classes.

    labels: the classes that the text has: one, or any number where it may have several.
    score: of a model that predicts a number, such as a similarity; such a model has no classes.
    examples: how many examples the prompt has, in few-shot classification.
    """

    label: str | None
    probability: float | None
    probabilities: dict[str, float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    score: float | None = None
    examples: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        if self.score is not None:
            return {"score": self.score}
        found: dict[str, Any] = {"label": self.label, "probability": self.probability}
        found |= {"probabilities": self.probabilities}
        found |= {} if self.examples is None else {"examples": self.examples}
        return found if self.labels == (self.label,) else found | {"labels": list(self.labels)}


def named_classes(numbers: Sequence[float], names: Sequence[str], kind: str) -> ClassifiedText:
    """Return the result that the probabilities of all classes make, or the number of a model without classes."""
    if kind == "regression":
        return ClassifiedText(None, None, score=numbers[0])
    named = dict(zip(names, numbers, strict=True))
    ordered = dict(sorted(named.items(), key=lambda one: -one[1]))
    label, probability = next(iter(ordered.items()))
    several = tuple(name for name, p in ordered.items() if p >= LIKELY) if kind == "multi_label" else (label,)
    return ClassifiedText(label, probability, ordered, several)


@dataclass(frozen=True)
class Classifier:
    """An encoder with an output for the class of a text."""

    reader: EncoderReader

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer) -> "Classifier":
        """Return a classifier; refuse a model without classes."""
        reader = encoder_reader(model, tokenizer, "classify", "give labels (--labels good,bad)")
        reader.model.output_of(*KINDS)
        return cls(reader)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the classes; (): it predicts a number."""
        return self.reader.model.output_of(*KINDS).class_names

    def run(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[ClassifiedText]:
        """Classify texts, or pairs of texts; of a text that is longer than a row, windows are averaged."""
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(f"pair: want {len(texts)}, one for each text, got {len(pairs)}")
        tokenizer, config = self.reader.tokenizer, self.reader.model.output_of(*KINDS)
        seconds = None if pairs is None else tokenizer.encode_many(list(pairs))
        rows = self.reader.rows(tokenizer.encode_many(list(texts)), seconds)
        output = self.reader.model.output(config.name)
        found: list[list[Tensor]] = [[] for _ in texts]
        for row, scores in zip(rows, self.reader.scores(config.name, rows), strict=True):
            found[row.text].append(output.probabilities(scores))
        means = [torch.stack(one).mean(0).tolist() for one in found]
        return [named_classes(one, self.names, str(config.kind)) for one in means]
