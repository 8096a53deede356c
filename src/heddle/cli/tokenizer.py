"""heddle tokenizer: train a tokenizer on text."""

from pathlib import Path
from typing import Annotated

import typer

from heddle.cli.options import Force, Words, check_output, settings_of
from heddle.cli.terminal import note, print_message

tokenizer = typer.Typer(rich_markup_mode=None)


@tokenizer.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Train tokenizers."""
    if context.invoked_subcommand is None:
        print_message(context.get_help())


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
    force: Force = False,
) -> None:
    """Train a tokenizer on text: heddle tokenizer train corpus.txt --kind bpe vocab=8192."""
    from heddle.core import decode
    from heddle.data.sources import DocumentCounter, corpus_for
    from heddle.text.tokenizers import TokenizerConfig, load_tokenizer

    config = decode(TokenizerConfig, {"kind": kind} | settings_of(words or []))
    check_output(out, lambda path: not load_tokenizer(path).special_tokens_config(), force)  # only imported ones have
    counter = DocumentCounter()
    made = config.train(corpus_for(data).sample(counter=counter))
    if counter.faulty:
        note(f"documents: {counter}")
    made.save(out)
    print_message(f"{out}: {kind}, {made.vocab:,} tokens")
