"""heddle evaluate: loss, perplexity and bits per byte on held-out text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.lines import FAULTY
from heddle.cli.options import Device, Json, Model, open_model

if TYPE_CHECKING:
    from heddle.data import Ledger, Shards
    from heddle.lm import LM
    from heddle.tasks import Evaluation


def evaluate(  # noqa: PLR0913 - the words of the command line
    model: Model = None,
    data: Annotated[str | None, typer.Option(help="Text, or prepared data. Left out: what the run held out.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens read at once. Left out: the model's context.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens between windows. Left out: half a window.")] = None,
    carry: Annotated[bool, typer.Option("--carry", help="Let a recurrent model read on without forgetting.")] = False,
    device: Device = "auto",
    json_: Json = False,
) -> int:
    """Measure a model on held-out text.

    What of it is no text is told on standard error and left out; the exit code is then 1.
    """
    from heddle.data import Ledger
    from heddle.tasks import evaluate as measure

    lm, ledger = open_model(model, device), Ledger()
    found = measure(lm.model, lm.tokenizer, _texts(lm, data, ledger), window, stride, carry)
    if json_:
        typer.echo(json.dumps(found.plain()))
    else:
        _show(found)
    return _tell(ledger)


def _show(found: "Evaluation") -> None:
    typer.echo(f"loss             {found.loss:.4f} nats per token, the end of each document counted")
    typer.echo(f"perplexity       {found.perplexity:.6g} per token, {found.word_perplexity:.6g} per word")
    typer.echo(f"bits per byte    {found.bits_per_byte:.4f}")
    typer.echo(
        f"measured on      {found.documents:,} documents, {found.tokens:,} tokens, {found.words:,} words, "
        f"{found.bytes:,} bytes"
    )
    if found.unknown:
        typer.echo(f"unknown          {found.unknown:,} tokens, {found.unknown / found.tokens:.2%} of all")
    if found.window is None:
        typer.echo("read in order    the state carried from document to document")
    else:
        typer.echo(f"sliding window   {found.window} tokens, stride {found.stride}")


def _tell(ledger: "Ledger") -> int:
    """Say what was left out, the first of each kind by its place; return the exit code: an empty text is no fault."""
    from heddle.data import Reason

    for reason, count in ledger.skipped.items():
        more = f", the first of {count:,}" if count > 1 else ""
        typer.echo(f"heddle: {ledger.examples[reason]}: left out, {reason.replace('_', ' ')}{more}", err=True)
    return FAULTY if ledger.skipped.keys() - {Reason.EMPTY} else 0


def _texts(lm: "LM", data: str | None, ledger: "Ledger") -> "Iterator[str] | Shards":
    from heddle.core import ConfigError, decode
    from heddle.data import CorpusConfig

    if data is None:
        if "data" not in lm.config:
            raise ConfigError("data", want="a path, for the model does not say what it was trained on", got=None)
        corpus = decode(CorpusConfig, lm.config["data"], "data")
        if corpus.prepared is not None:
            return _texts(lm, str(corpus.prepared), ledger)
        return (document.text for document in corpus.held_out())
    shards = _prepared(lm, Path(data))
    return _read(data, ledger) if shards is None else shards


def _read(data: str, ledger: "Ledger") -> Iterator[str]:
    """Yield the texts of a path; none at all is a fault."""
    from heddle.core import DataError
    from heddle.data import source_for

    for document in source_for(data).documents(ledger):
        ledger.keep()
        yield document.text
    if not ledger.kept:
        raise DataError(f"{data}: no text to measure: {ledger}")


def _prepared(lm: "LM", folder: Path) -> "Shards | None":
    """Open the held-out side of prepared data, where the path is such a folder."""
    from heddle.core import DataError
    from heddle.data import Shards, open_prepared
    from heddle.text import load_tokenizer

    prepared = open_prepared(folder) if folder.is_dir() else None
    if prepared is None:
        return None
    if load_tokenizer(prepared.tokenizer).fingerprint != lm.tokenizer.fingerprint:
        raise DataError(f"{folder}: prepared with another tokenizer than the model's")
    if prepared.pairs:
        raise DataError(f"{folder}: holds pairs, which a language model cannot be measured on")
    return Shards.open(prepared.valid)
