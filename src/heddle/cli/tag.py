"""heddle tag: the tag of each word, such as named entities, as JSON lines, graded against a reference."""

from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.labelled_input import TextInput, labelled_documents, pair_up, run_batches, text_inputs, write_record
from heddle.cli.line_input import LineErrors
from heddle.cli.options import Best, Device, Model, Weights, open_model


def tag(
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="A text per line, JSON lines with text or tokens, or a CoNLL file; -: standard input.",
        ),
    ] = "-",
    model: Model = None,
    reference: Annotated[
        Path | None, typer.Option(help="The right tags, to grade: a CoNLL file, or JSON lines with tokens and tags.")
    ] = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Tag the words of each text.

    Writes JSON lines: line, text, words with tag, probability and character offsets, and entities. Blank lines are
    skipped. A line that cannot be tagged is reported on standard error; the exit code is then 1. A text that is longer
    than the model's context is read in windows. With --reference the last line has the grades.
    """
    from heddle.tasks.labelling import Tagger

    line_errors = LineErrors()
    found: dict[int, list[str]] = {}
    gold = None if reference is None else _tags(reference)
    with text_inputs(file, line_errors) as inputs:
        lm = open_model(model, device, weights, best)
        task = Tagger.of(lm.model, lm.tokenizer)
        results = run_batches(inputs, file, line_errors, lambda batch: task.run([_given(one) for one in batch]), "tag")
        for one, result in results:
            found[one.line] = [word.tag for word in result.words]
            write_record({"line": one.line, "text": one.text, **result.plain()})
    if gold is not None and reference is not None:
        write_record(_grades(*pair_up(found, gold, reference), reference))
    return line_errors.code()


def _given(one: TextInput) -> "str | tuple[str, ...]":
    return one.text if one.words is None else one.words


def _tags(reference: Path) -> dict[int, list[str]]:
    documents = labelled_documents(str(reference), "tags")
    return {number: list(one.label.names) for number, one in enumerate(documents, 1) if one.label is not None}


def _grades(found: list[list[str]], gold: list[list[str]], file: Path) -> dict[str, object]:
    """Return F1 over entities, and accuracy over words."""
    from heddle.core import DataError
    from heddle.core.metrics import accuracy, entity_f1

    for number, (mine, right) in enumerate(zip(found, gold, strict=True), 1):
        if len(mine) != len(right):
            want = f"{len(mine)} tags for sentence {number}, one for each word that was tagged"
            raise DataError(f"{file}: want {want}, found {len(right)}; tag the reference itself to have its words")
    flat, wanted = ([tag for one in tags for tag in one] for tags in (found, gold))
    score = entity_f1(found, gold)
    whole = {"entity_f1": score.f1, "entity_precision": score.precision, "entity_recall": score.recall}
    return {"graded": len(gold), **whole, "accuracy": accuracy(flat, wanted)}
