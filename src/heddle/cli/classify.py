"""heddle classify: the class of each text by an encoder, or few-shot by a model that writes text, as JSON lines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.few_shot import (
    Calibrate,
    DrawSeed,
    ExamplesFile,
    Instruction,
    Labels,
    Prompted,
    Shots,
    Template,
    classify_prompt,
    texts_and_seconds,
)
from heddle.cli.labelled_input import TextInput, pair_up, reference_labels, run_batches, text_inputs, write_record
from heddle.cli.line_input import LineErrors
from heddle.cli.options import Best, Device, Model, Weights, open_model
from heddle.cli.terminal import note

if TYPE_CHECKING:
    from heddle.lm import LM
    from heddle.tasks.few_shot import FewShot
    from heddle.tasks.inputs import MediaInput, MediaInputs
    from heddle.tasks.labelling import ClassifiedText


def classify(  # noqa: PLR0913 - the options are the contract
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|-]",
            help="A text per line, JSON lines with text and pair, or a CSV or TSV table; -: standard input. "
            "Of a model of images: an image, or a folder of them.",
        ),
    ] = "-",
    model: Model = None,
    reference: Annotated[
        Path | None, typer.Option(help="The right labels, to grade: a label per line, or a table with labels.")
    ] = None,
    labels: Labels = None,
    examples: ExamplesFile = None,
    k: Shots = None,
    seed: DrawSeed = 0,
    calibrate: Calibrate = False,
    template: Template = None,
    instruction: Instruction = "",
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Classify each text.

    Writes JSON lines: line, text, label, probability, and the probabilities of all classes. Blank lines are skipped. A
    line that cannot be classified is reported on standard error; the exit code is then 1. A text that is longer than
    the model's context is read in windows, which are averaged. With --reference the last line has the grades.

    Images, one or a folder of them, are classified by a model that was trained on some, such as a Vision Transformer:
    the lines have path, label, probability and probabilities. With --reference FOLDER the class of each is the name of
    the folder that it lies in.

    With --labels or --examples a model that writes text is prompted (few-shot): the label with the most probability
    after K examples and the text. Examples that do not fit into its context are left out whole, with a notice.
    """
    if _means_media(file):
        return _classify_media(file, (model, device, weights, best), reference)
    line_errors, found = LineErrors(), {}
    gold = None if reference is None else reference_labels(reference)
    prompting = classify_prompt(examples, labels, k, seed, calibrate, (template, instruction))
    with text_inputs(file, line_errors) as inputs:
        task = _task(open_model(model, device, weights, best), prompting)
        results = run_batches(inputs, file, line_errors, task, "classify")
        for one, result in results:
            found[one.line] = result
            pair = {} if one.pair is None else {"pair": one.pair}
            write_record({"line": one.line, "text": one.text, **pair, **result.plain()})
    if gold is not None and reference is not None:
        write_record(_grades(*pair_up(found, gold, reference)))
    return line_errors.code()


def _means_media(path: str) -> bool:
    """Tell whether a path means images: one of them, or a folder."""
    from heddle.data.media import IMAGES

    return path != "-" and (Path(path).is_dir() or Path(path).suffix.lower() in IMAGES)


def _classify_media(file: str, chosen: tuple[str | None, str, str, bool], reference: Path | None) -> int:
    """Classify images, or other media of the kind that the model was trained on."""
    from heddle.tasks.inputs import MediaInputs
    from heddle.tasks.labelling import MediaClassifier

    lm = open_model(*chosen)
    inputs = MediaInputs.of(lm.origin.settings, lm.model.reads)
    results = list(MediaClassifier.of(lm.model, inputs).run(inputs.find([file])))
    for one in results:
        if one.found is None:
            note(one.error or "")
        else:
            write_record({"path": one.input.origin, **one.found.plain()})
    if reference is not None:
        good = [(one.found, one.input) for one in results if one.found is not None]
        gold = _media_labels(inputs, reference, [one for _, one in good])
        write_record(_grades([found for found, _ in good], gold))
    return int(any(one.found is None for one in results))


def _media_labels(inputs: "MediaInputs", reference: Path, several: "list[MediaInput]") -> list[tuple[str, ...]]:
    """Return the right labels: of a manifest its texts, else the names of folders; refuse one that lacks some."""
    from heddle.core import DataError

    named = _means_media(str(reference))
    found = inputs.find([reference])
    gold = {one.key: (one.media.path.parent.name,) if named else tuple(dict.fromkeys(one.texts)) for one in found}
    missing = next((one.origin for one in several if not gold.get(one.key)), None)
    if missing is not None:
        raise DataError(f"{reference}: want a label for each file that was read, found none for {missing}")
    return [gold[one.key] for one in several]


def _task(lm: "LM", prompting: "FewShot | None") -> "Callable[[list[TextInput]], Sequence[ClassifiedText]]":
    """Return what classifies the texts of a batch."""
    from heddle.tasks.few_shot import FewShotClassifier
    from heddle.tasks.labelling import Classifier

    if prompting is None:
        run = Classifier.of(lm.model, lm.tokenizer).run
        return lambda batch: run(*texts_and_seconds(batch))
    return Prompted(lambda pairs: FewShotClassifier.of(lm.model, lm.tokenizer, prompting, pairs).run, prompting, "pair")


def _grades(found: "list[ClassifiedText]", gold: list[tuple[str, ...]]) -> dict[str, object]:
    """Return accuracy and macro F1; of several classes, those of the sets; of numbers, correlations."""
    from heddle.core.metrics import accuracy, macro_f1, pearson, spearman

    if found and found[0].score is not None:
        mine, right = [float(one.score or 0.0) for one in found], [float(names[0]) for names in gold]
        return {"graded": len(gold), "spearman": spearman(mine, right), "pearson": pearson(mine, right)}
    mine_names = [tuple(sorted(one.labels)) for one in found]
    wanted = [tuple(sorted(names)) for names in gold]
    if any(len(names) != 1 for names in (*mine_names, *wanted)):
        return {"graded": len(gold), "exact_match": accuracy(mine_names, wanted)}
    grades = {"accuracy": accuracy(mine_names, wanted), "macro_f1": macro_f1(mine_names, wanted)}
    return {"graded": len(gold), **grades}
