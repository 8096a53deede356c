"""heddle explain: look inside a model while it reads a text; on the terminal, as one HTML file, or as JSON."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import Best, Device, Force, Model, Weights, check_output, open_model
from heddle.cli.terminal import is_terminal, print_report, write

UNLIMITED = 400  # columns, where nobody watches
MARK = '<meta name="generator" content="heddle explain">'


def explain(  # noqa: PLR0913 - the options are the contract
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The text that the model reads; the source, of an encoder-decoder. "
            "Of a model of images, video or sound: a file.",
        ),
    ],
    model: Model = None,
    what: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT[,WHAT]...",
            help="What to show: probabilities, attention, gates, lens, residual, experts, attribution, patching, "
            "beams, trace. Default: the first three, lens and experts, as far as the model has them.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="With attribution or patching: the continuation, masked words or class to explain."),
    ] = None,
    instead: Annotated[str | None, typer.Option(help="Explain why the target, and not this one.")] = None,
    output: Annotated[
        str | None, typer.Option(help="The output of an encoder-decoder. Default: what it writes to the text.")
    ] = None,
    corrupted: Annotated[str | None, typer.Option(help="With patching: another text of as many tokens.")] = None,
    top: Annotated[int, typer.Option(metavar="N", help="Probable tokens to keep at each place.")] = 10,
    beams: Annotated[int, typer.Option(metavar="N", help="Beams of the tree of beam search.")] = 4,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Tokens of an output or a beam.")] = 40,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one HTML file that opens offline.")] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers as JSON; -: to standard output.")
    ] = None,
    force: Force = False,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> None:
    """Look inside a model: probabilities, attention, gates, logit lens, experts, attribution, beams, every step."""
    from heddle.explain import ExplainFields, explain_options

    given = ExplainFields(
        what=what,
        target=target,
        instead=instead,
        output=output,
        corrupted=corrupted,
        top=top,
        beams=beams,
        max_tokens=max_tokens,
    )
    explain_options(given)  # refuses wrong ones before the model is loaded
    to_stdout = json_ is not None and str(json_) == "-"
    if html is not None:
        check_output(html, _is_our_page, force)
    if json_ is not None and not to_stdout:
        check_output(json_, _is_our_json, force)
    found = open_model(model, device, weights, best).explain(text, **given)
    if html is not None:
        _save(html, found.html())
    if json_ is not None and to_stdout:
        write(found.to_json())
    elif json_ is not None:
        _save(json_, found.to_json())
    if html is None and json_ is None:
        from heddle.cli.console import TerminalConsole

        console = TerminalConsole(highlight=False, width=None if is_terminal(sys.stdout) else UNLIMITED)
        console.print(found)


def _save(path: Path, text: str) -> None:
    from heddle.core.system import write_text

    write_text(path, text)
    print_report(f"wrote {path}")


def _is_our_page(path: Path) -> bool:
    return MARK in path.read_text(encoding="utf-8", errors="replace")[:4096]


def _is_our_json(path: Path) -> bool:
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return False
    return isinstance(data, dict) and bool({"sequences", "sides"} & data.keys()) and "format" in data  # format 1: sides
