"""heddle data: tokenize a corpus once, or let a teacher read it once, for runs that then read both without delay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

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
        str | None, typer.Option(help="A tokenizer file, or a model. Default: train a BPE tokenizer.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The output folder.")] = Path("prepared"),
) -> None:
    """Tokenize text into shards: heddle data prepare corpus/ --tokenizer tokenizer.json split.fraction=0.01."""
    from heddle.cli.console import TerminalConsole
    from heddle.cli.progress import counted
    from heddle.core import override
    from heddle.data.shards import Shards, check_target
    from heddle.data.shards import prepare as write
    from heddle.data.sources import Split, corpus_for

    corpus = corpus_for(source)
    for path, value in settings_of(words or []).items():
        corpus = override(corpus, path, value)
    corpus = corpus.resolve()
    check_target(out)  # before a tokenizer is trained
    made, template = _tokenizer(tokenizer, corpus)
    with counted("prepare", TerminalConsole(stderr=True)) as advance:
        prepared = write(corpus, made, out, advance, template)
    print_message(f"{out}: {'up to date; ' * prepared.reused}documents: {prepared.counter}")
    for split in Split:
        for folder in prepared.shard_folders(split):
            shards = Shards.open(folder, verify=False)
            part = f", of which {shards.counted:,} count" if shards.counted < shards.tokens else ""
            print_message(f"  {folder.relative_to(out)}: {shards.count:,} documents, {shards.tokens:,} tokens{part}")
            shards.close()


@data.command()
def teach(
    target: Annotated[
        str, typer.Argument(metavar="[RECIPE|CONFIG.yaml]", help="The run that will read them, such as distill.")
    ] = "distill",
    words: Words = None,
    top_k: Annotated[int, typer.Option(help="How many ids of each position, the most probable ones.")] = 64,
    whole: Annotated[bool, typer.Option("--whole", help="All ids of the vocabulary.")] = False,
    precision: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    out: Annotated[Path, typer.Option("-o", "--out", help="The output folder.")] = Path("taught"),
) -> None:
    """Store what a teacher says to a run's rows: heddle data teach distill data=my.txt -o taught."""
    from heddle.cli.console import TerminalConsole
    from heddle.cli.progress import stepped
    from heddle.cli.train import resolve
    from heddle.core import ConfigError, UsageError
    from heddle.data.shards import Precision
    from heddle.training import store_teacher_outputs

    target, words = ("distill", [target, *(words or [])]) if "=" in target else (target, words or [])
    run = resolve(target, words)
    if run.folder is not None:
        raise UsageError(f"{target}: want a recipe or a config file of a run to come, got a run")
    kind = next((one for one in get_args(Precision) if one == precision), None)
    if kind is None:
        raise ConfigError("precision", want="float16 or float32", got=precision)
    with stepped("teach", TerminalConsole(stderr=True)) as advance:
        made = store_teacher_outputs(run.config, out, None if whole else top_k, kind, progress=advance).manifest
    size = sum(file.size for file in made.files)
    print_message(f"{out}: {made.rows:,} rows, {made.stored:,} of them stored, {made.tokens:,} tokens, {size:,} bytes")
    print_message(f"read them by: heddle train {target} ... objective.teacher={out}")


def _tokenizer(name: str | None, corpus: "CorpusConfig") -> "tuple[Tokenizer, str | None]":
    """Return the tokenizer, and the chat template of the model that it comes from."""
    from heddle.checkpoints import open_tokenizer
    from heddle.text.tokenizers import BpeTokenizer

    return (BpeTokenizer().train(corpus.sample()), None) if name is None else open_tokenizer(name)
