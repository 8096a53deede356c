"""heddle translate: a line in, a line out, and the score against a reference."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.lines import lines_of
from heddle.cli.options import Device, Json, Model, open_model

if TYPE_CHECKING:
    from heddle.tasks import Grade

Passed = Callable[[], None]


def translate(  # noqa: PLR0913 - the options are the contract
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A text of one sentence a line; -: standard input.")
    ] = "-",
    model: Model = None,
    beams: Annotated[int, typer.Option(help="Sequences that grow side by side; 1: greedy.")] = 4,
    length_penalty: Annotated[
        float, typer.Option(help="Beams rank by log-probability over length to this power.")
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 512,
    batch: Annotated[int, typer.Option(help="Lines translated at once.")] = 32,
    reference: Annotated[Path | None, typer.Option(help="Right translations, line by line, to score against.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without regard to case.")] = False,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Translate each line, with a model trained on pairs.

    Blank lines stay blank. With --reference the BLEU score follows, on standard error or as the last JSON line.
    """
    from heddle.decoding import How
    from heddle.tasks import grade, metric, translator

    how = How(max_tokens=max_tokens, beams=beams, length_penalty=length_penalty, stretch=2.0)
    wanted = None if reference is None else _right(reference)
    if wanted is not None:
        metric(lowercase=lowercase)  # before hours of translating
    found: list[str] = []
    with lines_of(file) as lines:
        lm = open_model(model, device)
        waits = file == "-" and sys.stdin.isatty()  # somebody types, and wants an answer to every line
        task = translator(lm.model, lm.tokenizer, how, 1 if waits else batch, *((1,) if waits else ()))
        with _progress(file) as passed:
            for number, text in enumerate(task.run(lines), 1):
                typer.echo(json.dumps({"line": number, "text": text}, ensure_ascii=False) if json_ else text)
                found.append(text)
                passed()
    if wanted is not None:
        _tell(grade(found, wanted, lowercase=lowercase), json_)


def _right(reference: Path) -> list[str]:
    with lines_of(str(reference)) as lines:
        return list(lines)


def _tell(grade: "Grade", json_: bool) -> None:
    if json_:
        typer.echo(json.dumps({"bleu": grade.bleu, "signature": grade.signature}))
    else:
        typer.echo(f"BLEU {grade.bleu:.2f}  {grade.signature}", err=True)


@contextmanager
def _progress(file: str) -> Iterator[Passed]:
    """Show on standard error how far a file has come, where somebody watches and the answers go elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    quiet = file == "-" or not console.is_terminal or sys.stdout.isatty()
    with Progress(console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("translate", total=None if quiet else _count(file))
        yield lambda: bar.advance(task)


def _count(file: str) -> int:
    with Path(file).open("rb") as lines:
        return sum(1 for _ in lines)
