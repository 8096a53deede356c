"""heddle transcribe: sounds to text, with n-best lists, a language model beside, and error rates."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.line_input import read_lines
from heddle.cli.options import Best, Device, Json, Model, Weights, open_model
from heddle.cli.terminal import note, print_report, write

if TYPE_CHECKING:
    from heddle.tasks.recognition import Transcription, Utterance

BESIDE = "beside"  # as a reference: the texts of the folder or the manifest itself


def transcribe(  # noqa: PLR0913 - the options are the contract
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Sounds, folders of sounds, or manifests (.jsonl, .tsv).")
    ],
    model: Model = None,
    beams: Annotated[
        int | None, typer.Option(help="Number of beams; 1: greedy. Default: 8, or 16 with CTC alone.")
    ] = None,
    ctc_weight: Annotated[
        float | None, typer.Option(help="Weight of CTC against attention, of a model that has both. Default: 0.3.")
    ] = None,
    lm: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A language model with the same tokenizer (shallow fusion).")
    ] = None,
    lm_weight: Annotated[float | None, typer.Option(help="Weight of the language model. Default: 0.3.")] = None,
    length_bonus: Annotated[float | None, typer.Option(help="Added to a score for each token. Default: 0.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum number of tokens of a text. Default: 256.")] = None,
    n_best: Annotated[
        int, typer.Option(help="With --json: number of candidates per sound, in the format of `heddle rescore`.")
    ] = 1,
    reference: Annotated[
        str | None,
        typer.Option(help="References, one per line, for WER and CER; `beside`: the texts of the folder or manifest."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size: sounds per batch.")] = 16,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Transcribe sounds with a model trained on sounds and texts.

    One sound gives its text alone; several give a line each, the file's name before the text. A sound that cannot be
    used is reported on standard error, and the exit code is then 1. With --reference the word and the character error
    rate follow, on standard error or as the last JSON line.
    """
    from heddle.core import UsageError, check_at_least
    from heddle.tasks.recognition import FusedModel, TranscribeOptions, transcriber

    check_at_least(1, n_best=n_best, batch=batch)
    if n_best > 1 and not json_:
        raise UsageError("--n-best above 1 requires --json")
    for file in files:
        if not Path(file).expanduser().exists():
            raise UsageError(f"{file}: no such file")
    references = None if reference in (None, BESIDE) else _references(Path(str(reference)))
    given: dict[str, Any] = {"beams": beams, "ctc_weight": ctc_weight, "lm_weight": lm_weight}
    given |= {"length_bonus": length_bonus, "max_tokens": max_tokens}
    options: TranscribeOptions = {k: v for k, v in given.items() if v is not None}  # type: ignore[assignment]
    fused = None
    if lm is not None:
        other = open_model(lm, device, weights)
        fused = FusedModel(other.model, other.tokenizer)
    found = open_model(model, device, weights, best)
    task = transcriber(found.model, found.tokenizer, found.origin.settings, options, fused, batch)
    show = _Show(n_best, json_, alone=len(files) == 1 and Path(files[0]).is_file())
    utterances = task.utterances(files)
    if references is not None:
        utterances = iter(_with_references(list(utterances), references, str(reference)))
    for number, (utterance, transcription) in enumerate(task.run(utterances)):
        wanted = None if reference is None else utterance.reference
        show.sound(number, utterance, transcription, wanted)
    show.end(reference is not None)
    return 1 if show.bad else 0


def _references(path: Path) -> list[str]:
    with read_lines(str(path)) as lines:
        return list(lines)


def _with_references(utterances: "list[Utterance]", references: list[str], file: str) -> "list[Utterance]":
    """Give each sound its line; refuse fewer lines than sounds, and more."""
    from heddle.core import UsageError

    if len(references) != len(utterances):
        raise UsageError(f"{file}: want a line for each of {len(utterances)} sounds, got {len(references)}")
    return [replace(one, reference=line) for one, line in zip(utterances, references, strict=True)]


class _Show:
    """Writes each transcription, and keeps it with its reference for the error rates."""

    def __init__(self, n_best: int, json_: bool, alone: bool) -> None:
        self.n_best, self.json, self.alone, self.bad = n_best, json_, alone, 0
        self.texts: list[str] = []
        self.references: list[str] = []

    def sound(self, number: int, utterance: "Utterance", found: "Transcription", reference: str | None) -> None:
        """Write one transcription, or report why there is none."""
        if found.fault is not None:
            self.bad += 1
            note(f"{utterance.name}: {found.fault}")
        if reference is not None:
            self.texts.append(found.text)
            self.references.append(reference)
        if self.json:
            write(json.dumps(self._record(number, utterance, found, reference), ensure_ascii=False))
        elif found.fault is None:
            write(found.text if self.alone else f"{utterance.name}\t{found.text}")

    def _record(
        self, number: int, utterance: "Utterance", found: "Transcription", reference: str | None
    ) -> dict[str, Any]:
        record: dict[str, Any] = {"file": utterance.name, "text": found.text}
        if found.fault is not None:
            return record | {"error": found.fault}
        if self.n_best > 1:
            candidates = [{"text": one.text, "scores": dict(one.scores)} for one in found.candidates[: self.n_best]]
            record |= {"id": number, "candidates": candidates or [{"text": "", "scores": {"score": 0.0}}]}
        return record if reference is None else record | {"reference": reference}

    def end(self, graded: bool) -> None:
        """Write the error rates, if there are references."""
        from heddle.core import UsageError
        from heddle.tasks.recognition import error_rates

        if not graded:
            return
        if not self.references:
            raise UsageError("reference: want a text for one sound or more, found none")
        found = error_rates(self.texts, self.references)
        if self.json:
            write(json.dumps({"wer": found.wer, "cer": found.cer, "words": found.words, "sounds": found.sounds}))
        else:
            print_report(
                f"WER {found.wer:.2f} %  CER {found.cer:.2f} %  {found.words:,} words in {found.sounds:,} sounds"
            )
