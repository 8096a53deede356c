"""heddle data: tokenize a corpus once, into shards that runs read without delay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import Words, settings_of
from heddle.cli.terminal import print_message

if TYPE_CHECKING:
    from heddle.data.sources import CorpusConfig
    from heddle.text.tokenizers import Tokenizer

data = typer.Typer(rich_markup_mode=None)


@data.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Prepare data."""
    if context.invoked_subcommand is None:
        print_message(context.get_help())


@data.command()
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A file, folder or glob; builtin: the source of Python's standard library."
        ),
    ],
    words: Words = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json, or a model. Default: train a BPE tokenizer.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The output folder.")] = Path("prepared"),
) -> None:
    """Tokenize text into shards: heddle data prepare corpus/ --tokenizer tokenizer.json split.fraction=0.01."""
    from heddle.cli.console import TerminalConsole
    from heddle.cli.progress import counted
    from heddle.core import override
    from heddle.data.shards import Shards, check_target
    from heddle.data.shards import prepare as write
    from heddle.data.sources import Side, corpus_for

    corpus = corpus_for(source)
    for path, value in settings_of(words or []).items():
        corpus = override(corpus, path, value)
    corpus = corpus.resolve()
    check_target(out)  # before a tokenizer is trained
    made = _tokenizer(tokenizer, corpus)
    with counted("prepare", TerminalConsole(stderr=True)) as advance:
        prepared = write(corpus, made, out, advance, _template(tokenizer))
    print_message(f"{out}: {'as it was, nothing has changed; ' * prepared.reused}documents: {prepared.counter}")
    for side in Side:
        for folder in prepared.shard_folders(side):
            shards = Shards.open(folder, verify=False)
            part = f", of which {shards.counted:,} count" if shards.counted < shards.tokens else ""
            print_message(f"  {folder.relative_to(out)}: {shards.count:,} documents, {shards.tokens:,} tokens{part}")
            shards.close()


def _tokenizer(name: str | None, corpus: "CorpusConfig") -> "Tokenizer":
    from heddle.checkpoints import find_source
    from heddle.core import UsageError
    from heddle.text.tokenizers import BpeTokenizer, load_tokenizer

    if name is None:
        return BpeTokenizer().train(corpus.sample())
    path = Path(name)
    if path.is_file() and path.suffix == ".json":
        return load_tokenizer(path)
    found = find_source(name).tokenizer()
    if found is None:
        raise UsageError(f"{name}: has no tokenizer files")
    return found


def _template(name: str | None) -> str | None:
    """Return the chat template of the model that the tokenizer comes from."""
    from heddle.checkpoints import find_source

    if name is None or (Path(name).is_file() and Path(name).suffix == ".json"):
        return None
    return find_source(name).template()
