"""heddle rescore: choose the best candidate of each n-best list with language models, and measure WER or BLEU."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.line_input import MAX_LINE_BYTES, LineErrors, valid_records
from heddle.cli.options import Best, Device, Force, Json, Weights, check_output, open_model, settings_of
from heddle.cli.progress import progress
from heddle.cli.terminal import print_report, write

if TYPE_CHECKING:
    from heddle.tasks.metrics import CorpusMetric
    from heddle.tasks.rescoring import Features, FeatureWeights, NBest, Rescorer, RescoringReport, ScoringModel
    from heddle.text.normalize import NormalizerConfig

BATCH = 512  # lists per batch
WRITTEN = {"id", "reference", "source", "context", "candidates"}  # keys of a list that --scored writes
WEIGHT = 0.5  # default weight of a model
Numbered = tuple[int, "NBest"]


class Metric(StrEnum):
    """The metric against references."""

    WER = "wer"
    BLEU = "bleu"


class TextEnding(StrEnum):
    """What ends a candidate, and is scored with it."""

    DOCUMENT = "document"
    LINE = "line"
    NONE = "none"


NBestFile = Annotated[
    str, typer.Argument(metavar="NBEST.jsonl", help="N-best lists, one JSON object per line; -: standard input.")
]
Models = Annotated[
    list[str] | None,
    typer.Option("-m", "--model", metavar="MODEL", help="A model; repeatable. Default: the newest run."),
]
NoModel = Annotated[bool, typer.Option("--no-model", help="Use only the scores in the lists, no model.")]
Weight = Annotated[
    list[str] | None,
    typer.Option(
        metavar="W|NAME=W", help="Weight of every model, or of one model or score by name. Default for a model: 0.5."
    ),
]
Tune = Annotated[
    str | None,
    typer.Option(
        metavar="DEV.jsonl",
        help="Tune the weights on these lists with references (MERT), starting from the given weights.",
    ),
]
Normal = Annotated[str | None, typer.Option(metavar="KEY=VALUE,...", help="Normalize texts first, such as case=lower.")]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="The key of the reference in the lists.")]
ScoredFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Save the lists with all model scores, to rescore them without a model.",
    ),
]


def rescore(  # noqa: PLR0913 - the options are the contract
    file: NBestFile,
    model: Models = None,
    no_model: NoModel = False,
    weight: Weight = None,
    bonus: Annotated[float, typer.Option(help="Word insertion bonus: added per word of a candidate.")] = 0.0,
    tune: Tune = None,
    normal: Normal = None,
    ending: Annotated[
        TextEnding, typer.Option(help="End marker that is appended to a candidate and scored with it.")
    ] = TextEnding.DOCUMENT,
    reference: Key = None,
    metric: Annotated[Metric, typer.Option(help="The metric: wer or bleu.")] = Metric.WER,
    scored: ScoredFile = None,
    force: Force = False,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
    json_: Json = False,
) -> int:
    """Choose the best candidate of each n-best list.

    A list is {"id", "candidates": [{"text", "score" or "scores"}], "reference", "source", "context"}; only the texts
    are required. Writes JSON lines: id, index, text, total, scores. With references, WER or BLEU before, after and at
    best (oracle) follow on standard error, or as the last JSON line; the result of --tune comes first. Blank lines are
    skipped. An invalid line is reported on standard error and left out; the exit code is then 1.
    """
    from heddle.core.system import replacing
    from heddle.tasks.metrics import metric_named
    from heddle.tasks.rescoring import Rescorer, RescoringConfig

    if scored is not None:
        check_output(scored, _is_scored, force)
    form = _form(normal)
    common, by_name = _weights(weight or [])
    _check("bonus", bonus)
    if no_model:
        _check_no_model(model, weight, ending, {"weights": weights != "auto", "best": best})
    line_errors, measure = LineErrors(), metric_named(metric.value, form)
    with ExitStack() as stack:
        records = stack.enter_context(valid_records(file, line_errors))
        dev = None if tune is None else stack.enter_context(valid_records(tune, line_errors))
        out = (
            None if scored is None else stack.enter_context(replacing(scored))
        )  # the lists may be read from the same file
        scoring_models = () if no_model else tuple(_load_models(model or [None], device, weights, best))
        rescorer = Rescorer(scoring_models, RescoringConfig(form=form, ending=ending.value))
        job = _Job(rescorer, measure, line_errors, reference, (common, bonus, by_name))
        weighting = None if dev is None else _tune(job, dev, str(tune), json_)
        _choose(job, records, file, weighting, _Out(json_, out))
        _check_nothing_lost(scored, file, line_errors)
    return line_errors.code()


def _is_scored(path: Path) -> bool:
    """Tell whether a file is an earlier result of --scored: candidates with their texts and scores by name alone."""
    from heddle.core.system import parse_json

    with path.open("rb") as file:
        first = parse_json(file.readline(MAX_LINE_BYTES).decode(errors="replace"))
    if not isinstance(first, dict) or not set(first) <= WRITTEN or not isinstance(first.get("candidates"), list):
        return False
    return all(isinstance(each, dict) and set(each) == {"text", "scores"} for each in first["candidates"])


def _check_nothing_lost(scored: Path | None, file: str, line_errors: LineErrors) -> None:
    """Refuse to overwrite the input file if some of its lines are invalid and would be lost."""
    from heddle.core import UsageError

    lost = any(name == file for name, _ in line_errors.lines)  # not those of the file to tune on
    if lost and scored is not None and file != "-" and scored.exists() and scored.samefile(file):
        raise UsageError(f"{scored}: not overwritten, because it is also the input and has invalid lines")


def _check_no_model(
    model: list[str] | None, weight: list[str] | None, ending: TextEnding, flags: dict[str, bool]
) -> None:
    """Refuse options that have no effect without a model."""
    from heddle.core import UsageError

    common = [word for word in weight or [] if "=" not in word]
    others = (("ending", ending is not TextEnding.DOCUMENT), *flags.items())
    for name, value in (("model", model), ("weight", common), *others):
        if value:
            only = "; only --weight NAME=W has one" if name == "weight" else ""
            raise UsageError(f"--{name} has no effect with --no-model{only}")


def _form(words: str | None) -> "NormalizerConfig | None":
    """Read `case=lower,accents=drop`; an empty text means the default normalization."""
    from heddle.core import decode
    from heddle.text.normalize import NormalizerConfig

    if words is None:
        return None
    return decode(NormalizerConfig, settings_of([word for word in words.split(",") if word.strip()]), "normal")


def _check(name: str, value: float) -> None:
    from heddle.core import ConfigError

    if not abs(value) < 1e6:  # NaN is refused too
        raise ConfigError(name, want="a number below a million", got=value)


def _weights(words: Sequence[str]) -> tuple[float, dict[str, float]]:
    """Read weights: a number for every model, NAME=NUMBER for one feature."""
    from heddle.core import ConfigError

    common, by_name = WEIGHT, dict[str, float]()
    if len({word.rpartition("=")[0] for word in words}) < len(words):
        raise ConfigError("weight", want="one for every model, or for each name", got=", ".join(words))
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise ConfigError("weight", want="a number or NAME=NUMBER", got=word) from None
        _check("weight", value)
        if name:
            by_name[name] = value
        else:
            common = value
    return common, by_name


def _load_models(names: Sequence[str | None], device: str, weights: str, best: bool) -> "Iterator[ScoringModel]":
    """Load models; each is named after its folder, with a number if the name repeats."""
    from heddle.tasks.rescoring import ScoringModel

    count: dict[str, int] = {}
    for name in names:
        lm = open_model(name, device, weights, best)
        short = "model" if name is None else Path(name).name or "model"
        count[short] = count.get(short, 0) + 1
        yield ScoringModel(short if count[short] == 1 else f"{short}-{count[short]}", lm.model, lm.tokenizer)


# --- rescoring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """The settings for all lists."""

    rescorer: "Rescorer"
    measure: "CorpusMetric"
    line_errors: LineErrors
    reference: str | None
    weights: tuple[float, float, Mapping[str, float]]  # of models, of words, by name

    def batches(self, records: Iterator[tuple[int, dict[str, Any]]], file: str) -> "Iterator[list[Numbered]]":
        """Yield batches of lists with their line numbers; an invalid record is reported."""
        from heddle.tasks.rescoring import parse_nbest

        def lists() -> "Iterator[Numbered]":
            for number, record in records:
                with self.line_errors.at(file, number):
                    yield number, parse_nbest(record, self.reference)

        remaining = lists()
        while batch := list(islice(remaining, BATCH)):
            yield batch

    def scored(
        self, batch: "Sequence[Numbered]", file: str, weighting: "FeatureWeights"
    ) -> "list[tuple[NBest, Features]]":
        """Return the features of every valid list."""

        def work(lists: "list[NBest]") -> "Sequence[Features]":
            found = self.rescorer.features(lists)
            weighting.arrays(found)  # refuses a score that has no weight
            return found

        by_number = dict(batch)
        return [(by_number[number], features) for number, features in self.line_errors.run_batch(file, batch, work)]

    def weighting(self, first: "NBest") -> "FeatureWeights":
        """Return the weights for lists with the scores of the first one."""
        from heddle.tasks.rescoring import feature_weights

        common, bonus, by_name = self.weights
        names = [scoring_model.name for scoring_model in self.rescorer.scoring_models]
        return feature_weights(first.names, names, by_name, weight=common, bonus=bonus)


def _tune(job: _Job, records: Iterator[tuple[int, dict[str, Any]]], file: str, json_: bool) -> "FeatureWeights":
    """Tune the weights on a development file, and report the metric there."""
    from heddle.core import DataError
    from heddle.tasks.rescoring import measure_weights, metric_counts, tune_weights

    weighting: FeatureWeights | None = None
    pairs: list[tuple[NBest, Features]] = []
    with progress("tune", file) as advance:
        for batch in job.batches(records, file):
            known = [(number, each) for number, each in batch if each.reference is not None]
            if known:
                weighting = weighting or job.weighting(known[0][1])
                pairs += job.scored(known, file, weighting)
            for _ in batch:
                advance()
    if weighting is None or not pairs:
        raise DataError(f"{file}: want one list or more with a reference, to tune on, found none")
    features, counts = [f for _, f in pairs], metric_counts([each for each, _ in pairs], job.measure)
    found = tune_weights(features, counts, job.measure, weighting)
    _report(file, measure_weights(features, counts, job.measure, found), found, json_)
    return found


def _choose(
    job: _Job, records: Iterator[tuple[int, dict[str, Any]]], file: str, weighting: "FeatureWeights | None", out: "_Out"
) -> None:
    """Choose and write, batch by batch; then report the metric if there were references."""
    from heddle.tasks.rescoring import MetricTally, metric_counts

    tally = MetricTally(job.measure)
    with progress("rescore", file) as advance:
        for batch in job.batches(records, file):
            weighting = weighting or job.weighting(batch[0][1])
            pairs = job.scored(batch, file, weighting)
            if pairs:
                chosen = weighting.arrays([f for _, f in pairs]).choose(weighting.vector)
                for (each, features), index in zip(pairs, chosen.tolist(), strict=True):
                    out.write(each, features, index, weighting)
            known = [(each, f) for each, f in pairs if each.reference is not None]
            if known:
                counts = metric_counts([each for each, _ in known], job.measure)
                tally.add(weighting.arrays([f for _, f in known], counts), weighting)
            for _ in batch:
                advance()
    if weighting is not None and tally.lists:
        _report(file, tally.report(), weighting, out.json_)


@dataclass(frozen=True)
class _Out:
    """Writes the results."""

    json_: bool
    scored: IO[bytes] | None

    def write(self, each: "NBest", features: "Features", index: int, weighting: "FeatureWeights") -> None:
        """Write the choice, and the whole list if --scored is given."""
        scores = {name: float(values[index]) for name, values in features.items()}
        total = sum(weighting.weights[name] * value for name, value in scores.items())
        text = each.candidates[index].text
        row = {"id": each.id, "index": index, "text": text, "total": total, "scores": scores}
        write(json.dumps(row, ensure_ascii=False))
        if self.scored is not None:
            self.scored.write((json.dumps(_to_record(each, features), ensure_ascii=False) + "\n").encode())


def _to_record(each: "NBest", features: "Features") -> dict[str, Any]:
    """Return a list as plain data, with the score of each model."""
    from heddle.tasks.rescoring import WORDS

    names = [name for name in features if name != WORDS]
    candidates = [
        {"text": c.text, "scores": {name: float(features[name][i]) for name in names}}
        for i, c in enumerate(each.candidates)
    ]
    known = {"id": each.id, "reference": each.reference, "source": each.source, "context": each.context or None}
    return {key: value for key, value in known.items() if value is not None} | {"candidates": candidates}


def _report(file: str, report: "RescoringReport", weighting: "FeatureWeights", json_: bool) -> None:
    if json_:
        write(json.dumps({"file": file} | asdict(report) | {"weights": weighting.weights}, ensure_ascii=False))
        return
    name = report.measure.upper()
    print_report(
        f"{file}: {name} {report.before:.2f} before, {report.after:.2f} after, {report.oracle:.2f} at best; "
        f"{report.changed:,} of {report.lists:,} lists changed, {report.better:,} for the better, "
        f"{report.worse:,} for the worse"
    )
    weights = ", ".join(f"{name} {weight:.4g}" for name, weight in weighting.weights.items())
    print_report(f"weights: {weights}")
