"""heddle retrieve: the nearest pairs of each text, as a column of prototypes; with --edit, what an editor writes."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.line_input import LineErrors, name_of, valid_lines
from heddle.cli.options import Best, Device, Force, Json, Weights, check_output, open_model
from heddle.cli.progress import progress
from heddle.cli.terminal import note, write

if TYPE_CHECKING:
    from heddle.tasks.retrieval import Edit, Embed, EntryColumns, PairIndex, Query

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
BM25 = "bm25"
AT_ONCE = 512  # queries
DIGITS = 4  # of a score
MAX_BYTES = 1 << 20  # bytes of a record that tell that it is ours


def retrieve(  # noqa: PLR0913 - the options are the contract
    pairs: Annotated[
        str,
        typer.Argument(metavar="PAIRS|INDEX", help="Pairs to retrieve from: JSON lines, CSV or TSV; or a saved index."),
    ],
    queries: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERIES|-]",
            help="A text per line, or a table; -: standard input. Default: the pairs themselves.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="bm25|MODEL", help="Compare texts by BM25, or by a model's embeddings.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Number of neighbours of each text, each in a record of its own.")] = 1,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="No neighbour comes from the same group; may be given several times."),
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the text; default: by name.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the answer; default: by name.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write. Default: standard output.")
    ] = None,
    index: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Save the index to this folder.")] = None,
    edit: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Write each text's answer by this editor instead of records.")
    ] = None,
    beams: Annotated[int, typer.Option(help="With --edit: number of beams; 1: greedy.")] = 4,
    max_tokens: Annotated[int, typer.Option(help="With --edit: maximum number of new tokens.")] = 128,
    batch: Annotated[int, typer.Option(help="With --edit: batch size.")] = 32,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
    force: Force = False,
) -> int:
    """Find the nearest pair of each text, whose answer is the prototype that an editor starts from.

    Writes JSON lines: text, target where it is known, prototype (the neighbour's answer; empty: there is none),
    neighbour, score, and the groups: data for `heddle train retrieve_and_edit`. A neighbour never has the same text,
    and never comes from the same group. With --edit MODEL, writes what the model makes of each text and its prototype,
    one line each, or with --json records with reply.
    """
    from heddle.core import ConfigError, check_at_least

    check_at_least(1, k=k, beams=beams, max_tokens=max_tokens, batch=batch)
    records = json_ or edit is None
    if k > 1 and not records:
        raise ConfigError("k", want="1, or --json, so that replies of one text can be told apart", got=k)
    if output is not None:
        check_output(output, _is_ours, force)
    request = _Request(pairs, queries, by, tuple(group or ()), text, target)
    line_errors = LineErrors()
    found = _Opened.of(request, device, weights)
    if index is not None:
        found.save(index)
    texts = found.queries(request, line_errors)
    if edit is None:
        work = _retriever(found.index, k)
    else:
        work = _editor(found.index, edit, (device, weights, best), (beams, max_tokens, batch), k)
    with _writer(output) as out:
        for query, edits in _results(texts, work, pairs if queries is None else queries, line_errors):
            for one in edits:
                record = _record(query, one, found.groups, edited=edit is not None)
                out(json.dumps(record, ensure_ascii=False) if records else one.text)
    return line_errors.code()


WRITTEN = ("text", "target", "prototype", "reply", "neighbour", "score")  # of a record


@dataclass(frozen=True)
class _Request:
    """What is searched, and for what."""

    pairs: str
    queries: str | None
    by: str | None
    groups: tuple[str, ...]
    text: str | None
    target: str | None

    def __post_init__(self) -> None:
        from heddle.core import UsageError

        for group in self.groups:
            if group in WRITTEN:
                raise UsageError(f"--group: want another name than {group}, which each written line has already")

    @property
    def columns(self) -> "EntryColumns":
        """Return the columns as they are named."""
        from heddle.tasks.retrieval import EntryColumns

        return EntryColumns(self.text, self.target, self.groups)


@dataclass(frozen=True)
class _Opened:
    """An index, how its texts are compared, and its group columns."""

    index: "PairIndex"
    by: str
    groups: tuple[str, ...]

    @classmethod
    def of(cls, request: _Request, device: str, weights: str) -> "_Opened":
        """Open a saved index, or build one of a table."""
        from heddle.tasks.retrieval import BM25Retriever, EmbeddingRetriever, PairIndex, distinct_texts, read_entries

        if Path(request.pairs).is_dir():
            return cls.saved(request, device, weights)
        entries = tuple(read_entries(request.pairs, request.columns))
        texts, by = distinct_texts(entries), request.by or BM25
        if by == BM25:
            return cls(PairIndex(entries, BM25Retriever.build(texts)), by, request.groups)
        retriever = EmbeddingRetriever.build(texts, _embed(by, device, weights))
        local = str(Path(by).absolute()) if Path(by).exists() else by
        return cls(PairIndex(entries, retriever), local, request.groups)

    @classmethod
    def saved(cls, request: _Request, device: str, weights: str) -> "_Opened":
        """Open a saved index, whose columns and model are those that it was made with."""
        from heddle.core import ConfigError
        from heddle.tasks.retrieval import open_index, read_record

        folder = Path(request.pairs)
        record = read_record(folder)
        given = {"by": request.by, "group": request.groups or None, "target": request.target}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(name, want="none, because a saved index has its own", got=value)
        return cls(open_index(folder, lambda name: _embed(name, device, weights)), record.by, record.groups)

    def save(self, folder: Path) -> None:
        """Save the index."""
        from heddle.tasks.retrieval import save_index

        save_index(self.index, self.by, self.groups, folder)

    def queries(self, request: _Request, line_errors: LineErrors) -> "list[Query]":
        """Return the queries: those of a file, or the pairs of the index themselves."""
        from heddle.core import DataError
        from heddle.tasks.retrieval import EntryColumns, Query, read_queries

        file = request.queries
        if file is None:
            return [entry.query for entry in self.index.entries]
        if Path(file).suffix.lower() in TABLES:
            found, missing = read_queries(file, EntryColumns(request.text, request.target, self.groups))
            if missing:
                note(f"{file}: has no column {missing[0]!r}: neighbours of every group are allowed")
            return found
        with valid_lines(file, line_errors) as lines:
            found = [Query(one.text, origin=f"{file}:{one.number}") for one in lines if one.text.strip()]
        if not found:
            raise DataError(f"{name_of(file)}: want a text or more, found none")
        return found


def _embed(name: str, device: str, weights: str) -> "Embed":
    lm = open_model(name, device, weights)
    return lambda texts: lm.embed(list(texts))


# --- query by query ---------------------------------------------------------------------------------------------------


Work = Callable[["Sequence[Query]"], "list[list[Edit]]"]  # of each query, one for each neighbour


def _retriever(index: "PairIndex", k: int) -> Work:
    """Return how neighbours alone are found; a query without any has one line, of no prototype."""
    from heddle.tasks.retrieval import Edit

    def work(queries: "Sequence[Query]") -> "list[list[Edit]]":
        return [[Edit("", one) for one in near] or [Edit("", None)] for near in index.neighbours(queries, k)]

    return work


def _editor(index: "PairIndex", name: str, loading: tuple[str, str, bool], sizes: tuple[int, int, int], k: int) -> Work:
    """Return how a model edits what is found."""
    from heddle.core import ConfigError
    from heddle.decoding import GenerationOptions, generation_config
    from heddle.tasks.generation import translator
    from heddle.tasks.retrieval import Editor

    lm = open_model(name, *loading)
    if not lm.model.reads_source:
        raise ConfigError("edit", want="an encoder-decoder, trained on prototypes", got=lm.model.config.noun)
    beams, max_tokens, batch = sizes
    options: GenerationOptions = {"beams": beams, "max_tokens": max_tokens}
    if beams > 1:
        options["length_penalty"] = 1.0
    editor = Editor(index, translator(lm.model, lm.tokenizer, generation_config(options), batch))
    return lambda queries: editor.run(queries, k)


def _results(
    queries: "Sequence[Query]", work: Work, file: str, line_errors: LineErrors
) -> "Iterator[tuple[Query, list[Edit]]]":
    """Yield each query with what was found; one that cannot be used is reported, and the others are processed."""
    with progress("retrieve", file if Path(file).is_file() else None) as advance:
        for start in range(0, len(queries), AT_ONCE):
            batch = [(_line(query), query) for query in queries[start : start + AT_ONCE]]
            for _, (query, edits) in line_errors.run_batch(
                file, batch, lambda some: list(zip(some, work(some), strict=True))
            ):
                advance()
                yield query, edits


def _line(query: "Query") -> int:
    """Return the line that a query was read from."""
    return int(query.origin.rpartition(":")[2])


def _record(query: "Query", edit: "Edit", groups: tuple[str, ...], edited: bool) -> dict[str, Any]:
    """Return a query, its prototype and what was made of it, as a JSON record."""
    near = edit.neighbour
    target = {} if query.target is None else {"target": query.target}
    reply = {"reply": edit.text} if edited else {}
    prototype = "" if near is None else near.entry.target
    found = {} if near is None else {"neighbour": near.entry.origin, "score": round(near.score, DIGITS)}
    own = dict(zip(groups, query.groups, strict=False))
    return {"text": query.text, **target, "prototype": prototype, **reply, **found, **own}


@contextlib.contextmanager
def _writer(output: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield what writes a line to a file, which appears when it is complete, or to standard output."""
    if output is None:
        yield write
        return
    from heddle.core.system import replacing

    with replacing(output) as file:

        def to_file(line: str) -> None:
            file.write(f"{line}\n".encode())

        yield to_file


def _is_ours(path: Path) -> bool:
    """Tell whether a file holds records of this command."""
    from heddle.core.system import parse_json

    with path.open("rb") as file:
        found = parse_json(file.readline(MAX_BYTES).decode("utf-8", "replace"))
    return isinstance(found, dict) and found.keys() >= {"text", "prototype"}
