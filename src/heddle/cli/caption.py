"""heddle caption: describe images and videos, as JSON lines, graded by BLEU-4, CIDEr-D and exact match."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.labelled_input import write_record
from heddle.cli.options import Best, Device, Model, Weights, open_model
from heddle.cli.progress import stepped
from heddle.cli.terminal import note

if TYPE_CHECKING:
    from heddle.tasks.generation import Caption
    from heddle.tasks.inputs import MediaInput

Key = tuple[str, float, float | None]


def caption(  # noqa: PLR0913 - the options are the contract
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Images or videos, folders of them, or manifests that name them."),
    ],
    model: Model = None,
    beams: Annotated[int | None, typer.Option(help="Number of beams; 1: greedy. Default: 4.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Rank beams by log-probability divided by length to this power. Default: 1.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum number of new tokens. Default: 64.")] = None,
    n_best: Annotated[int, typer.Option(help="Number of candidates per file, in the format of `heddle rescore`.")] = 1,
    batch: Annotated[int, typer.Option(help="Batch size: files per batch.")] = 32,
    reference: Annotated[
        str | None,
        typer.Option(help="To grade: a manifest with path and text, or a folder with captions beside the files."),
    ] = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Describe each image or video with a model that was trained on some with captions.

    Writes JSON lines: path, text; with --n-best also candidates with their scores. A file that cannot be read is
    reported on standard error; the exit code is then 1. With --reference the last line has the grades: BLEU-4 by
    sacrebleu, CIDEr-D and the share of captions that equal a reference, each against all captions of a picture.
    """
    from heddle.cli.console import TerminalConsole
    from heddle.core import ConfigError, check_at_least
    from heddle.tasks.generation import CAPTION_BEAMS, Captioner
    from heddle.tasks.inputs import MediaInputs

    check_at_least(1, batch=batch)
    if not 1 <= n_best <= (beams or CAPTION_BEAMS):
        raise ConfigError("n_best", want=f"1 to the {beams or CAPTION_BEAMS} beams", got=n_best)
    lm = open_model(model, device, weights, best)
    inputs = MediaInputs.of(lm.origin.settings, lm.model.reads)
    options: Any = {"beams": beams, "length_penalty": length_penalty, "max_tokens": max_tokens, "samples": n_best}
    task = Captioner.of(lm.model, lm.tokenizer, inputs, options, batch)
    several = inputs.find(files)
    gold = None if reference is None else _references(inputs.find([reference]), several, reference)
    found: list[Caption] = []
    with stepped("caption", TerminalConsole(stderr=True)) as advance:
        for one in task.run(several):
            found.append(one)
            _show(one, n_best)
            advance(len(found), len(several))
    if gold is not None:
        _grade([one for one in found if one.error is None], gold)
    return int(any(one.error is not None for one in found))


def _show(one: "Caption", n_best: int) -> None:
    if one.error is not None:
        note(one.error)
        return
    record: dict[str, Any] = {"path": one.input.origin, "text": one.text}
    if n_best > 1:
        candidates = [{"text": c.text, **c.scores} for c in one.candidates.candidates[:n_best]]
        record |= {"id": one.input.origin, "candidates": candidates}
        record |= {"reference": one.input.texts[0]} if one.input.texts else {}
    write_record(record)


def _references(known: "list[MediaInput]", several: "list[MediaInput]", reference: str) -> "dict[Key, tuple[str, ...]]":
    """Return the captions of each file; refuse a reference that lacks some."""
    from heddle.core import DataError
    from heddle.tasks.metrics import sacrebleu_for

    sacrebleu_for("grading captions")  # fails before the work if sacrebleu is missing
    found = {one.key: one.texts for one in known if one.texts}
    missing = next((one.origin for one in several if one.key not in found), None)
    if missing is not None:
        raise DataError(f"{reference}: want a caption of each file, found none of {missing}")
    return found


def _grade(found: "list[Caption]", gold: "dict[Key, tuple[str, ...]]") -> None:
    """Write the grades."""
    from heddle.tasks.generation import grade_captions

    if not found:
        return
    grades = grade_captions([one.text for one in found], [gold[one.input.key] for one in found])
    record = {"graded": len(found), "bleu": grades.bleu, "cider": grades.cider, "exact_match": grades.exact_match}
    write_record(record | {"signature": grades.signature})
