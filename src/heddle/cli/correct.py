"""heddle correct: spelling in context, text in and text out."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.line_input import LineErrors, is_interactive, open_input
from heddle.cli.options import Device, Json, Model, Weights, check_output, open_model, settings_of

if TYPE_CHECKING:
    from heddle.tasks.correcting import CorrectedText, Corrector, CorrectorConfig, ErrorModel, Lexicon

LINES = 64  # corrected at once
LONGEST = 1 << 16  # bytes; a longer line is read in stretches, cut between words
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # of UTF-8: what is not the first byte of a character
SPACE = re.compile(rb"[ \t\n]")
Path_ = Path | None
Normal = Annotated[
    str | None,
    typer.Option(metavar="KEY=VALUE,...", help="Give the model text in normal form, such as case=lower."),
]


def correct(  # noqa: PLR0913 - the options are the contract
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="A text; -: standard input.")] = "-",
    model: Model = None,
    words: Annotated[Path_, typer.Option(help="Known words, a count after each. Left out: English ones.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Text whose words are the known ones, instead.")] = None,
    pairs: Annotated[
        Path_,
        typer.Option(
            help="Lines `right: wrong wrong` to learn errors from, or what --learn wrote. What becomes of two letters "
            "or more, as when they change places, counts when seen twice."
        ),
    ] = None,
    learn: Annotated[
        Path_, typer.Option(help="Write what --pairs teach to this JSON file, and correct nothing.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Odds at which a word is changed.")] = None,
    rate: Annotated[float | None, typer.Option(help="How many of all words are wrong, as far as you know.")] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Judge words by themselves, without context.")] = False,
    normal: Normal = None,
    device: Device = "auto",
    weights: Weights = "auto",
    json_: Json = False,
) -> int:
    """Correct the spelling of a text; all that is not changed stays as it was, to the byte.

    --json writes, for each line, the text and every change with its place, its odds and its alternatives. Blank lines
    stay blank. A line that is no text is told on standard error and stays as it is; the exit code is then 1.
    """
    kept = None if weights == "auto" else weights
    if learn is not None:
        told = {"words": words, "corpus": corpus, "threshold": threshold, "rate": rate, "model": model}
        _refuse_beside(
            "learn", told | {"normal": normal, "json": json_ or None, "no-model": no_model or None, "weights": kept}
        )
        return _learn(pairs, learn, file)
    if no_model:
        _refuse_beside("no-model", {"model": model, "normal": normal, "weights": kept})
    errors, config = None if pairs is None else _errors(pairs), _config(threshold, rate, normal)
    line_errors = LineErrors()
    with open_input(file) as stream:
        lexicon = _lexicon(words, corpus)
        task = _task(lexicon, errors, config, None if no_model else (model, device, weights))
        chunks = _with_offsets(_chunks(stream, file, line_errors))
        while batch := list(islice(chunks, 1 if is_interactive(file) else LINES)):
            _write(task, batch, json_)
    return line_errors.code()


def _refuse_beside(name: str, others: dict[str, Any]) -> None:
    """Refuse options that would change nothing beside another."""
    from heddle.core import UsageError

    for other, value in others.items():
        if value is not None:
            raise UsageError(f"{other}: want none beside --{name}, which has no use for it")


def _learn(pairs: Path | None, learn: Path, file: str) -> int:
    """Write what pairs of right and wrong words teach, and say how much that is."""
    from heddle.core import UsageError

    if pairs is None:
        raise UsageError("learn: want --pairs to learn from")
    if file != "-":
        raise UsageError(f"{file}: want no text beside --learn, which corrects none")
    check_output(learn)
    errors = _errors(pairs)
    errors.save(learn)
    ways = sum(map(len, errors.changed.values()))
    typer.echo(f"{learn}: {ways:,} ways to miswrite {len(errors.changed):,} pieces of words", err=True)
    return 0


@dataclass(frozen=True)
class _Chunk:
    """A line, or what is read of a long one at once, as text where it is any, and as it stands in the file."""

    line: int
    text: str | None
    raw: bytes
    at: int = 0  # characters of the line before it


def _config(threshold: float | None, rate: float | None, normal: str | None) -> "CorrectorConfig":
    from heddle.core import override
    from heddle.tasks.correcting import CorrectorConfig

    form = None if normal is None else settings_of([word for word in normal.split(",") if word.strip()])
    given = {"threshold": threshold, "weights.rate": rate, "normal": form}
    config = CorrectorConfig()
    for field, value in given.items():
        config = config if value is None else override(config, field, value)
    return config


def _errors(path: Path) -> "ErrorModel":
    from heddle.core import DataError
    from heddle.tasks.correcting import ErrorModel, read_error_pairs

    errors = ErrorModel.load(path) if path.suffix == ".json" else ErrorModel.learn(read_error_pairs(path))
    if not errors.changed:
        raise DataError(f"{path}: teaches nothing; want more pairs: a change of two letters counts when seen twice")
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
    model: tuple[str | None, str, str] | None,
) -> "Corrector":
    from heddle.tasks.correcting import Corrector

    if model is None:
        return Corrector(lexicon, errors, config)
    lm = open_model(*model)
    return Corrector(lexicon, errors, config, lm.model, lm.tokenizer)


def _chunks(stream: IO[bytes], file: str, line_errors: LineErrors) -> Iterator[_Chunk]:
    """Yield lines with their ends; long ones in stretches that end after whitespace.

    What goes on without any for that long is no text, and is passed on up to the next whitespace as it is.
    """
    line, held, solid = 1, b"", False
    while raw := stream.readline(LONGEST):
        raw, held, ended = held + raw, b"", raw.endswith(b"\n")
        if solid:
            first = SPACE.search(raw)
            cut = len(raw) if first is None else first.start()
            yield _Chunk(line, None, raw[:cut])
            raw, solid = raw[cut:], first is None
        elif not ended and len(raw) >= LONGEST:
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
    """Say of each stretch how far into its line it begins."""
    line = at = 0
    for chunk in chunks:
        line, at = chunk.line, at if chunk.line == line else 0
        yield replace(chunk, at=at)
        at += len(chunk.raw.translate(None, CONTINUATION_BYTES))


def _decode_chunk(line: int, raw: bytes, file: str, line_errors: LineErrors) -> _Chunk:
    try:
        return _Chunk(line, raw.decode(), raw)
    except UnicodeDecodeError as error:
        line_errors.tell(file, line, f"want UTF-8 text, found byte {raw[error.start]:#04x} at {error.start}")
        return _Chunk(line, None, raw)


def _write(task: "Corrector", batch: list[_Chunk], json_: bool) -> None:
    found = iter(task.run([chunk.text for chunk in batch if chunk.text is not None]))
    for chunk in batch:
        if chunk.text is None:
            if not json_:
                typer.echo(chunk.raw, nl=False)
        elif json_:
            typer.echo(json.dumps(_record(chunk, next(found)), ensure_ascii=False))
        else:
            typer.echo(next(found).text.encode(), nl=False)
    sys.stdout.flush()


def _record(chunk: _Chunk, corrected: "CorrectedText") -> dict[str, object]:
    """Return what became of a line; a long one has several records, whose places are counted from its beginning."""
    places = [{"start": chunk.at + c.start, "end": chunk.at + c.end} for c in corrected.changes]
    changes = [asdict(change) | place for change, place in zip(corrected.changes, places, strict=True)]
    return {"line": chunk.line, "text": corrected.text.rstrip("\r\n"), "changes": changes}
