"""heddle memory: build a kNN memory of a text, choose how it is mixed in, and index it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import Best, Device, Json, Model, Weights, open_model
from heddle.cli.terminal import note, print_message, write

if TYPE_CHECKING:
    from heddle.data.shards import Shards
    from heddle.data.sources import DocumentCounter
    from heddle.lm import LM

memory = typer.Typer(rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A memory that heddle memory build made.")]


@memory.callback(invoke_without_command=True)
def group(context: typer.Context) -> None:
    """Build and tune kNN memories (kNN-LM), which generate, score and evaluate take by --memory."""
    if context.invoked_subcommand is None:
        print_message(context.get_help())


@memory.command()
def build(  # noqa: PLR0913 - the options are the contract
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help="A text or prepared data. Default: the run's training data.")
    ] = None,
    model: Model = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The output folder.")] = Path("memory"),
    precision: Annotated[str, typer.Option(help="Precision of the keys: float16 or float32.")] = "float16",
    limit: Annotated[int | None, typer.Option(help="At most so many tokens.")] = None,
    window: Annotated[int | None, typer.Option(help="Sliding window in tokens. Default: the model's context.")] = None,
    stride: Annotated[int | None, typer.Option(help="Stride of the window in tokens. Default: half a window.")] = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Write a model's hidden states for a text, with the token after each: heddle memory build corpus.txt -o FOLDER.

    A build that was interrupted is continued by the same command. Keys take twice the model's width in bytes for each
    token, or four times in float32.
    """
    from heddle.cli.console import TerminalConsole
    from heddle.cli.evaluate import report_skipped
    from heddle.cli.progress import counted
    from heddle.data.sources import DocumentCounter
    from heddle.tasks.memory import BuildMemoryConfig, build_memory

    config = BuildMemoryConfig(precision=precision, window=window, stride=stride, most=limit)
    lm = open_model(model, device, weights, best)
    counter = DocumentCounter()
    texts = _training_texts(lm, counter) if data is None else _texts(lm, data, counter)
    with counted("memory", TerminalConsole(stderr=True)) as advance:
        made = build_memory(lm.model, lm.tokenizer, texts, out, config, advance)
    print_message(
        f"{out}: {len(made):,} entries of {made.record.documents:,} documents, "
        f"{made.record.width:,} numbers each in {made.record.precision}, {made.nbytes:,} bytes"
    )
    return report_skipped(counter, own=data is None)


@memory.command()
def tune(  # noqa: PLR0913 - the options are the contract
    folder: Folder,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Text that was neither trained on nor is tested on.")],
    model: Model = None,
    tokens: Annotated[int, typer.Option(help="Measure on about so many tokens; 0: all.")] = 20_000,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Find the weight, the temperature and the number of neighbours of lowest loss: heddle memory tune FOLDER held.txt.

    The memory is searched once; then every combination is measured. Prints the options to use.
    """
    from heddle.cli.evaluate import report_skipped
    from heddle.core import UsageError
    from heddle.data.sources import DocumentCounter
    from heddle.models.networks import LanguageModel, require
    from heddle.tasks.memory import MemoryGrid, tune_memory

    grid = MemoryGrid(tokens=tokens)
    lm = open_model(model, device, weights, best)
    reader = require(lm.model, LanguageModel, UsageError(f"memory: want a language model, got {lm.model.config.noun}"))
    counter = DocumentCounter()
    found = tune_memory(reader, lm.tokenizer, _texts(lm, data, counter, held_out=True), folder, grid)
    if json_:
        write(json.dumps(found.plain()))
        return report_skipped(counter, own=False)
    mix, plain = found.mix, found.plain()
    print_message(
        f"perplexity       {plain['perplexity']:.6g} with the memory, {plain['perplexity_alone']:.6g} without"
    )
    print_message(f"measured on      {found.tokens:,} tokens")
    options = f"--memory-weight {mix.weight:g} --memory-k {mix.k} --memory-temperature {mix.temperature:.4g}"
    print_message(f"use              --memory {folder} {options}")
    return report_skipped(counter, own=False)


@memory.command()
def index(
    folder: Folder,
    factory: Annotated[
        str | None, typer.Option(help="What Faiss builds, in its own words, such as IVF4096,SQfp16. Default: IVF,Flat.")
    ] = None,
    probes: Annotated[int, typer.Option(help="Lists searched for each query, where the index has lists.")] = 32,
    k: Annotated[int, typer.Option("-k", help="Neighbours to measure the recall with.")] = 64,
) -> int:
    """Index a memory by Faiss, for a faster search that finds almost all neighbours; prints the share that it finds."""
    from heddle.decoding.knn import KnnIndexConfig, build_index, open_datastore

    config = KnnIndexConfig(factory=factory, probes=probes, k=k)
    made = build_index(open_datastore(folder), config)
    print_message(f"{folder}: {made.factory}, {made.probes} probes, recall {made.recall:.4f} of {made.k} neighbours")
    return 0


def _texts(lm: "LM", data: str, counter: "DocumentCounter", held_out: bool = False) -> "Iterator[str] | Shards":
    """Return the texts of a path; of prepared data, one side."""
    from heddle.cli.evaluate import corpus_of, prepared_shards, read_documents
    from heddle.data.sources import Split

    corpus = corpus_of(lm, data)
    if corpus is None:
        return prepared_shards(lm, Path(data), Split.VALID if held_out else Split.TRAIN)
    return (document.text for document in read_documents(corpus, data, counter))


def _training_texts(lm: "LM", counter: "DocumentCounter") -> "Iterator[str] | Shards":
    """Return the texts that a run was trained on, as they are now."""
    from heddle.cli.evaluate import corpus_of, prepared_shards
    from heddle.data.sources import Split

    corpus = corpus_of(lm, None)
    if corpus is not None and corpus.prepared is not None:
        return prepared_shards(lm, corpus.prepared, Split.TRAIN)
    assert corpus is not None
    note("the run's own training text; a memory of it repeats what was learned, that of another text adapts")
    return (document.text for split, document in corpus.split_documents(counter) if split is Split.TRAIN)
