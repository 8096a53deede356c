"""heddle evaluate: loss, perplexity and bits per byte on held-out text, or the metrics of a task."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli import memory_options as memories
from heddle.cli.evaluation_table import EVALUATIONS
from heddle.cli.few_shot import (
    Calibrate,
    DrawSeed,
    ExamplesFile,
    Instruction,
    Labels,
    PromptOptions,
    Shots,
    Template,
)
from heddle.cli.line_input import BAD_LINES
from heddle.cli.long_texts import ByPosition, Length, LongReading, measure_long_texts
from heddle.cli.options import Best, Device, Json, Model, Sinks, Weights, open_model
from heddle.cli.terminal import note, print_message, write

if TYPE_CHECKING:
    from heddle.data.shards import Shards
    from heddle.data.sources import CorpusConfig, Document, DocumentCounter, EncodedDocument, Split
    from heddle.lm import LM
    from heddle.tasks.evaluation import EvaluationTask
    from heddle.tasks.few_shot import FewShot
    from heddle.tasks.scoring import Evaluation

MEASURES = {
    "log-likelihood": ", the end of each document counted",
    "pseudo-log-likelihood": ", each masked in turn (pseudo-log-likelihood)",
    "teacher-forced": " of the targets, their ends counted (teacher-forced)",
}


def evaluate(  # noqa: PLR0913 - the options are the contract
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="With --table: the runs.")] = None,
    model: Model = None,
    data: Annotated[
        str | None, typer.Option(help="A text or prepared data. Default: the held-out data of the run.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="A task to grade on --data: classify, tag, answer, summarize, blimp, dialogue, next_sentence, "
            "webquestions, naturalstories, masked_words, passkey, or your own (--use)."
        ),
    ] = None,
    labels: Labels = None,
    examples: ExamplesFile = None,
    k: Shots = None,
    seed: DrawSeed = 0,
    calibrate: Calibrate = False,
    template: Template = None,
    instruction: Instruction = "",
    limit: Annotated[
        int | None, typer.Option(help="At most so many documents, or examples evenly spaced over all of a task's.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Show what runs have kept of earlier evaluations on tasks, side by side.")
    ] = False,
    window: Annotated[int | None, typer.Option(help="Sliding window in tokens. Default: the model's context.")] = None,
    stride: Annotated[int | None, typer.Option(help="Stride of the window in tokens. Default: half a window.")] = None,
    sinks: Sinks = None,
    by_position: ByPosition = None,
    length: Length = None,
    carry: Annotated[
        bool, typer.Option("--carry", help="Carry the state of a recurrent model from document to document.")
    ] = False,
    memory: memories.Memory = None,
    memory_weight: memories.Weight = None,
    memory_k: memories.Count = None,
    memory_temperature: memories.Temperature = None,
    memory_search: memories.Search = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Measure loss, perplexity and bits per byte on held-out text, or with --task the metrics of a task.

    An encoder is measured by pseudo-log-likelihood, each token masked in turn; an encoder-decoder on targets given
    their sources (teacher-forced). Documents that cannot be read are reported on standard error and left out; the exit
    code is then 1. Metrics of a task have 95 % intervals by bootstrap, and a run keeps them in evaluations.jsonl. With
    --labels or --examples a model that writes text is prompted (few-shot) for the tasks classify, answer and
    webquestions.
    """
    from heddle.cli.evaluation_table import show_table

    if table or runs:
        return show_table(runs or [], table, json_)
    _check_limit(limit)
    recall = memories.MemoryWords(memory, memory_weight, memory_k, memory_temperature, memory_search)
    prompt = PromptOptions(labels, examples, k, seed, calibrate, template, instruction)
    if task is not None:
        refused = {"window": window, "stride": stride, "carry": carry or None, "sinks": sinks}
        chosen = _check_task(task, data, refused | {"by-position": by_position, "length": length})
        prompting = prompt.for_task(chosen)
        lm = recall.apply(open_model(model, device, weights, best))
        setting = {"prompt": prompt.record(prompting), "memory": recall.record()}
        return _grade(chosen, lm, str(data), GradeOptions(prompting, setting, limit, json_))
    prompt.refuse("--task")
    if sinks is not None or by_position is not None or length is not None:
        reading = LongReading(window, stride, carry, sinks, by_position, length)
        reading.check()
        lm = recall.apply(open_model(model, device, weights, best))
        return measure_long_texts(lm, data, limit, reading, json_)
    lm = recall.apply(open_model(model, device, weights, best))
    return _measure(lm, data, limit, (window, stride, carry), json_)


def _check_limit(limit: int | None) -> None:
    from heddle.core import check_at_least

    if limit is not None:
        check_at_least(1, limit=limit)


def _measure(
    lm: "LM", data: str | None, limit: int | None, reading: tuple[int | None, int | None, bool], as_json: bool
) -> int:
    """Measure a model on held-out text; `reading`: window, stride, and whether the state is carried."""
    from heddle.core import UsageError
    from heddle.data.sources import DocumentCounter
    from heddle.tasks.scoring import evaluate as measure
    from heddle.tasks.scoring import evaluate_chats

    if lm.model.reads != "ids":
        how = {"images": "heddle caption or classify --reference FOLDER", "video": "heddle caption --reference FOLDER"}
        want = how.get(lm.model.reads, "--task transcribe --data FOLDER")
        raise UsageError(f"evaluate: want {want}, because the model reads {lm.model.reads}")
    counter = DocumentCounter()
    corpus = corpus_of(lm, data)
    kept = None if corpus is None or data is not None or lm.model.reads_source else _kept(lm, corpus)
    if lm.model.reads_source:
        _refuse_reading(reading)
        found = _measure_pairs(lm, islice(_pairs(corpus, data, counter), limit))
    elif kept is not None:
        found = measure(lm.model, lm.tokenizer, limited(kept, limit), *reading)
    elif corpus is not None and corpus.chats:
        found = evaluate_chats(lm.model, lm.tokenizer, islice(_chats(lm, corpus, counter, data), limit), *reading)
    else:
        found = measure(lm.model, lm.tokenizer, limited(held_out_texts(lm, corpus, data, counter), limit), *reading)
    if as_json:
        write(json.dumps(found.plain()))
    else:
        show_evaluation(found)
    return report_skipped(counter, own=data is None)


def _measure_pairs(lm: "LM", pairs: "Iterator[tuple[str, str]]") -> "Evaluation":
    from heddle.core import UsageError
    from heddle.models.networks import EncoderDecoder, require
    from heddle.tasks.scoring import evaluate_pairs

    model = require(lm.model, EncoderDecoder, UsageError("evaluate: want an encoder-decoder for pairs"))
    return evaluate_pairs(model, lm.tokenizer, pairs)


def _refuse_reading(reading: tuple[int | None, int | None, bool]) -> None:
    from heddle.core import UsageError

    for name, value in zip(("window", "stride", "carry"), reading, strict=True):
        if value:
            raise UsageError(f"--{name} has no effect on an encoder-decoder, which reads each pair whole")


def limited(texts: "Iterator[str] | Shards", limit: int | None) -> "Iterator[str] | Shards":
    """Return at most so many texts."""
    from heddle.core import UsageError
    from heddle.data.shards import Shards

    if limit is None:
        return texts
    if isinstance(texts, Shards):
        raise UsageError("--limit has no effect on prepared data")
    return islice(texts, limit)


def _pairs(corpus: "CorpusConfig | None", data: str | None, counter: "DocumentCounter") -> "Iterator[tuple[str, str]]":
    """Yield the sources and targets to measure an encoder-decoder on."""
    from heddle.core import DataError

    if corpus is None or corpus.prepared is not None:
        raise DataError(f"{data}: want files of pairs for an encoder-decoder, found prepared data")
    for document in corpus.held_out(counter) if data is None else read_documents(corpus, data, counter):
        if document.target is None:
            want = "a source and its target, since the model is an encoder-decoder"
            raise DataError(f"{document.origin}: want {want}, found one text; translate --reference grades two files")
        yield document.text, document.target


def _check_task(task: str, data: str | None, given: dict[str, object]) -> "EvaluationTask":
    """Return a task by its name; refuse what it cannot use, before a model is loaded."""
    from heddle.core import ConfigError, UsageError
    from heddle.tasks.evaluation import task_named

    chosen = task_named(task)
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name} has no effect with --task")
    if data is None:
        raise ConfigError("data", want=f"a file for the task {task}", got=None)
    if not Path(data).exists():
        raise UsageError(f"{data}: no such file")
    return chosen


@dataclass(frozen=True)
class GradeOptions:
    """How a model is graded: its prompt, that and its memory as plain data, the most examples, and whether as JSON."""

    prompting: "FewShot | None"
    setting: dict[str, dict[str, object]]
    limit: int | None
    as_json: bool


def _grade(task: "EvaluationTask", lm: "LM", data: str, options: GradeOptions) -> int:
    """Grade a model on a task; show the metrics and keep them with the run."""
    from heddle.tasks.evaluation import GradedModel, run_task

    graded = GradedModel(lm.model, lm.tokenizer, lm.origin.settings, options.prompting)
    found = run_task(task, graded, data, limit=options.limit)
    record = found.plain() | {name: value for name, value in options.setting.items() if value}
    if options.as_json:
        write(json.dumps(record))
    else:
        for name, value in found.metrics.items():
            low, high = found.intervals[name]
            print_message(f"{name:<16} {value:.4f}  [{low:.4f}, {high:.4f}]")
        print_message(f"{'graded on':<16} {found.examples:,} examples of {data}")
    _keep(lm, {**record, "data": str(Path(data).absolute())})
    return 0


def _keep(lm: "LM", record: dict[str, object]) -> None:
    """Append a record to the evaluations of a run."""
    folder = lm.origin.path
    if folder is None or not lm.origin.is_heddle or not (folder / "config.json").is_file():
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # never through a link
    with os.fdopen(os.open(folder / EVALUATIONS, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def show_evaluation(found: "Evaluation") -> None:
    print_message(f"loss             {found.loss:.4f} nats per token{MEASURES[found.measure]}")
    print_message(f"perplexity       {found.perplexity:.6g} per token, {found.word_perplexity:.6g} per word")
    print_message(f"bits per byte    {found.bits_per_byte:.4f}")
    print_message(
        f"measured on      {found.documents:,} documents, {found.tokens:,} tokens, {found.words:,} words, "
        f"{found.bytes:,} bytes"
    )
    if found.unknown:
        share = f"{found.unknown:,} tokens, {found.unknown / found.tokens:.2%} of all"
        hidden = f"bits per byte counts 8 for each of the {found.lost:,} bytes they hide"
        print_message(f"unknown          {share}; {hidden}")
    if found.measure == "teacher-forced":
        print_message("read             each target whole, given its source")
    elif found.stride is None and found.window is not None:
        print_message(f"streamed         the latest {found.window} tokens and the sinks kept")
    elif found.window is None:
        print_message("read in order    the state carried from document to document")
    else:
        print_message(f"sliding window   {found.window} tokens, stride {found.stride}")


def report_skipped(counter: "DocumentCounter", own: bool) -> int:
    """Report skipped documents, the first of each kind by its place; return the exit code.

    An empty text is no error. Of a run's own data only errors are reported.
    """
    for reason, count in counter.skipped.items():
        if own and not reason.fault:
            continue
        more = f", the first of {count:,}" if count > 1 else ""
        note(f"{counter.examples[reason]}: left out, {reason.words}{more}")
    return BAD_LINES if counter.faulty else 0


def corpus_of(lm: "LM", data: str | None) -> "CorpusConfig | None":
    """Return the corpus of the run, or that of a path; None: prepared data."""
    from heddle.core import ConfigError, decode
    from heddle.data.sources import CorpusConfig, PreparedSource, source_for

    if data is None:
        if "data" not in lm.origin.settings:
            raise ConfigError("data", want="a path, since the model does not name its training data", got=None)
        return decode(CorpusConfig, lm.origin.settings["data"], "data")
    source = source_for(data)
    source = source.resolve("target") if lm.model.reads_source else source
    return None if isinstance(source, PreparedSource) else CorpusConfig(sources=(source,))


def _kept(lm: "LM", corpus: "CorpusConfig") -> "Shards | None":
    """Return the held-out text as token shards that the run has kept, if its data have changed since; say so.

    None: measure the data themselves, which are as they were, or of which nothing else is kept.
    """
    from heddle.core import UsageError
    from heddle.data.shards import Shards, open_prepared
    from heddle.text.tokenizers import load_tokenizer

    pinned, path = lm.origin.held_out, lm.origin.path
    if pinned is None or path is None or corpus.prepared is not None:
        return None
    try:
        if corpus.held_out_checksum() == pinned:
            return None
        gone = None
    except UsageError as error:
        gone = error
    for folder in (path.parent, path.parent.parent.parent):  # of a run, of a checkpoint in one
        for found in map(open_prepared, sorted((folder / ".data").glob("*"))):
            if found is None or found.held_out != pinned:
                continue
            if load_tokenizer(found.tokenizer).fingerprint == lm.tokenizer.fingerprint:
                tokens = f"measured on the token shards in {found.folder}, which hold it as it was"
                note(f"the held-out text has changed since training; {tokens}")
                return Shards.open(found.valid)
    if gone is not None:
        raise gone
    note("the held-out text has changed since training; what is measured may have been trained on")
    return None


def held_out_texts(
    lm: "LM", corpus: "CorpusConfig | None", data: str | None, counter: "DocumentCounter"
) -> "Iterator[str] | Shards":
    """Return the texts to measure: the held-out part of a run's corpus, all of a path, or the held-out shards."""
    from heddle.data.sources import Split

    folder = Path(data or "") if corpus is None else corpus.prepared
    if folder is not None:
        return prepared_shards(lm, folder, Split.VALID)
    assert corpus is not None
    if data is None:
        return (document.text for document in corpus.held_out(counter))
    return (document.text for document in read_documents(corpus, data, counter))


def _chats(
    lm: "LM", corpus: "CorpusConfig", counter: "DocumentCounter", data: str | None
) -> "Iterator[EncodedDocument]":
    """Yield the conversations to measure, encoded by the chat template of the model."""
    from heddle.data.sources import RejectedDocument

    chat_encoder = corpus.chat_encoder(lm.tokenizer, lm.origin.template)
    assert chat_encoder is not None
    for document in corpus.held_out(counter) if data is None else read_documents(corpus, data, counter):
        assert document.conversation is not None
        found = chat_encoder.encode(document.conversation)
        if isinstance(found, RejectedDocument):
            counter.skip(found.reason, document.origin)
        else:
            yield found


def read_documents(corpus: "CorpusConfig", data: str, counter: "DocumentCounter") -> "Iterator[Document]":
    """Yield the documents of a path; refuse a path without any."""
    from heddle.core import DataError

    for document in corpus.sources[0].documents(counter):
        counter.keep()
        yield document
    if not counter.kept:
        raise DataError(f"{data}: no text to measure: {counter}")


def prepared_shards(lm: "LM", folder: Path, split: "Split") -> "Shards":
    """Open the shards of one side of prepared data."""
    from heddle.core import DataError
    from heddle.data.shards import Shards, open_prepared
    from heddle.text.tokenizers import load_tokenizer

    prepared = open_prepared(folder)
    if prepared is None:
        raise DataError(f"{folder}: not a finished folder of prepared data")
    if load_tokenizer(prepared.tokenizer).fingerprint != lm.tokenizer.fingerprint:
        raise DataError(f"{folder}: prepared with another tokenizer than the model's")
    if prepared.pairs:
        raise DataError(f"{folder}: has pairs, and a language model needs plain text")
    return Shards.open(prepared.shard_folders(split)[0])
