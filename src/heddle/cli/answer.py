"""heddle answer: questions answered from contexts or from memory, as JSON lines, graded by SQuAD's rules."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.few_shot import DrawSeed, ExamplesFile, Instruction, Prompted, Shots, Template, answer_prompt
from heddle.cli.labelled_input import (
    JSON,
    TextInput,
    labelled_documents,
    record_inputs,
    run_batches,
    text_inputs,
    write_record,
)
from heddle.cli.line_input import LineErrors, name_of, read_lines
from heddle.cli.options import Best, Device, Model, Weights, open_model

if TYPE_CHECKING:
    from heddle.lm import LM
    from heddle.tasks.few_shot import FewShot, GeneratedAnswer
    from heddle.tasks.labelling import Answer

ANSWERS = (".json", ".jsonl", ".ndjson", ".gz", ".xz")  # of files whose questions are read as JSON


def answer(  # noqa: PLR0913 - the options are the contract
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="JSON lines with question and context, a SQuAD file or, with --question, a text; -: standard input. "
            "From memory: questions, a line each, or JSON with questions.",
        ),
    ] = "-",
    model: Model = None,
    question: Annotated[str | None, typer.Option("-q", "--question", help="A question about the text.")] = None,
    must: Annotated[bool, typer.Option("--must", help="Always give an answer, however improbable.")] = False,
    reference: Annotated[
        Path | None, typer.Option(help="The right answers, to grade: a SQuAD file, or JSON with lists of answers.")
    ] = None,
    examples: ExamplesFile = None,
    k: Shots = None,
    seed: DrawSeed = 0,
    template: Template = None,
    instruction: Instruction = "",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Few-shot: the most tokens of an answer. Default: 32.")
    ] = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Answer questions from their contexts.

    Writes JSON lines: line, question, the answer's text, its character offsets, its probability, and that of no answer;
    an empty text: the context has no answer. A context that is longer than the model's is read in windows. With
    --reference the last line has exact match and F1.

    A model that writes text is prompted (few-shot): with K examples from --examples, or -k 0 for none. It generates the
    answer up to the end of the line, from memory where the question has no context (closed book). Examples that do not
    fit into its context are left out whole, with a notice.
    """
    line_errors = LineErrors()
    found: dict[int, str] = {}
    prompting = answer_prompt(examples, k, seed, (template, instruction), max_tokens)
    gold = None if reference is None else _answers(reference, prompting is not None)
    with _inputs(file, question, prompting is not None, line_errors) as inputs:
        task = _task(open_model(model, device, weights, best), prompting, must)
        results = run_batches(inputs, file, line_errors, task, "answer")
        for one, result in results:
            found[one.line] = result.text
            write_record({"line": one.line, "question": one.text, **result.plain()})
    if gold is not None and reference is not None:
        write_record(_grades(found, gold, reference))
    return line_errors.code()


def _task(
    lm: "LM", prompting: "FewShot | None", must: bool
) -> "Callable[[list[TextInput]], Sequence[Answer | GeneratedAnswer]]":
    """Return what answers a batch of questions."""
    from heddle.core import UsageError
    from heddle.tasks.few_shot import AnswerGenerator
    from heddle.tasks.labelling import Answerer

    if prompting is None:
        spans = Answerer.of(lm.model, lm.tokenizer, must)
        return lambda batch: spans.run([one.text for one in batch], [one.pair or "" for one in batch])
    if must:
        raise UsageError("--must: has no effect on answers that are generated")
    return Prompted(lambda some: AnswerGenerator.of(lm.model, lm.tokenizer, prompting, some).run, prompting, "context")


@contextmanager
def _inputs(file: str, question: str | None, generated: bool, line_errors: LineErrors) -> Iterator[Iterator[TextInput]]:
    """Open questions, for answers that are generated with or without contexts."""
    if not generated or question is not None:
        with _questions(file, question, line_errors) as inputs:
            yield inputs
    elif Path(file).suffix.lower() in ANSWERS:
        yield (one for one, _ in _read(file))
    else:
        with text_inputs(file, line_errors, ("question", "context")) as inputs:
            yield inputs


def _read(file: str) -> list[tuple[TextInput, list[str]]]:
    """Return the questions of a file with their right answers; refuse one without any question."""
    from heddle.core import DataError
    from heddle.data.sources import SquadSource

    questions = enumerate(SquadSource(path=file).questions(), 1)
    found = [(TextInput(number, one.text, one.context), list(one.answers)) for number, one in questions]
    if not found:
        raise DataError(f"{file}: want one question or more, found none")
    return found


@contextmanager
def _questions(file: str, question: str | None, line_errors: LineErrors) -> Iterator[Iterator[TextInput]]:
    """Open questions with their contexts."""
    from heddle.core import UsageError

    if question is not None:
        yield iter([TextInput(1, _checked(question), _context(file))])
    elif Path(file).suffix.lower() in JSON or file == "-":
        with record_inputs(file, line_errors, ("question", "context")) as inputs:
            yield _with_contexts(inputs, file, line_errors)
    elif Path(file).suffix.lower() == ".json":
        documents = labelled_documents(file, "answers")
        yield (TextInput(number, one.text, one.pair) for number, one in enumerate(documents, 1))
    else:
        raise UsageError(f"{file}: want JSON lines with question and context, a SQuAD file, or --question with a text")


def _checked(question: str) -> str:
    from heddle.core import ConfigError

    if not question.strip():
        raise ConfigError("question", want="a question", got=question)
    return question


def _context(file: str) -> str:
    """Return the whole text of a file or a pipe."""
    from heddle.core import DataError

    with read_lines(file) as lines:
        text = "\n".join(lines)
    if not text.strip():
        raise DataError(f"{name_of(file)}: want a text that may answer the question, found none")
    return text


def _with_contexts(inputs: Iterator[TextInput], file: str, line_errors: LineErrors) -> Iterator[TextInput]:
    from heddle.core import UsageError

    for one in inputs:
        with line_errors.at(file, one.line):
            if one.pair is None:
                raise UsageError("want a context beside the question, found none")
            yield one


def _answers(reference: Path, generated: bool) -> dict[int, list[str]]:
    from heddle.data.sources import Answers

    if generated:
        return {one.line: answers for one, answers in _read(str(reference))}
    found = {}
    for number, one in enumerate(labelled_documents(str(reference), "answers"), 1):
        assert isinstance(one.label, Answers) and one.pair is not None
        found[number] = [one.pair[start:end] for start, end in one.label.spans]
    return found


def _grades(found: dict[int, str], gold: dict[int, list[str]], file: Path) -> dict[str, object]:
    """Return exact match and F1 over questions, as SQuAD's script has them."""
    from heddle.cli.labelled_input import pair_up
    from heddle.core.metrics import answer_f1, exact_match

    mine, right = pair_up(found, gold, file)
    pairs, count = list(zip(mine, right, strict=True)), max(1, len(right))
    exact, f1 = (sum(metric(*pair) for pair in pairs) / count for metric in (exact_match, answer_f1))
    return {"graded": len(right), "exact_match": exact, "f1": f1}
