"""heddle generate: continue one prompt, streamed, or many prompts from a file, in batches."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from heddle.cli import generation_options as opts
from heddle.cli import memory_options as memories
from heddle.cli.line_input import LineErrors, is_interactive, read_lines, stdin_is_piped, valid_lines, valid_records
from heddle.cli.options import Best, Device, Json, Model, Sinks, Weights, open_model
from heddle.cli.progress import progress
from heddle.cli.terminal import DIM, is_terminal, note, write

if TYPE_CHECKING:
    from heddle.decoding.generation import GenerationConfig
    from heddle.decoding.runtime import Request
    from heddle.tasks.generation import GeneratedText, TextConstraints, TextGenerator

AHEAD = 4  # batches read before any is generated, so that prompts of similar length share a batch
ARGUMENT = "prompt"  # the name of prompts on the command line in messages
Prompt = tuple[int, str | None]  # number, text; None: a blank line


def generate(  # noqa: PLR0913 - the options are the contract
    context: typer.Context,
    prompts: opts.Prompts = None,
    file: opts.File = None,
    records: opts.Records = False,
    batch: opts.Batch = 16,
    model: Model = None,
    max_tokens: opts.MaxTokens = 128,
    min_tokens: opts.MinTokens = None,
    temperature: opts.Temperature = None,
    top_k: opts.TopK = None,
    top_p: opts.TopP = None,
    min_p: opts.MinP = None,
    typical: opts.Typical = None,
    contrast: opts.Contrast = None,
    repetition: opts.Repetition = None,
    presence: opts.Presence = None,
    frequency: opts.Frequency = None,
    no_repeat_ngram: opts.NoRepeatNgram = None,
    bias: opts.Bias = None,
    beams: opts.Beams = None,
    length_penalty: opts.LengthPenalty = None,
    coverage: opts.Coverage = None,
    groups: opts.Groups = None,
    diversity: opts.Diversity = None,
    early_stopping: opts.EarlyStop = None,
    seed: opts.Seed = None,
    samples: opts.Samples = 1,
    seconds: opts.Seconds = None,
    logprobs: opts.Logprobs = None,
    stop: opts.StopAt = None,
    regex: opts.Regex = None,
    schema: opts.Schema = None,
    grammar: opts.GrammarFile = None,
    require: opts.Require = None,
    forbid: opts.Forbid = None,
    draft: opts.DraftModel = None,
    cache: opts.CacheKind = None,
    compile: opts.CompileWhen = None,
    window: opts.StreamWindow = None,
    sinks: Sinks = None,
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
    """Generate text from prompts; an encoder-decoder takes them as source.

    One prompt is streamed. With several, each text is written on one line, with line breaks as \\n. Blank and invalid
    prompts give blank lines. Invalid prompts are reported on standard error, and the exit code is then 1.
    """
    return _run(context.params)


def _run(options: opts.Options) -> int:
    """Run the command; return the exit code."""
    from heddle.core import UsageError

    words, file, json_ = options["prompts"] or [], options["file"], options["json_"]
    if words and file is not None:
        raise UsageError("--file: give prompts as arguments or in a file, not both")
    if options["logprobs"] is not None and not json_:
        raise UsageError("--logprobs requires --json")
    if options["records"] and file is None:
        raise UsageError("--records requires --file")
    if len(words) > 1 and "-" in words:
        raise UsageError("prompt: want - alone, since standard input is one prompt; --file - reads one prompt per line")
    if words == ["-"] or (not words and file is None and stdin_is_piped()):
        words = [_standard_input()]
    texts, constraints, line_errors = words or [""], opts.constraints_from(options), LineErrors()
    if file is None and len(texts) == 1:
        return _one(_job(options, constraints), texts[0], json_)
    with _prompts(texts, file, options["records"], line_errors) as prompts:
        job = _job(options, constraints)
        ahead = 1 if file is not None and is_interactive(file) else AHEAD
        show = _Show(job, file is not None) if json_ else _Plain(job.config.samples)
        with progress("generate", file) as advance:
            for number, text, answers in job.answers(prompts, file, line_errors, ahead):
                show.line(number, text, answers)
                advance()
        show.end(max((number for _, number in line_errors.lines), default=0))
    return line_errors.code()


def _standard_input() -> str:
    with read_lines("-") as lines:
        return "\n".join(lines)


@contextmanager
def _prompts(texts: list[str], file: str | None, records: bool, line_errors: LineErrors) -> Iterator[Iterator[Prompt]]:
    """Open the numbered prompts; a missing file is reported before a model is loaded."""
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


# --- generating -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A model, and how it generates."""

    generator: "TextGenerator"
    config: "GenerationConfig"
    stop: list[str]
    constraints: "TextConstraints"
    batch: int

    def answers(
        self, prompts: Iterator[Prompt], file: str | None, line_errors: LineErrors, ahead: int
    ) -> Iterator[tuple[int, str | None, list["GeneratedText"]]]:
        """Yield number, text and generated texts of each good prompt, in order; none for a blank one."""
        name = ARGUMENT if file is None else file
        while gathered := dict(islice(prompts, self.batch * ahead if ahead > 1 else 1)):
            given = [(number, text) for number, text in gathered.items() if text is not None]
            requests = [(n, r) for n, text in given for _, r in line_errors.run_batch(name, [(n, text)], self.ask)]
            requests.sort(key=lambda numbered: _length(numbered[1]))
            found: dict[int, list[GeneratedText]] = {number: [] for number, text in gathered.items() if text is None}
            broken: KeyboardInterrupt | None = None
            try:
                for start in range(0, len(requests), self.batch):
                    found |= line_errors.run_batch(name, requests[start : start + self.batch], self.write)
            except KeyboardInterrupt as error:  # what was generated is still written
                broken = error
            yield from ((number, gathered[number], found[number]) for number in gathered if number in found)
            if broken is not None:
                raise broken

    def ask(self, texts: list[str]) -> list["Request"]:
        """Return a request for each prompt; refuse a prompt that the model cannot read."""
        from heddle.decoding.generation import max_new_tokens

        requests = self.generator.requests(texts, self.config, self.constraints)
        for request in requests:
            max_new_tokens(self.generator.model, request, self.config)
        return requests

    def write(self, requests: list["Request"]) -> list[list["GeneratedText"]]:
        """Return the generated texts of each request."""
        found, each = self.generator.generate(requests, self.config, self.stop), self.config.samples
        return [found[start : start + each] for start in range(0, len(found), each)]


def _length(request: "Request") -> int:
    return len(request.ids) + len(request.source or ())


def _job(options: opts.Options, constraints: "TextConstraints") -> _Job:
    """Load the model and make the generation config."""
    from heddle.tasks.generation import check_stop_strings

    stops = check_stop_strings(options["stop"])
    names = ("memory", "memory_weight", "memory_k", "memory_temperature", "memory_search")
    recall = memories.MemoryWords(*(options[name] for name in names))
    lm = open_model(options["model"], options["device"], options["weights"], options["best"])
    lm = recall.apply(lm)
    generator = lm.text_generator(opts.draft_from(options))
    config = generator.generation_config(opts.generation_options_from(options))
    generator.requests([], config, constraints)  # invalid constraints are reported once, not for every prompt
    opts.warn_unused_seed(options, config)
    if config.compile == "on" and is_terminal(sys.stderr):
        note("compiling the decoding step; later runs find it cached")
    return _Job(generator, config, stops, constraints, options["batch"])


def _one(job: _Job, text: str, json_: bool) -> int:
    """Continue one prompt; a single text is streamed."""
    from heddle.decoding.runtime import FinishReason

    if json_ or job.config.samples > 1:
        (answers,) = job.write(job.ask([text]))
        (_Show(job, False) if json_ else _Plain(job.config.samples)).line(1, text, answers)
        return 0
    if is_terminal(sys.stdout):  # in a terminal the prompt is shown too; a pipe gets the new text alone
        write(text, end="", style=DIM)
    answer = job.generator.generate(job.ask([text]), job.config, job.stop, _show)[0]
    write()
    notes = {
        FinishReason.CONTEXT: f"stopped at the model's context of {job.generator.model.context} tokens",
        FinishReason.TIME: "stopped at the time limit",
        FinishReason.STUCK: "stopped because no token is allowed",
    }
    if job.constraints.grammar is not None:
        notes[FinishReason.LENGTH] = f"stopped after {job.config.max_tokens} tokens; the text may be incomplete"
    if answer.completion.reason in notes:
        note(notes[answer.completion.reason])
    return 0


def _show(row: int, text: str) -> None:
    write(text, end="")


# --- output -----------------------------------------------------------------------------------------------------------


@dataclass
class _Plain:
    """Writes one line per generated text, and blank lines for prompts without one, so that lines correspond."""

    samples: int
    written: int = 0  # prompts

    def line(self, number: int, prompt: str | None, answers: list["GeneratedText"]) -> None:
        """Write the texts of one prompt."""
        self.end(number - 1)
        texts = [answer.text.replace("\r", "\\r").replace("\n", "\\n") for answer in answers]
        for text in texts or [""] * self.samples:
            write(text)
        self.written = number

    def end(self, number: int) -> None:
        """Write blank lines up to a prompt."""
        for _ in range((number - self.written) * self.samples):
            write()
        self.written = max(self.written, number)


@dataclass(frozen=True)
class _Show:
    """Writes a JSON line for each generated text."""

    job: _Job
    placed: bool  # prompts come from a file, and have line numbers

    def line(self, number: int, prompt: str | None, answers: list["GeneratedText"]) -> None:
        """Write the texts of one prompt."""
        for sample, answer in enumerate(answers):
            found = answer.completion
            record: dict[str, Any] = {"line": number} if self.placed else {}
            record |= {"prompt": prompt} | ({"sample": sample} if self.job.config.samples > 1 else {})
            record |= {"text": answer.text, "ids": found.ids, "reason": found.reason}
            if self.job.config.logprobs is not None:
                record["tokens"] = [
                    _token(self.job, id, logprobs.logprob)
                    | {"alternatives": [_token(self.job, other, logprob) for other, logprob in logprobs.alternatives]}
                    for id, logprobs in zip(found.ids, found.token_logprobs, strict=True)
                ]
            write(json.dumps(record, ensure_ascii=False))

    def end(self, number: int) -> None:
        """Write nothing for prompts without a text."""


def _token(job: _Job, id: int, logprob: float) -> dict[str, Any]:
    known = id < job.generator.tokenizer.vocab
    return {"id": id, "text": job.generator.tokenizer.token(id) if known else "", "logprob": logprob}
