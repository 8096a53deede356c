"""heddle summarize: a summary of each text, graded by ROUGE against a reference."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.labelled_input import TABLES, TextInput, pair_up, run_batches, table_texts, text_inputs
from heddle.cli.line_input import LineErrors, name_of, read_lines
from heddle.cli.options import Best, Device, Json, Model, Weights, open_model
from heddle.cli.terminal import print_report, write

if TYPE_CHECKING:
    from heddle.decoding import GenerationOptions
    from heddle.tasks.generation import Summary


def summarize(  # noqa: PLR0913 - the options are the contract
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="A text per line, JSON lines with text, or a CSV or TSV table; -: standard input.",
        ),
    ] = "-",
    model: Model = None,
    whole: Annotated[bool, typer.Option("--whole", help="The file is one text.")] = False,
    beams: Annotated[int | None, typer.Option(help="Number of beams. Default: the model's own, or 4.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Rank beams by log-probability divided by length to this power.")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None,
        typer.Option(help="N-grams of N tokens occur once in a summary. Default: the model's own, or 0."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of new tokens per window. Default: the model's own, or 128.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Minimum number of new tokens per window.")] = None,
    batch: Annotated[int, typer.Option(help="Batch size: texts per batch.")] = 16,
    reference: Annotated[
        Path | None, typer.Option(help="Reference summaries for ROUGE: one per line, or a table with summaries.")
    ] = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Summarize each text with an encoder-decoder, such as T5, BART, or one that was trained on texts and summaries.

    Writes a summary per line, or JSON lines: line, text, summary, and the number of windows. Blank lines are skipped.
    A text that is longer than the model's context is read in windows that overlap; their summaries are joined. An
    imported model is used with its own settings for summaries. With --reference ROUGE follows, on standard error or as
    the last JSON line.
    """
    from heddle.core import check_at_least
    from heddle.tasks.generation import summarizer

    check_at_least(1, batch=batch)
    line_errors = LineErrors()
    found: dict[int, str] = {}
    gold = None if reference is None else _references(reference)
    options: GenerationOptions = {"beams": beams, "length_penalty": length_penalty}
    options |= {"max_tokens": max_tokens, "min_tokens": min_tokens, "no_repeat_ngram": no_repeat_ngram}
    with _texts(file, whole, line_errors) as inputs:
        lm = open_model(model, device, weights, best)
        task = summarizer(lm.model, lm.tokenizer, lm.origin.settings, options, batch)
        results = run_batches(inputs, file, line_errors, lambda b: task.run([one.text for one in b]), "summarize")
        for one, summary in results:
            found[one.line] = summary.text
            _show(one, summary, json_)
    if gold is not None and reference is not None:
        _grade(found, gold, reference, json_)
    return line_errors.code()


@contextmanager
def _texts(file: str, whole: bool, line_errors: LineErrors) -> Iterator[Iterator[TextInput]]:
    """Open the texts of a file; with --whole it is one."""
    from heddle.core import DataError

    if not whole:
        with text_inputs(file, line_errors) as inputs:
            yield inputs
        return
    with read_lines(file) as lines:
        text = "\n".join(lines)
    if not text.strip():
        raise DataError(f"{name_of(file)}: want a text to summarize, found none")
    yield iter([TextInput(1, text)])


def _references(reference: Path) -> dict[int, str]:
    """Read the references by line, before any work; learn early if rouge-score is missing."""
    from heddle.core import DataError
    from heddle.tasks.metrics import rouge_scorer

    rouge_scorer()
    if reference.suffix.lower() in (*TABLES, ".jsonl", ".ndjson", ".json"):
        return table_texts(str(reference))
    with read_lines(str(reference)) as lines:
        found = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    if not found:
        raise DataError(f"{reference}: want a summary in each line, found none")
    return found


def _show(one: TextInput, summary: "Summary", as_json: bool) -> None:
    if not as_json:
        write(summary.text)
        return
    record = {"line": one.line, "text": one.text, "summary": summary.text, "windows": summary.windows}
    write(json.dumps(record, ensure_ascii=False))


def _grade(found: dict[int, str], gold: dict[int, str], reference: Path, as_json: bool) -> None:
    """Write ROUGE."""
    from heddle.tasks.metrics import rouge, rouge_signature

    mine, right = pair_up(found, gold, reference)
    scores = rouge(mine, right)
    if as_json:
        write(json.dumps({"graded": len(right), **scores, "signature": rouge_signature()}))
    else:
        listed = "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
        print_report(f"{listed}  {rouge_signature()}")
