"""heddle score: how probable each line of a text is, as JSON lines."""

import json
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.lines import lines_of
from heddle.cli.options import Device, Model, open_model

if TYPE_CHECKING:
    from heddle.lm import Scored

BATCH = 64  # lines scored at once


class By(StrEnum):
    """What a line of the answer tells of."""

    TOKEN = "token"
    WORD = "word"
    SENTENCE = "sentence"


def score(
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A text of one sentence a line; -: standard input.")
    ] = "-",
    model: Model = None,
    by: Annotated[By, typer.Option(help="What each line of the answer tells of.")] = By.SENTENCE,
    device: Device = "auto",
) -> None:
    """Tell how probable each line is.

    Writes JSON lines: logprob in nats, surprisal in bits, perplexity, bits per byte.
    """
    with lines_of(file) as lines:
        lm = open_model(model, device)
        number = 0
        while batch := list(islice(lines, BATCH)):
            for scored in lm.score(batch):
                number += 1
                for record in _records(scored, by):
                    typer.echo(json.dumps({"line": number} | record, ensure_ascii=False))


def _records(scored: "Scored", by: By) -> Iterator[dict[str, Any]]:
    if by is By.SENTENCE:
        yield {
            "text": scored.text,
            "logprob": scored.logprob,
            "surprisal": scored.surprisal,
            "perplexity": scored.perplexity,
            "bits_per_byte": scored.bits_per_byte,
            "tokens": len(scored.tokens),
        }
        return
    if by is By.WORD and scored.text.strip() and not scored.words:
        from heddle.core import UsageError, brief

        known = "holds text that the tokenizer does not know, of which no word can be told: use --by token"
        raise UsageError(f"{brief(scored.text)} {known}")
    for piece in scored.words if by is By.WORD else scored.tokens:
        yield {"text": piece.text, "logprob": piece.logprob, "surprisal": piece.surprisal}
