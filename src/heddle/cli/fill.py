"""heddle fill: the most probable tokens for each mask of a text, as JSON lines."""

from typing import Annotated

import typer

from heddle.cli.labelled_input import run_batches, text_inputs, write_record
from heddle.cli.line_input import LineErrors
from heddle.cli.options import Best, Device, Model, Weights, open_model


def fill(
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE|-]", help="A text with [MASK] per line, or JSON lines; -: standard input."),
    ] = "-",
    model: Model = None,
    top: Annotated[int, typer.Option(help="Number of tokens for each mask.")] = 5,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Fill in the masks of each text, by an encoder that predicts masked tokens.

    A mask is written [MASK], <mask> or as the tokenizer has it. Writes JSON lines: line, text and, for each mask,
    tokens with probabilities and the text that they make. Blank lines are skipped. A line without a mask is reported on
    standard error; the exit code is then 1.
    """
    from heddle.tasks.labelling import MaskFiller

    line_errors = LineErrors()
    with text_inputs(file, line_errors) as inputs:
        lm = open_model(model, device, weights, best)
        task = MaskFiller.of(lm.model, lm.tokenizer, top)
        results = run_batches(inputs, file, line_errors, lambda batch: task.run([one.text for one in batch]), "fill")
        for one, gaps in results:
            masks = [[token.plain() for token in gap] for gap in gaps]
            write_record({"line": one.line, "text": one.text, "masks": masks})
    return line_errors.code()
