"""Prompt templates of few-shot prompting (in-context learning): how an example, and the text to answer, are written."""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

from heddle.core import ConfigError

APART = "\n\n"  # between examples, where a template has nothing behind its last field
CLASSIFY, ANSWER = ("text", "pair", "label"), ("question", "context", "answer")  # the fields of a template


@dataclass(frozen=True)
class PromptTemplate:
    """Literal texts, each with the field behind it, and what ends an example; the last field is what a model writes."""

    parts: tuple[tuple[str, str], ...]
    end: str
    fields: tuple[str, str, str]

    @property
    def reads_second(self) -> bool:
        """Tell whether it has the field of a second text, or of a context."""
        return any(field == self.fields[1] for _, field in self.parts)

    @property
    def stem(self) -> str:
        """Return what is right before the last field, without the spaces that belong to it."""
        return self.parts[-1][0].rstrip(" ")

    @property
    def gap(self) -> str:
        """Return the spaces before the last field: they are part of what the model writes, as of most tokens."""
        return self.parts[-1][0][len(self.stem) :]

    def prompt(self, text: str, second: str | None) -> str:
        """Return the text to answer, up to the last field."""
        values: Mapping[str, str] = {self.fields[0]: text, self.fields[1]: second or ""}
        return "".join(literal + values[field] for literal, field in self.parts[:-1]) + self.stem

    def example(self, text: str, second: str | None, target: str) -> str:
        """Return a whole example."""
        return self.prompt(text, second) + self.gap + target + self.end


def prompt_template(text: str, fields: tuple[str, str, str]) -> PromptTemplate:
    """Read a template, such as `{text} => {label}`: its last field is written by the model, `{{` is a brace."""
    want = f"a text with {{{fields[0]}}} and, as its last field, {{{fields[2]}}}"
    if not isinstance(text, str):
        raise ConfigError("template", want=want, got=text)
    try:
        parsed = list(Formatter().parse(text))
    except ValueError:
        raise ConfigError("template", want=f"{want} (a brace is written twice)", got=text) from None
    parts: list[tuple[str, str]] = []
    literal = ""
    for before, field, spec, conversion in parsed:
        literal += before
        if field is None:
            continue
        if field not in fields or spec or conversion:
            raise ConfigError("template", want=f"fields from {', '.join(fields)}", got=f"{{{field}}}")
        parts.append((literal, field))
        literal = ""
    named = [field for _, field in parts]
    if named.count(fields[2]) != 1 or named[-1:] != [fields[2]] or fields[0] not in named:
        raise ConfigError("template", want=want, got=text)
    return PromptTemplate(tuple(parts), literal or APART, fields)


def default_template(fields: tuple[str, str, str], second: bool) -> str:
    """Return the template of a task; `second`: with a second text, or a context."""
    if fields == CLASSIFY:
        return "Text: {text}\n" + ("Second text: {pair}\n" if second else "") + "Label: {label}" + APART
    return ("Context: {context}\n" if second else "") + "Question: {question}\nAnswer: {answer}" + APART
