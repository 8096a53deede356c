"""heddle generate: continue a text, as it is written."""

import json
import sys
from typing import Annotated

import typer

from heddle.cli.options import Device, Json, Model, open_model


def generate(  # noqa: PLR0913 - the options are the contract
    prompt: Annotated[
        str, typer.Argument(help="The text to continue; -: standard input. Left out: a new document.")
    ] = "",
    model: Model = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 128,
    temperature: Annotated[
        float | None,
        typer.Option(help="0: the most probable token each time. Left out: 0, or 1 with --top-k and the like."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among the K most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the most probable tokens of mass P.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Leave out what is below P times the best.")] = None,
    beams: Annotated[int, typer.Option(help="Sequences that grow side by side; 1: one, as it is written.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Beams rank by log-probability over length to this power.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Continue a text; with an encoder-decoder, answer it."""
    from heddle.core import replace
    from heddle.decoding import How, Reason

    prompt = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    filtered = any(filter_ is not None for filter_ in (top_k, top_p, min_p))
    heat = float(filtered) if temperature is None else temperature
    filters = {"temperature": heat, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    how = replace(How(), max_tokens=max_tokens, beams=beams, length_penalty=length_penalty, seed=seed, **filters)
    lm = open_model(model, device)
    if sys.stdout.isatty() and not json_:  # to the eye the text is one; to a pipe the new part alone is of use
        typer.echo(typer.style(prompt, dim=True), nl=False)
    answer = lm.answer([prompt], how, stop or [], None if json_ else _show)[0]
    if json_:
        ids, reason = answer.completion.ids, answer.completion.reason
        record = {"prompt": prompt, "text": answer.text, "ids": ids, "reason": reason}
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    typer.echo()
    if answer.completion.reason is Reason.CONTEXT:
        typer.echo(f"heddle: stopped at the model's context of {lm.model.context} tokens", err=True)


def _show(row: int, text: str) -> None:
    typer.echo(text, nl=False)
    sys.stdout.flush()
