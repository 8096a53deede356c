"""Options of few-shot prompting, shared by classify, answer and evaluate, and files of examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import typer

from heddle.cli.labelled_input import TextInput, labelled_documents

if TYPE_CHECKING:
    from heddle.tasks.evaluation import EvaluationTask
    from heddle.tasks.few_shot import Example, FewShot, FewShotOptions

Result = TypeVar("Result")
Runner = Callable[[Sequence[str], Sequence[str] | None], Sequence[Result]]  # called with texts and second ones

Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="A,B,...",
        help="Few-shot: the labels to choose from, or LABEL=WORDS,... with the words of the prompt.",
    ),
]
ExamplesFile = Annotated[
    Path | None, typer.Option("--examples", metavar="FILE", help="Few-shot: labelled examples for the prompt.")
]
Shots = Annotated[int | None, typer.Option("-k", metavar="K", help="Few-shot: how many examples. Default: 16, or all.")]
DrawSeed = Annotated[int, typer.Option("--seed", metavar="S", help="Few-shot: seed of the draw of examples.")]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Few-shot: contextual calibration, by texts without content.")
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template", metavar="TEXT", help=r"Few-shot: how an example is written, such as '{text} => {label}\n'."
    ),
]
Instruction = Annotated[
    str, typer.Option("--instruction", metavar="TEXT", help="Few-shot: a text before the examples.")
]


class Prompted(Generic[Result]):
    """A few-shot task that runs batches, in which all texts have second ones or none: prompts differ by that."""

    def __init__(self, make: Callable[[bool], Runner[Result]], prompting: "FewShot", second: str) -> None:
        first = prompting.template is not None and f"{{{second}}}" in prompting.template
        self._make, self._made = make, {first: make(first)}  # refuses a model before lines are read

    def __call__(self, batch: list[TextInput]) -> Sequence[Result]:
        """Run a batch."""
        texts, seconds = texts_and_seconds(batch)
        with_second = seconds is not None
        if with_second not in self._made:
            self._made[with_second] = self._make(with_second)
        return self._made[with_second](texts, seconds)


def texts_and_seconds(batch: list[TextInput]) -> tuple[list[str], list[str] | None]:
    """Return the texts of a batch, and their second texts, of which all have some or none."""
    from heddle.core import UsageError

    seconds = [one.pair for one in batch if one.pair is not None]
    if seconds and len(seconds) < len(batch):
        raise UsageError("want a second text for each text, or for none")
    return [one.text for one in batch], seconds or None


def classify_prompt(
    examples: Path | None,
    labels: str | None,
    k: int | None,
    seed: int,
    calibrate: bool,
    written: tuple[str | None, str],
) -> "FewShot | None":
    """Return how to prompt for labels; None: nothing asks for it. `written`: the template and the instruction."""
    from heddle.tasks.few_shot import few_shot

    requested = _requested(k, seed, written)
    if examples is None and labels is None:
        _refuse_alone([*requested, *(["--calibrate"] if calibrate else [])], "--labels or --examples")
        return None
    options = _options(k, seed, written)
    options["calibrate"] = calibrate
    options["labels"] = None if labels is None else parse_labels(labels)
    options["examples"] = () if examples is None else class_examples(examples)
    found = few_shot(options, (*options,))
    _ = found.words  # refused before a model is loaded
    return found


def answer_prompt(
    examples: Path | None, k: int | None, seed: int, written: tuple[str | None, str], max_tokens: int | None
) -> "FewShot | None":
    """Return how to prompt for answers; None: nothing asks for it."""
    from heddle.tasks.few_shot import few_shot

    if examples is None and written == (None, "") and max_tokens is None:
        _refuse_alone(_requested(None if k == 0 else k, seed, written), "--examples")
        return None if k is None else few_shot({}, ())
    options = _options(k, seed, written)
    options["examples"] = () if examples is None else answer_examples(examples)
    options |= {} if max_tokens is None else {"max_tokens": max_tokens}
    return few_shot(options, (*options,))


@dataclass(frozen=True)
class PromptOptions:
    """The options of evaluate that prompt a model."""

    labels: str | None
    examples: Path | None
    k: int | None
    seed: int
    calibrate: bool
    template: str | None
    instruction: str

    def for_task(self, task: "EvaluationTask") -> "FewShot | None":
        """Return how to prompt for a task; refuse what it has no use for."""
        written = (self.template, self.instruction)
        if task.few_shot == "labels":
            return classify_prompt(self.examples, self.labels, self.k, self.seed, self.calibrate, written)
        if task.few_shot == "answers":
            self._refuse(f"for the task {task.name}", ("labels", "calibrate"))
            return answer_prompt(self.examples, self.k, self.seed, written, None)
        self._refuse(f"for the task {task.name}", tuple(self.plain()))
        return None

    def refuse(self, without: str) -> None:
        """Refuse all of them."""
        self._refuse(f"without {without}", tuple(self.plain()))

    def plain(self) -> dict[str, object]:
        """Return the options that are given, as plain data."""
        given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        unset = {name: None for name in given} | {"seed": 0, "calibrate": False, "instruction": ""}
        return {name: value for name, value in given.items() if value != unset[name]}

    def record(self, prompting: "FewShot | None") -> dict[str, object]:
        """Return how a model was prompted, as plain data, so that a result can be told from others."""
        return {} if prompting is None else self.plain() | {"k": prompting.shots, "seed": self.seed}

    def _refuse(self, where: str, names: tuple[str, ...]) -> None:
        from heddle.core import UsageError

        for name in names:
            if name in self.plain():
                raise UsageError(f"{'-k' if name == 'k' else '--' + name}: has no effect {where}")


def _requested(k: int | None, seed: int, written: tuple[str | None, str]) -> list[str]:
    given = {"-k": k, "--seed": seed or None, "--template": written[0], "--instruction": written[1] or None}
    return [name for name, value in given.items() if value is not None]


def _refuse_alone(requested: list[str], beside: str) -> None:
    from heddle.core import UsageError

    if requested:
        raise UsageError(f"{requested[0]}: has no effect without {beside}")


def _options(k: int | None, seed: int, written: tuple[str | None, str]) -> "FewShotOptions":
    template, instruction = (text if text is None else text.replace("\\n", "\n") for text in written)
    return {"k": k, "seed": seed, "template": template, "instruction": instruction or ""}


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of `a,b` or `0=bad,1=good`, each with its words."""
    from heddle.core import ConfigError

    found = {}
    for part in text.split(","):
        name, _, words = part.strip().partition("=")
        if not name.strip() or name.strip() in found:
            raise ConfigError("labels", want="different names with commas between them", got=text)
        found[name.strip()] = words.strip() or name.strip()
    return found


def class_examples(path: Path) -> "list[Example]":
    """Return the examples of a table: text, perhaps a second text, and one label."""
    from heddle.core import DataError
    from heddle.tasks.few_shot import Example

    found = []
    for one in labelled_documents(str(path), "classes"):
        names = () if one.label is None else one.label.names
        if len(names) != 1:
            raise DataError(f"{one.origin}: want one label for an example, found {len(names)}")
        found.append(Example(one.text, names[0], one.pair))
    return found


def answer_examples(path: Path) -> "list[Example]":
    """Return the examples of a file of questions, each with its first answer."""
    from heddle.core import DataError
    from heddle.data.sources import SquadSource
    from heddle.tasks.few_shot import Example

    questions = SquadSource(path=str(path)).questions()
    found = [Example(one.text, one.answers[0], one.context) for one in questions if one.answers]
    if not found:
        raise DataError(f"{path}: want questions with answers, found none")
    return found
