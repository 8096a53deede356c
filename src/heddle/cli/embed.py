"""heddle embed: a vector for each text, as JSON lines."""

from typing import Annotated

import typer

from heddle.cli.labelled_input import run_batches, text_inputs, write_record
from heddle.cli.line_input import LineErrors
from heddle.cli.options import Best, Device, Model, Weights, open_model

DIGITS = 6  # of each number


def embed(
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE|-]", help="A text per line, or JSON lines with text; -: standard input."),
    ] = "-",
    model: Model = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Embed each text.

    Writes JSON lines: line, text, and its embedding: that of an output trained for it, or the mean of the last layer's
    vectors. Blank lines are skipped. A line that cannot be embedded is reported on standard error; the exit code is
    then 1.
    """
    line_errors = LineErrors()
    with text_inputs(file, line_errors) as inputs:
        lm = open_model(model, device, weights, best)
        results = run_batches(
            inputs, file, line_errors, lambda batch: list(lm.embed([one.text for one in batch])), "embed"
        )
        for one, vector in results:
            numbers = [round(number, DIGITS) for number in vector.tolist()]
            write_record({"line": one.line, "text": one.text, "embedding": numbers})
    return line_errors.code()
