"""heddle tokenizer: train a tokenizer on text."""

from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import Words, check_output, settings_of

tokenizer = typer.Typer(rich_markup_mode=None)


@tokenizer.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Train tokenizers."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@tokenizer.command()
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A file, folder or glob; builtin: the source of Python's standard library."
        ),
    ],
    words: Words = None,
    kind: Annotated[str, typer.Option(help="The tokenizer: byte, character, word, bpe, wordpiece or unigram.")] = "bpe",
    out: Annotated[Path, typer.Option("-o", "--out", help="The output file.")] = Path("tokenizer.json"),
) -> None:
    """Train a tokenizer on text: heddle tokenizer train corpus.txt --kind bpe vocab=8192."""
    from heddle.core import decode
    from heddle.data.sources import DocumentCounter, corpus_for
    from heddle.text.tokenizers import TokenizerConfig

    config = decode(TokenizerConfig, {"kind": kind} | settings_of(words or []))
    check_output(out)
    counter = DocumentCounter()
    made = config.train(corpus_for(data).sample(counter=counter))
    if counter.faulty:
        typer.echo(f"heddle: documents: {counter}", err=True)
    made.save(out)
    typer.echo(f"{out}: {kind}, {made.vocab:,} tokens")
