"""Bodies of the task routes."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from heddle.serving.http.bodies import MAX_CHOICES, MAX_NUMBER, Body

MAX_CANDIDATES = 256  # of an n-best list
MAX_LISTS = 64
MAX_FILLINGS = 100  # tokens for a mask
MAX_EXAMPLES = 1024
Texts = str | list[str]


class TaskBody(Body):
    """What all tasks have in common."""

    model: str | None = None


class FewShotBody(TaskBody):
    """A few-shot prompt."""

    examples: list[list[str]] | None = Field(None, max_length=MAX_EXAMPLES)
    k: int | None = Field(None, ge=0, le=MAX_EXAMPLES)
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    template: str | None = None
    instruction: str | None = None

    def prompt(self, *names: str) -> dict[str, Any]:
        """Return the options of a few-shot prompt that are given; {}: none is wanted."""
        kept = ("examples", "k", "seed", "template", "instruction", *names)
        found = {name: value for name, value in self if name in kept and value is not None}
        return found | ({"examples": [tuple(one) for one in self.examples]} if self.examples is not None else {})


class ClassifyBody(FewShotBody):
    """POST /v1/heddle/classify."""

    texts: Texts
    pairs: Texts | None = None
    labels: list[str] | dict[str, str] | None = None
    calibrate: bool | None = None


class TagBody(TaskBody):
    """POST /v1/heddle/tag: texts, or lists of words."""

    texts: str | list[str] | list[list[str]]


class AnswerBody(FewShotBody):
    """POST /v1/heddle/answer."""

    questions: Texts
    contexts: Texts | None = None
    must: bool | None = None
    max_tokens: int | None = Field(None, ge=1, lt=MAX_NUMBER)


class FillBody(TaskBody):
    """POST /v1/heddle/fill."""

    texts: Texts
    top: int | None = Field(None, ge=1, le=MAX_FILLINGS)


class EmbedBody(TaskBody):
    """POST /v1/heddle/embed."""

    texts: Texts


class RescoreBody(TaskBody):
    """POST /v1/heddle/rescore: lists as `heddle rescore` reads them."""

    lists: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_LISTS)
    weight: float | dict[str, float] | None = None
    bonus: float | None = Field(None, gt=-1e6, lt=1e6)
    ending: Literal["document", "line", "none"] | None = None

    @property
    def weights(self) -> Mapping[str, float]:
        """Return the weights by name."""
        return self.weight if isinstance(self.weight, dict) else {}


class GenerationTaskBody(TaskBody):
    """What translations and summaries have in common."""

    texts: Texts
    beams: int | None = Field(None, ge=1, le=MAX_CHOICES)
    length_penalty: float | None = Field(None, ge=-10, le=10)
    max_tokens: int | None = Field(None, ge=1, lt=MAX_NUMBER)


class TranslateBody(GenerationTaskBody):
    """POST /v1/heddle/translate."""


class SummarizeBody(GenerationTaskBody):
    """POST /v1/heddle/summarize."""

    min_tokens: int | None = Field(None, ge=0, lt=MAX_NUMBER)
    no_repeat_ngram: int | None = Field(None, ge=0, lt=MAX_NUMBER)
