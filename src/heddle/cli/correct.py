"""heddle correct: correct the spelling of a text in context."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.line_input import LineErrors, is_interactive, open_input
from heddle.cli.options import Best, Device, Force, Json, Model, Weights, check_output, open_model, settings_of
from heddle.cli.terminal import print_report, write, write_bytes

if TYPE_CHECKING:
    from heddle.tasks.correcting import CorrectedText, Corrector, CorrectorConfig, ErrorModel, Lexicon

LINES = 64  # per batch
MAX_LINE_BYTES = 1 << 16  # bytes; a longer line is read in chunks, split between words
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # of UTF-8: not the first byte of a character
SPACE = re.compile(rb"[ \t\n]")
Path_ = Path | None
Normal = Annotated[
    str | None, typer.Option(metavar="KEY=VALUE,...", help="Normalize the text for the model, such as case=lower.")
]


def correct(  # noqa: PLR0913 - the options are the contract
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="A text file; -: standard input.")] = "-",
    model: Model = None,
    words: Annotated[
        Path_, typer.Option(help="A lexicon: a word per line, with a count after each. Default: English words.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Take the lexicon from the words of this text instead.")] = None,
    pairs: Annotated[
        Path_,
        typer.Option(
            help="Misspellings to train the error model: lines `right: wrong wrong`, or the output of --learn. An edit "
            "of two letters or more counts if it is seen twice."
        ),
    ] = None,
    learn: Annotated[
        Path_, typer.Option(help="Train the error model on --pairs, write it to this JSON file, and exit.")
    ] = None,
    force: Force = False,
    threshold: Annotated[
        float | None, typer.Option(help="Minimum odds: probability ratio of the correction to the written word.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Expected share of misspelt words.")] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Correct words by themselves, without a language model.")
    ] = False,
    normal: Normal = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Correct the spelling of a text; everything else stays the same, to the byte.

    --json writes, for each line, the text and every correction with its offsets, odds and alternatives. Blank lines
    stay blank. A line that is not UTF-8 is reported on standard error and copied; the exit code is then 1.
    """
    chosen_weights = None if weights == "auto" else weights
    if learn is not None:
        options = {"words": words, "corpus": corpus, "threshold": threshold, "rate": rate, "model": model}
        flags = {"normal": normal, "json": json_ or None, "no-model": no_model or None, "weights": chosen_weights}
        _refuse_beside("learn", options | flags)
        return _learn(pairs, learn, file, force)
    if no_model:
        _refuse_beside("no-model", {"model": model, "normal": normal, "weights": chosen_weights, "best": best or None})
    errors, config = None if pairs is None else _errors(pairs), _config(threshold, rate, normal)
    line_errors = LineErrors()
    with open_input(file) as stream:
        lexicon = _lexicon(words, corpus)
        task = _task(lexicon, errors, config, None if no_model else (model, device, weights, best))
        chunks = _with_offsets(_chunks(stream, file, line_errors))
        while batch := list(islice(chunks, 1 if is_interactive(file) else LINES)):
            _write(task, batch, json_)
    return line_errors.code()


def _refuse_beside(name: str, others: dict[str, Any]) -> None:
    """Refuse options that have no effect beside another."""
    from heddle.core import UsageError

    for other, value in others.items():
        if value is not None:
            raise UsageError(f"--{other} has no effect with --{name}")


def _learn(pairs: Path | None, learn: Path, file: str, force: bool) -> int:
    """Train an error model on pairs, write it, and report its size."""
    from heddle.core import UsageError
    from heddle.tasks.correcting import ErrorModel

    if pairs is None:
        raise UsageError("--learn requires --pairs")
    if file != "-":
        raise UsageError(f"{file}: --learn reads no text, only --pairs")
    check_output(learn, lambda path: bool(ErrorModel.load(path)), force)
    errors = _errors(pairs)
    errors.save(learn)
    ways = sum(map(len, errors.changed.values()))
    print_report(f"{learn}: {ways:,} edits for {len(errors.changed):,} letter sequences")
    return 0


@dataclass(frozen=True)
class _Chunk:
    """A line, or a part of a long one: as text if it is valid, and as bytes."""

    line: int
    text: str | None
    raw: bytes
    at: int = 0  # characters of the line before this chunk


def _config(threshold: float | None, rate: float | None, normal: str | None) -> "CorrectorConfig":
    from heddle.core import ConfigError, override
    from heddle.tasks.correcting import CorrectorConfig

    form = None if normal is None else settings_of([word for word in normal.split(",") if word.strip()])
    given = {"threshold": threshold, "weights.rate": rate, "normal": form}
    config = CorrectorConfig()
    for field, value in given.items():
        try:
            config = config if value is None else override(config, field, value)
        except ConfigError as error:  # under the name of the option
            raise ConfigError(
                error.field.removeprefix("weights."), want=error.want, got=error.got, near=error.near
            ) from None
    return config


def _errors(path: Path) -> "ErrorModel":
    from heddle.core import DataError
    from heddle.tasks.correcting import ErrorModel, read_error_pairs

    errors = ErrorModel.load(path) if path.suffix == ".json" else ErrorModel.learn(read_error_pairs(path))
    if not errors.changed:
        raise DataError(f"{path}: want more pairs: an edit of two letters counts if it is seen twice")
    return errors


def _lexicon(words: Path | None, corpus: str | None) -> "Lexicon":
    from heddle.core import UsageError
    from heddle.data.sources import DocumentCounter, source_for
    from heddle.tasks.correcting import count_lexicon, english_lexicon, read_lexicon

    if words is not None and corpus is not None:
        raise UsageError("words: want a list or a corpus, got both")
    if words is not None:
        return read_lexicon(words)
    if corpus is not None:
        return count_lexicon(document.text for document in source_for(corpus).documents(DocumentCounter()))
    return english_lexicon()


def _task(
    lexicon: "Lexicon",
    errors: "ErrorModel | None",
    config: "CorrectorConfig",
    model: tuple[str | None, str, str, bool] | None,
) -> "Corrector":
    from heddle.tasks.correcting import Corrector

    if model is None:
        return Corrector(lexicon, errors, config)
    lm = open_model(*model)
    return Corrector(lexicon, errors, config, lm.model, lm.tokenizer)


def _chunks(stream: IO[bytes], file: str, line_errors: LineErrors) -> Iterator[_Chunk]:
    """Yield lines with their line breaks; long ones in chunks that end after whitespace.

    A long run without whitespace is not text, and is copied up to the next whitespace.
    """
    line, held, solid = 1, b"", False
    while raw := stream.readline(MAX_LINE_BYTES):
        raw, held, ended = held + raw, b"", raw.endswith(b"\n")
        if solid:
            first = SPACE.search(raw)
            cut = len(raw) if first is None else first.start()
            yield _Chunk(line, None, raw[:cut])
            raw, solid = raw[cut:], first is None
        elif not ended and len(raw) >= MAX_LINE_BYTES:
            cut = 1 + max(raw.rfind(space) for space in (b" ", b"\t"))
            solid = not cut
            if solid:
                yield _Chunk(line, None, raw)
            raw, held = raw[:cut], b"" if solid else raw[cut:]
        if raw:
            yield _decode_chunk(line, raw, file, line_errors)
        line += ended
    if held:
        yield _decode_chunk(line, held, file, line_errors)


def _with_offsets(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Yield chunks with their offset in the line."""
    line = at = 0
    for chunk in chunks:
        line, at = chunk.line, at if chunk.line == line else 0
        yield replace(chunk, at=at)
        at += len(chunk.raw.translate(None, CONTINUATION_BYTES))


def _decode_chunk(line: int, raw: bytes, file: str, line_errors: LineErrors) -> _Chunk:
    try:
        return _Chunk(line, raw.decode(), raw)
    except UnicodeDecodeError as error:
        line_errors.report(file, line, f"want UTF-8 text, found byte {raw[error.start]:#04x} at {error.start}")
        return _Chunk(line, None, raw)


def _write(task: "Corrector", batch: list[_Chunk], json_: bool) -> None:
    found = iter(task.run([chunk.text for chunk in batch if chunk.text is not None]))
    for chunk in batch:
        if chunk.text is None:
            if not json_:
                write_bytes(chunk.raw)
        elif json_:
            write(json.dumps(_record(chunk, next(found)), ensure_ascii=False))
        else:
            write_bytes(next(found).text.encode())


def _record(chunk: _Chunk, corrected: "CorrectedText") -> dict[str, object]:
    """Return the record of a line; a long line has several, with offsets from its beginning."""
    places = [{"start": chunk.at + c.start, "end": chunk.at + c.end} for c in corrected.changes]
    changes = [asdict(change) | place for change, place in zip(corrected.changes, places, strict=True)]
    return {"line": chunk.line, "text": corrected.text.rstrip("\r\n"), "changes": changes}
