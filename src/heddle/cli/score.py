"""heddle score: log-probability and surprisal of each line, as JSON lines."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli import memory_options as memories
from heddle.cli.line_input import InputLine, LineErrors, is_interactive, valid_lines, valid_records
from heddle.cli.options import Best, Device, Model, Sinks, Weights, open_model
from heddle.cli.terminal import write

if TYPE_CHECKING:
    from heddle.tasks.scoring import ScoringInput, TextScore, TextScorer

LINES, CHARACTERS = 512, 1 << 17  # per batch: enough to group lines of similar length, with little memory
Numbered = tuple[int, "ScoringInput"]


class Unit(StrEnum):
    """The unit of a line of output."""

    TOKEN = "token"
    WORD = "word"
    SENTENCE = "sentence"


class MaskScope(StrEnum):
    """What is masked when an encoder scores a token."""

    TOKEN = "token"
    REST = "rest"
    WORD = "word"


class SpacePlacement(StrEnum):
    """Which whitespace belongs to a word."""

    BEFORE = "before"
    AFTER = "after"


def score(  # noqa: PLR0913 - the options are the contract
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="A text with one sentence per line, or JSON lines with text, context and source; -: standard input.",
        ),
    ] = "-",
    model: Model = None,
    by: Annotated[Unit, typer.Option(help="Write one line per token, word or sentence.")] = Unit.SENTENCE,
    source: Annotated[
        str | None, typer.Option(help="For an encoder-decoder: the file of the sources, one per line.")
    ] = None,
    records: Annotated[bool, typer.Option("--records", help="Read JSON lines, whatever the extension.")] = False,
    window: Annotated[int | None, typer.Option(help="Sliding window in tokens. Default: the model's context.")] = None,
    stride: Annotated[int | None, typer.Option(help="Stride of the window in tokens. Default: half a window.")] = None,
    sinks: Sinks = None,
    hide: Annotated[
        MaskScope,
        typer.Option(help="For an encoder: mask the scored token, also the rest of its word, or all of it."),
    ] = MaskScope.TOKEN,
    spaces: Annotated[
        SpacePlacement, typer.Option(help="With --by word: count the whitespace before or after a word as part of it.")
    ] = SpacePlacement.BEFORE,
    memory: memories.Memory = None,
    memory_weight: memories.Weight = None,
    memory_k: memories.Count = None,
    memory_temperature: memories.Temperature = None,
    memory_search: memories.Search = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Score each line: log-probability, surprisal, perplexity.

    Writes JSON lines: line, text, logprob in nats, surprisal in bits; for a sentence also perplexity and bits per byte.
    Blank lines are skipped. A line that cannot be scored is reported on standard error and left out; the exit code is
    then 1.
    """
    from heddle.core import UsageError
    from heddle.tasks.scoring import ScoringConfig, text_scorer

    if spaces is SpacePlacement.AFTER and by is not Unit.WORD:
        raise UsageError("--spaces after requires --by word")
    config = ScoringConfig(window=window, stride=stride, sinks=sinks, hide=hide.value, spaces=spaces.value)
    recall = memories.MemoryWords(memory, memory_weight, memory_k, memory_temperature, memory_search)
    records = records or Path(file).suffix == ".jsonl"
    line_errors = LineErrors()
    with _inputs(file, source, records, line_errors) as inputs:
        lm = recall.apply(open_model(model, device, weights, best))
        task = text_scorer(lm.model, lm.tokenizer, config)
        if not records and task.wants_source != (source is not None):
            if source is None:
                raise UsageError("--source is required: the model is an encoder-decoder, which reads a source")
            raise UsageError(f"--source {source}: the model is no encoder-decoder and reads no source")
        for batch in _batches(inputs, 1 if is_interactive(file) else LINES):
            _write(task, batch, by, file, line_errors)
    return line_errors.code()


@contextmanager
def _inputs(file: str, source: str | None, records: bool, line_errors: LineErrors) -> Iterator[Iterator["Numbered"]]:
    """Open the inputs: a text, optionally with a file of sources, or JSON lines."""
    from heddle.core import UsageError

    if records:
        if source is not None:
            raise UsageError("--source: JSON lines have their own sources; leave it out")
        with valid_records(file, line_errors) as found:
            yield _recorded(found, file, line_errors)
    elif source is None:
        with valid_lines(file, line_errors) as lines:
            yield _plain(lines)
    elif source == file:
        raise UsageError(f"--source {file}: want another file than that of the texts")
    else:
        with valid_lines(file, line_errors) as lines, valid_lines(source, line_errors) as sources:
            yield _pair_by_line(lines, sources, file, line_errors)


def _plain(lines: Iterable[InputLine]) -> Iterator["Numbered"]:
    from heddle.tasks.scoring import ScoringInput

    return ((line.number, ScoringInput(line.text)) for line in lines if line.text.strip())


def _pair_by_line(
    lines: Iterable[InputLine], sources: Iterator[InputLine], file: str, line_errors: LineErrors
) -> Iterator["Numbered"]:
    """Pair the lines of two files by number, since bad lines of either are left out."""
    from heddle.core import DataError
    from heddle.tasks.scoring import ScoringInput

    source, last = next(sources, None), 0
    for line in lines:
        last = line.number
        while source is not None and source.number < last:
            source = next(sources, None)
        with line_errors.at(file, line.number):
            if source is None or source.number != last:
                raise DataError("want a source in the same line of the other file, found none")
            if line.text.strip():
                yield last, ScoringInput(line.text, source=source.text)
    surplus = [s.number for s in chain([source] if source else [], sources) if s.number > last]
    if surplus and (file, surplus[0]) not in line_errors.lines:
        line_errors.report(file, surplus[0], "want a text for each source, found no more")


def _recorded(
    records: Iterable[tuple[int, dict[str, Any]]], file: str, line_errors: LineErrors
) -> Iterator["Numbered"]:
    for number, record in records:
        with line_errors.at(file, number):
            yield number, _input(record)


def _input(record: dict[str, Any]) -> "ScoringInput":
    from heddle.core import ConfigError
    from heddle.tasks.scoring import ScoringInput

    if "text" not in record:
        raise ConfigError("text", want="a string", got=None)
    for name in ("text", "context", "source"):
        if name in record and not isinstance(record[name], str):
            raise ConfigError(name, want="a string", got=record[name])
    if not record["text"].strip():
        raise ConfigError("text", want="more than blanks", got=record["text"])
    return ScoringInput(record["text"], record.get("context", ""), record.get("source"))


def _batches(inputs: Iterator["Numbered"], lines: int) -> Iterator[list["Numbered"]]:
    batch: list[Numbered] = []
    characters = 0
    for number, passage in inputs:
        batch.append((number, passage))
        characters += len(passage.text) + len(passage.context)
        if len(batch) >= lines or characters >= CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _write(task: "TextScorer", batch: list["Numbered"], by: Unit, file: str, line_errors: LineErrors) -> None:
    for number, scored in line_errors.run_batch(file, batch, task.run):
        for record in _records(scored, by):
            write(json.dumps({"line": number} | record, ensure_ascii=False))


def _records(scored: "TextScore", by: Unit) -> Iterator[dict[str, Any]]:
    if by is Unit.SENTENCE:
        yield {
            "text": scored.text,
            "logprob": scored.logprob,
            "surprisal": scored.surprisal,
            "perplexity": scored.perplexity,
            "bits_per_byte": scored.bits_per_byte,
            "tokens": len(scored.ids),
            "unknown": scored.unknown,
        }
        return
    for piece in scored.words if by is Unit.WORD else scored.tokens:
        yield {"text": piece.text, "logprob": piece.logprob, "surprisal": piece.surprisal}
