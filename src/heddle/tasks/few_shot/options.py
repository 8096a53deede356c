"""Options of few-shot prompting: examples, how many of them, labels, template, calibration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from heddle.core import ConfigError, nearest
from heddle.models.networks import AutoregressiveModel
from heddle.tasks.few_shot.prompts import Example, PromptBuilder, draw_examples
from heddle.tasks.few_shot.template import default_template, prompt_template
from heddle.text.tokenizers import Tokenizer

K = 16  # examples, where no number is given and there are as many

Labels = Sequence[str] | Mapping[str, str]  # names, or names with the words that a prompt has for them
Examples = Sequence[Example | tuple[str, ...]]  # tuples: (text, label) or (text, second text, label)


class FewShotOptions(TypedDict, total=False):
    """The fields of `FewShot` as keyword arguments, with examples as tuples."""

    labels: Labels | None
    examples: Examples | None
    k: int | None
    seed: int
    calibrate: bool
    template: str | None
    instruction: str
    max_tokens: int


@dataclass(frozen=True)
class FewShot:
    """How a model is prompted.

    labels: the classes and the words that the prompt has for them; None: the labels of the examples.
    examples: what examples are drawn from.
    k: how many are drawn; None: 16, or all where there are fewer.
    seed: of the draw and of their order.
    calibrate: contextual calibration (Zhao et al. 2021), of labels.
    template: how an example is written; None: that of the task.
    instruction: a text before the examples.
    max_tokens: of an answer.
    """

    labels: Mapping[str, str] | None = None
    examples: tuple[Example, ...] = ()
    k: int | None = None
    seed: int = 0
    calibrate: bool = False
    template: str | None = None
    instruction: str = ""
    max_tokens: int = 32

    def __post_init__(self) -> None:
        if self.k is not None and not 0 <= self.k <= len(self.examples):
            raise ConfigError("k", want=f"0 to {len(self.examples)}, the number of examples", got=self.k)
        if self.max_tokens < 1:
            raise ConfigError("max_tokens", want="at least 1", got=self.max_tokens)

    @property
    def shots(self) -> int:
        """Return the number of examples in a prompt."""
        return min(K, len(self.examples)) if self.k is None else self.k

    @property
    def words(self) -> dict[str, str]:
        """Return the word of each label; refuse fewer than two labels."""
        names = dict.fromkeys(one.target for one in self.examples)
        found = {name: name for name in names} if self.labels is None else dict(self.labels)
        if len(found) < 2:
            given = ", ".join(found) or None
            raise ConfigError("labels", want="two or more, by name or as the labels of examples", got=given)
        for name in names:
            if name not in found:
                raise ConfigError("examples", want=f"labels from {', '.join(found)}", got=name)
        return found

    def builder(
        self, model: AutoregressiveModel, tokenizer: Tokenizer, fields: tuple[str, str, str], second: bool
    ) -> PromptBuilder:
        """Return what writes the prompts; `second`: the texts have second texts, or contexts."""
        written = default_template(fields, second) if self.template is None else self.template
        template = prompt_template(written, fields)
        if template.reads_second and not second:
            raise ConfigError("template", want=f"no {{{fields[1]}}}, as the texts have none", got=written)
        if template.reads_second and any(one.second is None for one in self.examples):
            raise ConfigError("examples", want=f"a {fields[1]} for each, as the texts have one", got=None)
        words = self.words if fields[2] == "label" else {}
        drawn = draw_examples(self.examples, self.shots, self.seed, balanced=bool(words))
        written_as = [Example(one.text, words.get(one.target, one.target), one.second) for one in drawn]
        return PromptBuilder(model, tokenizer, template, written_as, self.instruction)


def few_shot(options: FewShotOptions, allowed: Sequence[str]) -> FewShot:
    """Return how to prompt from keyword arguments; refuse unknown ones, and what is no example."""
    for name in options:
        if name not in allowed:
            raise ConfigError(name, want=f"one of {', '.join(allowed)}", got=name, near=nearest(name, allowed))
    given: dict[str, Any] = {**options}
    given["examples"] = tuple(_example(one) for one in given.get("examples") or ())
    labels = given.get("labels")
    if labels is not None and not isinstance(labels, Mapping):
        given["labels"] = {name: name for name in _names(labels)}
    for name, kind in (("k", int | None), ("seed", int), ("max_tokens", int), ("instruction", str)):
        if name in given and not isinstance(given[name], kind):
            raise ConfigError(name, want="a text" if kind is str else "a whole number", got=given[name])
    return FewShot(**given)


def _names(labels: object) -> list[str]:
    names = [] if isinstance(labels, str) or not isinstance(labels, Sequence) else list(labels)
    if not names or any(not isinstance(name, str) or not name.strip() for name in names):
        raise ConfigError("labels", want="a list of names, or a table of names and words", got=labels)
    return names


def _example(one: object) -> Example:
    match one:
        case Example():
            return one
        case (str(text), str(target)):
            return Example(text, target)
        case (str(text), str(second), str(target)):
            return Example(text, target, second)
    raise ConfigError("examples", want="tuples of a text and its label or answer", got=one)
