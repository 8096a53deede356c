"""heddle translate: translate line by line, with n-best lists and BLEU against a reference."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.line_input import InputLine, LineErrors, is_interactive, read_lines, valid_lines
from heddle.cli.options import Best, Device, Json, Model, Weights, open_model
from heddle.cli.progress import count_lines, progress
from heddle.cli.terminal import print_report, write

if TYPE_CHECKING:
    from heddle.decoding.generation import GenerationConfig
    from heddle.lm import LM
    from heddle.tasks.generation import CandidateRanking, TaskSettings, Translation, Translator

Options = dict[str, Any]  # command-line options; None: not given
Method = tuple["GenerationConfig", "CandidateRanking"]  # how to generate candidates, and how to rank them
MethodFor = Callable[["TaskSettings"], Method]  # by a model's own settings


class Selection(StrEnum):
    """How the best translation of a line is chosen."""

    BEAMS = "beams"
    MBR = "mbr"


def translate(  # noqa: PLR0913 - the options are the contract
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A text with one sentence per line; -: standard input.")
    ] = "-",
    model: Model = None,
    task: Annotated[
        str | None, typer.Option(help="Which of the translations that an imported T5 was trained for: en_to_de.")
    ] = None,
    choose: Annotated[
        Selection, typer.Option(help="Beam search, or minimum Bayes risk over samples.")
    ] = Selection.BEAMS,
    beams: Annotated[
        int | None, typer.Option(help="Number of beams; 1: greedy. Default: the model's own, or 4.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Rank beams by log-probability divided by length to this power. Default: own or 1."),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Weight of the coverage penalty: attending to the whole source.")
    ] = None,
    groups: Annotated[int | None, typer.Option(help="Groups of diverse beam search.")] = None,
    diversity: Annotated[
        float | None, typer.Option(help="Diversity penalty of a token, per earlier group that chose it in this step.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="With --choose mbr: number of samples. Default: 32.")] = None,
    utility: Annotated[
        str | None, typer.Option(help="With --choose mbr: similarity chrf, bleu or words. Default: chrf.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="With --choose mbr: sampling temperature. Default: 1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="With --choose mbr: random seed of the samples. Default: 0.")] = None,
    n_best: Annotated[
        int, typer.Option(help="With --json: number of candidates per line, in the format of `heddle rescore`.")
    ] = 1,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of new tokens. Default: the model's own, or 512.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size: lines per batch.")] = 32,
    reference: Annotated[Path | None, typer.Option(help="Reference translations, one per line, for BLEU.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="With --reference: ignore letter case.")] = False,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Translate each line with a model trained on pairs.

    An imported model is used with its own settings for translation, such as T5's prefix and Marian's beams.

    Blank lines stay blank, in the JSON too. A line that cannot be translated is reported on standard error and becomes
    a blank line, or is missing in the JSON; the exit code is then 1. With --reference the BLEU score follows, on
    standard error or as the last JSON line.
    """
    from heddle.core import check_at_least
    from heddle.tasks.generation import TaskSettings

    check_at_least(1, batch=batch)
    _check_case(reference, lowercase)
    search_options: Options = {"beams": beams, "length_penalty": length_penalty, "coverage": coverage}
    search_options |= {"groups": groups, "diversity": diversity, "max_tokens": max_tokens}
    sampling_options: Options = {"samples": samples, "utility": utility, "temperature": temperature, "seed": seed}
    sampling_options |= {"max_tokens": max_tokens}
    make = _minimum_bayes_risk if choose is Selection.MBR else _beam_search
    method = partial(make, search_options, sampling_options, n_best)
    line_errors, show = (
        LineErrors(),
        _Show(n_best, json_, None if reference is None else _references(reference, file, lowercase)),
    )
    method(TaskSettings())  # options that cannot be are refused before the model is read
    with valid_lines(file, line_errors) as lines:
        lm = open_model(model, device, weights, best)
        _run(_translator(lm, method, task, batch, file), lines, file, line_errors, show)
    show.end(lowercase)
    return line_errors.code()


# --- options ----------------------------------------------------------------------------------------------------------


def _beam_search(search_options: Options, sampling_options: Options, n_best: int, own: "TaskSettings") -> Method:
    """Return the config of beam search; options that are typed come before the model's own."""
    from heddle.core import ConfigError, check_at_least
    from heddle.tasks.generation import BEAMS, SearchOrder, length_limits

    _refuse(sampling_options, Selection.MBR)
    defaults = {**BEAMS, **length_limits(own)}
    given = {name: value for name, value in search_options.items() if value is not None}
    beams = {**defaults, **own.options, **given}["beams"]
    check_at_least(1, beams=beams)
    if not 1 <= n_best <= beams:
        raise ConfigError("n_best", want=f"1 to the {beams} beams", got=n_best)
    typed: Any = given | {"samples": n_best}
    return own.generation_config(typed, defaults), SearchOrder()


def _minimum_bayes_risk(search_options: Options, sampling_options: Options, n_best: int, own: "TaskSettings") -> Method:
    """Return the config of sampling, and the ranking by minimum Bayes risk."""
    from heddle.core import ConfigError, check_at_least
    from heddle.decoding import generation_config
    from heddle.decoding.generation import MultinomialSampling
    from heddle.tasks.generation import MinimumBayesRisk, length_limits
    from heddle.tasks.metrics import similarity_named

    _refuse(search_options, Selection.BEAMS)
    kept = ("max_tokens", "min_tokens", "no_repeat_ngram", "forced_end")
    options: Options = {"samples": 32, "utility": "chrf", "temperature": 1.0, "seed": 0, **length_limits(own)}
    options |= {name: own.options[name] for name in kept if name in own.options}
    options |= {name: value for name, value in sampling_options.items() if value is not None}
    check_at_least(1, samples=options["samples"])
    if not 1 <= n_best <= options["samples"]:
        raise ConfigError("n_best", want=f"1 to the {options['samples']} samples", got=n_best)
    utility, choices = options.pop("utility"), {name: options.pop(name) for name in ("temperature", "seed")}
    sampled: Any = {**options, "strategy": MultinomialSampling(**choices)}
    return generation_config(sampled), MinimumBayesRisk(similarity_named(utility))


def _check_case(reference: Path | None, lowercase: bool) -> None:
    from heddle.core import UsageError

    if lowercase and reference is None:
        raise UsageError("--lowercase requires --reference")


def _refuse(options: Options, required: Selection) -> None:
    from heddle.core import UsageError

    for name, value in options.items():
        if value is not None and name != "max_tokens":
            raise UsageError(f"--{name.replace('_', '-')} is only used with --choose {required}")


def _translator(lm: "LM", method: MethodFor, task: str | None, batch: int, file: str) -> "Translator":
    """Return the translator of a model, by its own settings."""
    from dataclasses import replace

    from heddle.tasks.generation import translation_settings_of, translator

    own = translation_settings_of(lm.origin.settings, lm.tokenizer, task)
    config, ranking = method(own)
    made = replace(translator(lm.model, lm.tokenizer, config, batch, ranking=ranking), prefix=own.prefix)
    return replace(made, batch=1, ahead=1) if is_interactive(file) else made


def _references(reference: Path, file: str, lowercase: bool) -> list[str]:
    """Read the references; refuse, before the translation, another number of them than of lines."""
    from heddle.core import DataError
    from heddle.tasks.generation import bleu_metric

    bleu_metric(lowercase=lowercase)  # fails before the translation if sacrebleu is missing
    with read_lines(str(reference)) as lines:
        found = list(lines)
    wanted = count_lines(file) if Path(file).is_file() else len(found)
    if len(found) != wanted:
        raise DataError(f"{reference}: want {wanted:,} lines, one for each of {file}, found {len(found):,}")
    return found


# --- line by line -----------------------------------------------------------------------------------------------------


@dataclass
class _Show:
    """Writes the translation of each line, and keeps it for BLEU."""

    n_best: int
    json: bool
    references: list[str] | None
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        from heddle.core import UsageError

        if self.n_best > 1 and not self.json:
            raise UsageError("--n-best above 1 requires --json")

    def line(self, line: InputLine, found: "Translation | None") -> None:
        """Write the translation of a line, or a blank line if there is none, so that lines correspond."""
        self.fill(line.number - 1)
        if not self.json or found is None:
            self._write("" if found is None else found.text)
            return
        self.found.append(found.text)
        write(json.dumps(self._record(line, found), ensure_ascii=False))

    def fill(self, lines: int) -> None:
        """Write blank lines up to a number of lines."""
        for _ in range(lines - len(self.found)):
            self._write("")

    def _write(self, text: str) -> None:
        self.found.append(text)
        if not self.json:
            write(text)

    def _record(self, line: InputLine, found: "Translation") -> dict[str, Any]:
        record: dict[str, Any] = {"line": line.number, "text": found.text}
        if self.n_best == 1:
            return record
        candidates = [{"text": c.text, **c.scores} for c in found.candidates[: self.n_best]]
        record |= {"id": line.number, "source": line.text, "candidates": candidates or [{"text": "", "score": 0.0}]}
        if self.references is not None and line.number <= len(self.references):
            record["reference"] = self.references[line.number - 1]
        return record

    def end(self, lowercase: bool) -> None:
        """Write BLEU if there are references."""
        from heddle.tasks.generation import bleu_score

        if self.references is None:
            return
        found = bleu_score(self.found, self.references, lowercase=lowercase)
        if self.json:
            write(json.dumps({"bleu": found.bleu, "signature": found.signature}))
        else:
            print_report(f"BLEU {found.bleu:.2f}  {found.signature}")


def _run(task: "Translator", lines: Iterator[InputLine], file: str, line_errors: LineErrors, show: _Show) -> None:
    """Translate all valid lines."""
    with progress("translate", file) as advance:
        while gathered := list(islice(lines, task.batch * task.ahead)):
            sources: dict[int, list[int] | None] = {}
            for line in gathered:
                with line_errors.at(file, line.number):
                    sources[line.number] = task.source(line.text)
            found = dict(zip(sources, task.translate(list(sources.values())), strict=True))
            for line in gathered:
                show.line(line, found.get(line.number))
                advance()
    show.fill(max((number for _, number in line_errors.lines), default=0))  # the last lines may be the bad ones
