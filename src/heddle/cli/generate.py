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

from heddle.cli import wishes as w
from heddle.cli.lines import Faults, Line, good_lines, good_records, lines_of
from heddle.cli.options import Device, Json, Model, open_model
from heddle.cli.progress import progress

if TYPE_CHECKING:
    from heddle.decoding import How, Request
    from heddle.tasks import Answer, Rules, Writer

AHEAD = 4  # batches gathered before any is written, so that prompts of one length meet
ARGUMENT = "prompt"  # what prompts that are given as words are called in messages
Prompt = tuple[int, str]  # number, text


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
    seed: w.Seed = 0,
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
    device: Device = "auto",
    json_: Json = False,
) -> int:
    """Continue texts; with an encoder-decoder, answer them.

    One text is shown as it is written. Of several, each answer is a line, its line breaks written as \\n; --json keeps
    them. A prompt that cannot be used is told on standard error and left out; the exit code is then 1.
    """
    return _run(context.params)


def _run(said: w.Said) -> int:
    """Do what the options say; return the exit code."""
    from heddle.core import UsageError

    words, file, json_ = said["prompts"] or [], said["file"], said["json_"]
    if words and file is not None:
        raise UsageError("file: want either a file of prompts or prompts as words, got both")
    if said["logprobs"] is not None and not json_:
        raise UsageError("logprobs: want --json, to have a place for them")
    texts = [_standard_input()] if words == ["-"] else words or [""]
    rules, faults = w.rules_in(said), Faults()
    if file is None and len(texts) == 1:
        return _one(_job(said, rules), texts[0], json_)
    with _prompts(texts, file, said["records"], faults) as prompts:
        job = _job(said, rules)
        waits = file == "-" and sys.stdin.isatty()  # somebody types, and wants an answer to every line
        with progress("generate", file) as passed:
            for number, text, answers in job.answers(prompts, file, faults, 1 if waits else AHEAD):
                place = {} if file is None else {"line": number}
                for line in _lines(job, text, answers, place) if json_ else map(_flat, answers):
                    typer.echo(line)
                passed()
    return faults.code()


def _standard_input() -> str:
    with lines_of("-") as lines:
        return "\n".join(lines)


@contextmanager
def _prompts(texts: list[str], file: str | None, records: bool, faults: Faults) -> Iterator[Iterator[Prompt]]:
    """Open the prompts, numbered; a file that is not there is told before a model is loaded."""
    if file is None:
        yield iter(list(enumerate(texts, 1)))
    elif records or Path(file).suffix == ".jsonl":
        with good_records(file, faults) as found:
            yield _recorded(found, file, faults)
    else:
        with good_lines(file, faults) as lines:
            yield _plain(lines, file, faults)


def _plain(lines: Iterable[Line], file: str, faults: Faults) -> Iterator[Prompt]:
    for line in lines:
        if line.text.strip():
            yield line.number, line.text
        else:
            faults.tell(file, line.number, "want a prompt, found an empty line")


def _recorded(records: Iterable[tuple[int, dict[str, Any]]], file: str, faults: Faults) -> Iterator[Prompt]:
    from heddle.core import ConfigError

    for number, record in records:
        with faults.at(file, number):
            text = record.get("prompt")
            if not isinstance(text, str):
                raise ConfigError("prompt", want="a text", got=text)
            yield number, text


# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A model, and how it is asked to write."""

    writer: "Writer"
    how: "How"
    stop: list[str]
    rules: "Rules"
    batch: int

    def answers(
        self, prompts: Iterator[Prompt], file: str | None, faults: Faults, ahead: int
    ) -> Iterator[tuple[int, str, list["Answer"]]]:
        """Yield the number, the text and the answers of each prompt that is good, in order."""
        name = ARGUMENT if file is None else file
        while gathered := dict(islice(prompts, self.batch * ahead if ahead > 1 else 1)):
            requests = [(n, r) for n, text in gathered.items() for _, r in faults.apart(name, [(n, text)], self.ask)]
            requests.sort(key=lambda numbered: _length(numbered[1]))
            found: dict[int, list[Answer]] = {}
            broken: KeyboardInterrupt | None = None
            try:
                for start in range(0, len(requests), self.batch):
                    found |= faults.apart(name, requests[start : start + self.batch], self.write)
            except KeyboardInterrupt as error:  # what is written is not lost
                broken = error
            yield from ((number, gathered[number], found[number]) for number in gathered if number in found)
            if broken is not None:
                raise broken

    def ask(self, texts: list[str]) -> list["Request"]:
        """Return the requests of texts; refuse what the model cannot read before any is written."""
        from heddle.decoding import room_for

        requests = self.writer.requests(texts, self.how, self.rules)
        for request in requests:
            room_for(self.writer.model, request, self.how)
        return requests

    def write(self, requests: list["Request"]) -> list[list["Answer"]]:
        """Return the answers of each request."""
        found, each = self.writer.answer(requests, self.how, self.stop), self.how.samples
        return [found[start : start + each] for start in range(0, len(found), each)]


def _length(request: "Request") -> int:
    return len(request.ids) + len(request.source or ())


def _job(said: w.Said, rules: "Rules") -> _Job:
    """Load what is asked for."""
    lm = open_model(said["model"], said["device"])
    writer = lm.writer(w.draft_in(said))
    return _Job(writer, writer.how(w.wishes_of(said)), said["stop"] or [], rules, said["batch"])


def _one(job: _Job, text: str, json_: bool) -> int:
    """Continue one text: shown as it is written, where there is one answer."""
    from heddle.decoding import Reason

    if json_ or job.how.samples > 1:
        (answers,) = job.write(job.ask([text]))
        for line in _lines(job, text, answers, {}) if json_ else map(_flat, answers):
            typer.echo(line)
        return 0
    if sys.stdout.isatty():  # to the eye the text is one; to a pipe the new part alone is of use
        typer.echo(typer.style(text, dim=True), nl=False)
    answer = job.writer.answer(job.ask([text]), job.how, job.stop, _show)[0]
    typer.echo()
    notes = {
        Reason.CONTEXT: f"stopped at the model's context of {job.writer.model.context} tokens",
        Reason.TIME: "stopped when the time was over",
        Reason.STUCK: "stopped where nothing may follow",
    }
    if job.rules.grammar is not None:
        notes[Reason.LENGTH] = f"stopped after {job.how.max_tokens} tokens; the text may not be whole yet"
    if answer.completion.reason in notes:
        typer.echo(f"heddle: {notes[answer.completion.reason]}", err=True)
    return 0


def _show(row: int, text: str) -> None:
    typer.echo(text, nl=False)
    sys.stdout.flush()


def _flat(answer: "Answer") -> str:
    return answer.text.replace("\r", "\\r").replace("\n", "\\n")


def _lines(job: _Job, prompt: str, answers: list["Answer"], place: dict[str, Any]) -> Iterator[str]:
    """Yield a JSON line for each answer to a prompt."""
    for sample, answer in enumerate(answers):
        found = answer.completion
        record = {**place, "prompt": prompt} | ({"sample": sample} if job.how.samples > 1 else {})
        record |= {"text": answer.text, "ids": found.ids, "reason": found.reason}
        if job.how.alternatives is not None:
            record["tokens"] = [
                _token(job, id, odds.logprob)
                | {"alternatives": [_token(job, other, logprob) for other, logprob in odds.alternatives]}
                for id, odds in zip(found.ids, found.odds, strict=True)
            ]
        yield json.dumps(record, ensure_ascii=False)


def _token(job: _Job, id: int, logprob: float) -> dict[str, Any]:
    known = id < job.writer.tokenizer.vocab
    return {"id": id, "text": job.writer.tokenizer.token(id) if known else "", "logprob": logprob}
