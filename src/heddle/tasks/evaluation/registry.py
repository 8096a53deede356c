"""The registry of evaluation tasks; results with percentile bootstrap intervals over examples (Efron 1979)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from heddle.core import ConfigError, DataError, UsageError
from heddle.models.networks import Model
from heddle.tasks.few_shot import FewShot
from heddle.text.tokenizers import Tokenizer

RESAMPLES, LEVEL = 500, 0.95
Metrics = dict[str, float]  # the first is the one that matters most
Interval = tuple[float, float]


@dataclass(frozen=True)
class GradedModel:
    """What a task is given: the model, its tokenizer, the settings that came with it, and how it is prompted."""

    model: Model
    tokenizer: Tokenizer
    settings: Mapping[str, Any] = field(default_factory=dict)
    prompting: FewShot | None = None


class EvaluationTask(ABC):
    """A task: examples from a file, what the model predicts for them, and metrics.

    name: what `heddle evaluate --task` calls it.
    about: what is measured, in a sentence.
    few_shot: whether a model may be prompted with examples: with labels, or with answers.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    few_shot: ClassVar[Literal["labels", "answers"] | None] = None

    @abstractmethod
    def examples(self, path: str) -> list[Any]:
        """Return the examples of a file or a folder."""

    def _examples_for(self, graded: GradedModel, path: str) -> list[Any]:
        """Return the examples as the model reads them; a task whose reader depends on the model overrides it."""
        return self.examples(path)

    def limited(self, examples: list[Any], most: int) -> list[Any]:
        """Return at most so many of the examples, evenly spaced over all."""
        count = min(most, len(examples))
        return [examples[number * len(examples) // count] for number in range(count)]

    @abstractmethod
    def predict(self, graded: GradedModel, examples: Sequence[Any]) -> list[Any]:
        """Return what the model predicts, one for each example."""

    @abstractmethod
    def metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> Metrics:
        """Return the metrics of some predictions."""


@dataclass(frozen=True)
class TaskResult:
    """The metrics of a task with their intervals."""

    task: str
    examples: int
    metrics: Metrics
    intervals: dict[str, Interval]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        intervals = {name: list(interval) for name, interval in self.intervals.items()}
        return {"task": self.task, "examples": self.examples, **self.metrics, "intervals": intervals}


TASKS: dict[str, EvaluationTask] = {}
Task = TypeVar("Task", bound=type[EvaluationTask])


def register_task(task: Task) -> Task:
    """Register a task by its `name`; a decorator for classes, the user's own as well (`--use FILE.py`)."""
    if not isinstance(task, type) or not issubclass(task, EvaluationTask) or not vars(task).get("name"):
        raise UsageError(f"register_task: want a class of EvaluationTask with a name, got {task!r:.80}")
    known = TASKS.get(task.name)
    if known is not None and type(known).__module__.startswith("heddle."):
        raise UsageError(f"register_task: the library has a task called {task.name!r}; want another name")
    TASKS[task.name] = task()
    return task


def task_named(name: str) -> EvaluationTask:
    """Return a task by its name, or refuse with the names that there are."""
    if name not in TASKS:
        raise ConfigError.unknown("task", name, sorted(TASKS))
    return TASKS[name]


def run_task(
    task: EvaluationTask, graded: GradedModel, path: str, seed: int = 0, limit: int | None = None
) -> TaskResult:
    """Grade a model on the examples of a file, or on at most `limit` of them."""
    examples = task._examples_for(graded, path)
    examples = examples if limit is None else task.limited(examples, limit)
    if not examples:
        raise DataError(f"{path}: want one example or more, found none")
    predictions = task.predict(graded, examples)
    if len(predictions) != len(examples):
        raise UsageError(f"task {task.name}: want {len(examples)} predictions, got {len(predictions)}")
    found = task.metrics(predictions, examples)
    return TaskResult(task.name, len(examples), found, bootstrap_intervals(task, predictions, examples, seed))


def bootstrap_intervals(
    task: EvaluationTask, predictions: Sequence[Any], examples: Sequence[Any], seed: int = 0
) -> dict[str, Interval]:
    """Return the interval of each metric over examples that are drawn again, with replacement."""
    draw, drawn = np.random.default_rng(seed), list[Metrics]()
    for _ in range(RESAMPLES):
        chosen = draw.integers(0, len(examples), len(examples)).tolist()
        drawn.append(task.metrics([predictions[i] for i in chosen], [examples[i] for i in chosen]))
    ends = (50 * (1 - LEVEL), 50 * (1 + LEVEL))
    found = {}
    for name in drawn[0]:
        low, high = np.percentile([one[name] for one in drawn if name in one], ends).tolist()
        found[name] = (float(low), float(high))
    return found
