"""heddle scale: the scaling law of one's own data, and the loss of a larger run predicted before it is trained."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.comparison_options import Again, ExecutorName, Minutes, Processes, Whole, typed_before, watching
from heddle.cli.terminal import print_message

if TYPE_CHECKING:
    from heddle.comparison.scaling import ArchitectureLaw, Scaled


def scale(  # noqa: PLR0913 - one for each option
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|FILE.yaml|CHANGE|FOLDER]... [KEY=VALUE]...",
            help="Recipes or config files, each a curve; changes of the first (model:lstm_lm, norm:layer_norm), also a "
            "curve each; and settings: budgets=1e12,1e13,1e14, sizes=0.5,1,2, larger.tokens=1e8, or any key of the "
            "runs. Or the folder of a study. Default: the first recipe, on bytes.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The folder of the study. Default: scaling/NAME.")
    ] = None,
    processes: Processes = None,
    executor: ExecutorName = "local",
    minutes: Minutes = None,
    whole: Whole = False,
    again: Again = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the grid; train nothing.")] = False,
    pilot: Annotated[bool, typer.Option("--pilot", help="Measure the speed of every size only.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Write down the predicted loss of a larger run; train nothing.")
    ] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Train the larger run that was predicted, and grade the prediction, once.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report again; train nothing.")] = False,
) -> None:
    """Fit the scaling law of your data over sizes and tokens: heddle scale first lstm data=my.txt."""
    from heddle.comparison import Options
    from heddle.comparison.report import write_scaling_report
    from heddle.comparison.scaling import (
        describe_study,
        load_study,
        parse_words,
        predict_larger,
        run_study,
        train_larger,
    )

    _check_modes({"--plan": plan, "--pilot": pilot, "--predict": predict, "--test": test, "--report": report})
    typed, options = list(words or []), Options(executor, processes, True, minutes, whole, again, pilot)
    if len(typed) == 1 and Path(typed[0]).is_dir():
        out, typed = Path(typed[0]), typed_before(Path(typed[0]))
    study = parse_words(typed)
    folder, command = out or Path("scaling") / study.name, shlex.join(["heddle", "scale", *typed])
    if plan:
        for line in describe_study(study, folder):
            print_message(line)
        return
    if predict:
        found = predict_larger(study, folder, command)
    elif report:
        found = load_study(study, folder)
    else:
        with watching(folder, typed) as watcher:
            found = (train_larger if test else run_study)(study, folder, options, watcher)
    page = write_scaling_report(found, command)
    show_laws(found)
    print_message(f"wrote {folder / 'results.csv'} and {page}")


def _check_modes(modes: dict[str, bool]) -> None:
    from heddle.core import UsageError

    given = [name for name, is_on in modes.items() if is_on]
    if len(given) > 1:
        raise UsageError(f"scale: want one of {', '.join(modes)}, got {' and '.join(given)}")


def show_laws(found: "Scaled") -> None:
    """Print the law of each architecture, its best sizes, the prediction and the grade."""
    from heddle.comparison.report import short

    for law in found.laws:
        _show_law(law, found.unit.name)
    if found.prediction is not None:
        print_message(f"predicted on {found.prediction['made']}, before the test: {found.folder / 'prediction.json'}")
        for name, row in found.prediction["architectures"].items():
            size = f"{short(row['parameters'])} parameters on {short(row['tokens'])} tokens"
            low, high = row["band"]
            print_message(f"  {name}: {size}: {row['loss']:.4f} {found.unit.name}, band {low:.4f} to {high:.4f}")
    if found.grade is not None:
        for name, row in found.grade["architectures"].items():
            if row["loss"] is None:
                print_message(f"  {name}: the larger run failed")
                continue
            where = "inside" if row["inside_band"] else "outside"
            print_message(f"  {name}: measured {row['loss']:.4f}: error {row['error']:+.2%}, {where} the band")


def _show_law(law: "ArchitectureLaw", unit: str) -> None:
    from heddle.comparison.report import short

    if law.fit is None or law.projected is None:
        why = law.reason if not law.missing or not law.points else f"{law.missing} runs of its grid are missing"
        print_message(f"{law.name}: no law yet: {why}")
        return
    found = law.constants()
    print_message(f"{law.name}: L = E + A / N^alpha + B / D^beta in {unit}, {len(law.points)} runs, 95 % intervals")
    for name, (value, (low, high)) in found.items():
        print_message(f"  {name:<9} {value:<9.4g} [{low:.4g}, {high:.4g}]")
    print_message(f"  a = beta / (alpha + beta), by variable projection {law.projected.law.exponent:.3f}")
    for one in law.best:
        low, high = one.parameters
        size = f"{short(one.optimum.parameters)} [{short(low)}, {short(high)}] parameters"
        tokens = f"{short(one.optimum.tokens)} tokens: {one.optimum.loss:.4f}"
        print_message(f"  {one.flops:.3g} FLOPs: {size}, {tokens}{'' if one.inside else ' (beyond the grid)'}")
