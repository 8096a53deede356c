"""heddle generate: continue texts; one as it is written, or many from a file, side by side."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from heddle.cli import generation_options as w
from heddle.cli.line_input import LineErrors, is_interactive, read_lines, stdin_is_piped, valid_lines, valid_records
from heddle.cli.options import Device, Json, Model, Weights, open_model
from heddle.cli.progress import progress

if TYPE_CHECKING:
    from heddle.decoding.runtime import Request
    from heddle.decoding.sampling import GenerationConfig
    from heddle.tasks.generation import GeneratedText, TextConstraints, TextGenerator

AHEAD = 4  # batches gathered before any is written, so that prompts of one length meet
ARGUMENT = "prompt"  # what prompts that are given as words are called in messages
Prompt = tuple[int, str | None]  # number, text; None: a blank line


def generate(  # noqa: PLR0913 - the options are the contract
    context: typer.Context,
    prompts: w.Prompts = None,
    file: w.File = None,
    records: w.Records = False,
    batch: w.Batch = 16,
    model: Model = None,
    max_tokens: w.MaxTokens = 128,
    min_tokens: w.MinTokens = None,
    temperature: w.Temperature = None,
    top_k: w.TopK = None,
    top_p: w.TopP = None,
    min_p: w.MinP = None,
    typical: w.Typical = None,
    contrast: w.Contrast = None,
    repetition: w.Repetition = None,
    presence: w.Presence = None,
    frequency: w.Frequency = None,
    bias: w.Bias = None,
    beams: w.Beams = None,
    length_penalty: w.LengthPenalty = None,
    coverage: w.Coverage = None,
    groups: w.Groups = None,
    diversity: w.Diversity = None,
    seed: w.Seed = None,
    samples: w.Samples = 1,
    seconds: w.Seconds = None,
    logprobs: w.Logprobs = None,
    stop: w.StopAt = None,
    regex: w.Regex = None,
    schema: w.Schema = None,
    grammar: w.GrammarFile = None,
    require: w.Require = None,
    forbid: w.Forbid = None,
    draft: w.DraftModel = None,
    cache: w.CacheKind = None,
    compile: w.CompileWhen = None,
    device: Device = "auto",
    weights: Weights = "auto",
    json_: Json = False,
) -> int:
    """Continue texts; with an encoder-decoder, answer them.

    One is shown as written; of several, each is a line (breaks as \\n), blank for a blank or bad one: exit code 1."""
    return _run(context.params)


def _run(options: w.Options) -> int:
    """Do what the options say; return the exit code."""
    from heddle.core import UsageError

    words, file, json_ = options["prompts"] or [], options["file"], options["json_"]
    if words and file is not None:
        raise UsageError("file: want either a file of prompts or prompts as words, got both")
    if options["logprobs"] is not None and not json_:
        raise UsageError("logprobs: want --json, to have a place for them")
    if options["records"] and file is None:
        raise UsageError("records: want --file with it, to hold them")
    if len(words) > 1 and "-" in words:
        raise UsageError("prompt: want - alone, for standard input is one text; --file - reads a prompt a line")
    if words == ["-"] or (not words and file is None and stdin_is_piped()):
        words = [_standard_input()]
    texts, rules, line_errors = words or [""], w.constraints_from(options), LineErrors()
    if file is None and len(texts) == 1:
        return _one(_job(options, rules), texts[0], json_)
    with _prompts(texts, file, options["records"], line_errors) as prompts:
        job = _job(options, rules)
        ahead = 1 if file is not None and is_interactive(file) else AHEAD
        show = _Show(job, file is not None) if json_ else _Plain(job.config.samples)
        with progress("generate", file) as passed:
            for number, text, answers in job.answers(prompts, file, line_errors, ahead):
                show.line(number, text, answers)
                passed()
        show.end(max((number for _, number in line_errors.told), default=0))
    return line_errors.code()


def _standard_input() -> str:
    with read_lines("-") as lines:
        return "\n".join(lines)


@contextmanager
def _prompts(texts: list[str], file: str | None, records: bool, line_errors: LineErrors) -> Iterator[Iterator[Prompt]]:
    """Open the prompts, numbered; a file that is not there is told before a model is loaded."""
    if file is None:
        yield iter(list(enumerate(texts, 1)))
    elif records or Path(file).suffix == ".jsonl":
        with valid_records(file, line_errors) as found:
            yield _recorded(found, file, line_errors)
    else:
        with valid_lines(file, line_errors) as lines:
            yield ((line.number, line.text if line.text.strip() else None) for line in lines)


def _recorded(records: Iterable[tuple[int, dict[str, Any]]], file: str, line_errors: LineErrors) -> Iterator[Prompt]:
    from heddle.core import ConfigError

    for number, record in records:
        with line_errors.at(file, number):
            text = record.get("prompt")
            if not isinstance(text, str):
                raise ConfigError("prompt", want="a text", got=text)
            yield number, text


# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A model, and how it is asked to write."""

    writer: "TextGenerator"
    config: "GenerationConfig"
    stop: list[str]
    rules: "TextConstraints"
    batch: int

    def answers(
        self, prompts: Iterator[Prompt], file: str | None, line_errors: LineErrors, ahead: int
    ) -> Iterator[tuple[int, str | None, list["GeneratedText"]]]:
        """Yield the number, the text and the answers of each prompt that is good, in order; none of a blank one."""
        name = ARGUMENT if file is None else file
        while gathered := dict(islice(prompts, self.batch * ahead if ahead > 1 else 1)):
            asked = [(number, text) for number, text in gathered.items() if text is not None]
            requests = [(n, r) for n, text in asked for _, r in line_errors.run_batch(name, [(n, text)], self.ask)]
            requests.sort(key=lambda numbered: _length(numbered[1]))
            found: dict[int, list[GeneratedText]] = {number: [] for number, text in gathered.items() if text is None}
            broken: KeyboardInterrupt | None = None
            try:
                for start in range(0, len(requests), self.batch):
                    found |= line_errors.run_batch(name, requests[start : start + self.batch], self.write)
            except KeyboardInterrupt as error:  # what is written is not lost
                broken = error
            yield from ((number, gathered[number], found[number]) for number in gathered if number in found)
            if broken is not None:
                raise broken

    def ask(self, texts: list[str]) -> list["Request"]:
        """Return the requests of texts; refuse what the model cannot read before any is written."""
        from heddle.decoding.generation import max_new_tokens

        requests = self.writer.requests(texts, self.config, self.rules)
        for request in requests:
            max_new_tokens(self.writer.model, request, self.config)
        return requests

    def write(self, requests: list["Request"]) -> list[list["GeneratedText"]]:
        """Return the answers of each request."""
        found, each = self.writer.generate(requests, self.config, self.stop), self.config.samples
        return [found[start : start + each] for start in range(0, len(found), each)]


def _length(request: "Request") -> int:
    return len(request.ids) + len(request.source or ())


def _job(options: w.Options, rules: "TextConstraints") -> _Job:
    """Load what is asked for."""
    from heddle.tasks.generation import check_stop_strings

    stops, options = check_stop_strings(options["stop"]), w.generation_options_from(options)
    writer = open_model(options["model"], options["device"], options["weights"]).writer(w.draft_from(options))
    config = writer.generation_config(options)
    writer.requests([], config, rules)  # rules that cannot be read are told once, not for every prompt
    w.warn_unused_seed(options, config)
    if config.compile == "on" and sys.stderr.isatty():
        typer.echo("heddle: compiling the step, which later runs find made", err=True)
    return _Job(writer, config, stops, rules, options["batch"])


def _one(job: _Job, text: str, json_: bool) -> int:
    """Continue one text: shown as it is written, where there is one answer."""
    from heddle.decoding.runtime import FinishReason

    if json_ or job.config.samples > 1:
        (answers,) = job.write(job.ask([text]))
        (_Show(job, False) if json_ else _Plain(job.config.samples)).line(1, text, answers)
        return 0
    if sys.stdout.isatty():  # to the eye the text is one; to a pipe the new part alone is of use
        typer.echo(typer.style(text, dim=True), nl=False)
    answer = job.writer.generate(job.ask([text]), job.config, job.stop, _show)[0]
    typer.echo()
    notes = {
        FinishReason.CONTEXT: f"stopped at the model's context of {job.writer.model.context} tokens",
        FinishReason.TIME: "stopped when the time was over",
        FinishReason.STUCK: "stopped where nothing may follow",
    }
    if job.rules.grammar is not None:
        notes[FinishReason.LENGTH] = f"stopped after {job.config.max_tokens} tokens; the text may not be whole yet"
    if answer.completion.reason in notes:
        typer.echo(f"heddle: {notes[answer.completion.reason]}", err=True)
    return 0


def _show(row: int, text: str) -> None:
    typer.echo(text, nl=False)
    sys.stdout.flush()


# --- showing ----------------------------------------------------------------------------------------------------------


@dataclass
class _Plain:
    """Writes an answer a line; what has none is blank, so that lines keep their places."""

    samples: int
    written: int = 0  # prompts

    def line(self, number: int, prompt: str | None, answers: list["GeneratedText"]) -> None:
        """Write the answers to one prompt."""
        self.end(number - 1)
        texts = [answer.text.replace("\r", "\\r").replace("\n", "\\n") for answer in answers]
        for text in texts or [""] * self.samples:
            typer.echo(text)
        self.written = number

    def end(self, number: int) -> None:
        """Write blanks up to a prompt."""
        for _ in range((number - self.written) * self.samples):
            typer.echo()
        self.written = max(self.written, number)


@dataclass(frozen=True)
class _Show:
    """Writes a JSON line for each answer."""

    job: _Job
    placed: bool  # prompts stand in a file, and are told by their lines

    def line(self, number: int, prompt: str | None, answers: list["GeneratedText"]) -> None:
        """Write the answers to one prompt."""
        for sample, answer in enumerate(answers):
            found = answer.completion
            record: dict[str, Any] = {"line": number} if self.placed else {}
            record |= {"prompt": prompt} | ({"sample": sample} if self.job.config.samples > 1 else {})
            record |= {"text": answer.text, "ids": found.ids, "reason": found.reason}
            if self.job.config.alternatives is not None:
                record["tokens"] = [
                    _token(self.job, id, odds.logprob)
                    | {"alternatives": [_token(self.job, other, logprob) for other, logprob in odds.alternatives]}
                    for id, odds in zip(found.ids, found.odds, strict=True)
                ]
            typer.echo(json.dumps(record, ensure_ascii=False))

    def end(self, number: int) -> None:
        """Leave out what has no answer."""


def _token(job: _Job, id: int, logprob: float) -> dict[str, Any]:
    known = id < job.writer.tokenizer.vocab
    return {"id": id, "text": job.writer.tokenizer.token(id) if known else "", "logprob": logprob}
