"""What a report draws of a comparison: each figure by its name, which is the name of its file too."""

import math
import statistics

from heddle.comparison.arms import rate_losses
from heddle.comparison.plan import CONTROLS, TOKENS
from heddle.comparison.report import figures, plots
from heddle.comparison.statistics import MARGIN, Losses, detectable_effect, power
from heddle.comparison.suites import RATES
from heddle.comparison.verdicts import Compared

ENOUGH = 8  # variants for an interval of a rank correlation to mean anything
HIGHLIGHTED = 3  # curves of the best and of the worst variants, where there are more than fit
SEEDS = (3, 5, 8)  # for which power is drawn, beside those that there are


def draw_all(compared: Compared) -> dict[str, str]:
    """Return all figures that the results give."""
    drawn = {f"effects-{arm}": figures.forest(one.comparisons, MARGIN) for arm, one in compared.arms.items()}
    drawn |= _costs(compared) | _ranks(compared)
    drawn["curves"] = _curves(compared)
    drawn["rates"] = plots.sensitivity(rate_losses(compared.plan, compared.results), RATES)
    drawn["power"] = _power(compared)
    return {name: figure for name, figure in drawn.items() if figure}


def slug(words: str) -> str:
    """Return a name for a file."""
    return "-".join(words.split())


def kinds_of(compared: Compared) -> dict[str, str]:
    """Return the colour of each variant by its verdict; the base has one of its own."""
    kinds = {one.variant: figures.CLASSES[one.verdict] for one in compared.comparisons}
    return kinds | {compared.plan.suite.base_name: "base"}


def mean_losses(compared: Compared, controls: bool = False) -> dict[str, float]:
    """Return the mean loss of each variant whose runs all ended."""
    means = {}
    for variant, runs in compared.losses().items():
        finite = [loss for loss in runs.values() if math.isfinite(loss)]
        if finite and len(finite) == len(runs) and (controls or variant not in CONTROLS):
            means[variant] = statistics.mean(finite)
    return means


def _costs(compared: Compared) -> dict[str, str]:
    means, kinds, found = mean_losses(compared), kinds_of(compared), {}
    first = {variant: compared.of(variant)[0] for variant in means}
    for name, label, costs in (
        ("loss-by-parameters", "parameters", {v: float(one.params) for v, one in first.items()}),
        ("loss-by-flops", "training FLOPs per token", {v: float(one.flops_token) for v, one in first.items()}),
        ("loss-by-seconds", "seconds of training, alone on its device", {v: seconds_of(compared, v) for v in means}),
    ):
        points = {variant: (cost, means[variant]) for variant, cost in costs.items() if cost is not None}
        if points:
            labels = figures.Labels(label, "loss", f"Loss against {label}")
            found[name] = figures.scatter(points, labels, kinds, pareto=True)
    return found


def seconds_of(compared: Compared, variant: str) -> float | None:
    """Return how long a run takes alone: as the pilot timed its steps, or as it was measured; None: not known."""
    runs = [run for run in compared.runs if run.variant == variant and run.arm == TOKENS]
    step = compared.times.find(runs[0].config) if runs else None
    if step is not None:
        return step * runs[0].config.training.steps
    measured = [one.gpu_s for one in compared.of(variant) if one.gpu_s is not None]
    return statistics.mean(measured) if measured else None


def tokens_per_second(compared: Compared) -> dict[str, float]:
    """Return the speed of each variant alone on its device: as the pilot timed its steps, or as it was measured."""
    found = {}
    for variant in compared.losses():
        seconds, steps = seconds_of(compared, variant), [one.steps for one in compared.of(variant)]
        if seconds:
            found[variant] = statistics.mean(steps) * compared.plan.tokens_per_step / seconds
    return found


def shared_losses(compared: Compared, theirs: dict[str, float]) -> Losses:
    """Return our losses of the variants that a publication has too; a failed run has an infinite one."""
    return {name: runs for name, runs in compared.losses().items() if name in theirs}


def _ranks(compared: Compared) -> dict[str, str]:
    found, kinds = {}, kinds_of(compared)
    for column, published in compared.plan.suite.paper.items():
        theirs = {name: figure.loss for name, figure in published.items()}
        ours = {n: statistics.mean(runs.values()) for n, runs in shared_losses(compared, theirs).items()}
        if len(ours) >= ENOUGH:
            column_of = {name: theirs[name] for name in ours}
            found[f"ranks-{slug(column)}"] = plots.ranks(ours, column_of, kinds, column)
    return found


def _curves(compared: Compared) -> str:
    bands = _bands(compared)
    order = sorted(bands, key=lambda name: bands[name][-1][1])
    base = compared.plan.suite.base_name
    chosen = [name for name in order if name != base]
    if len(order) > figures.PALETTE:
        chosen = [*chosen[:HIGHLIGHTED], *chosen[-HIGHLIGHTED:]]
    named = {name: bands[name] for name in (base, *chosen) if name in bands}
    faint = {name: band for name, band in bands.items() if name not in named}
    title = "Held-out loss over training, with the range over seeds"
    return figures.curves(named, figures.Labels("step", "held-out loss in nats", title), faint)


def _bands(compared: Compared) -> dict[str, list[tuple[float, float, float, float]]]:
    bands = {}
    for variant in compared.losses():
        by_step: dict[int, list[float]] = {}
        for result in compared.of(variant):
            for step, loss in result.curve:
                by_step.setdefault(step, []).append(loss)
        points = [(float(step), statistics.median(v), min(v), max(v)) for step, v in sorted(by_step.items())]
        if points and variant not in CONTROLS:
            bands[variant] = points
    return bands


def _power(compared: Compared) -> str:
    noise, count = compared.noise, len(compared.comparisons)
    if noise is None or not noise.freedom or not noise.deviation:
        return ""
    seeds = sorted({*SEEDS, max(len(runs) for runs in compared.losses().values())} - {1})
    reach = 1.6 * detectable_effect(noise.deviation, seeds[0], count)
    effects = [reach * number / 40 for number in range(41)]
    return plots.power_curves({
        f"{n} seeds": [(effect, power(effect, noise.deviation, n, count)) for effect in effects] for n in seeds
    })  # fmt: skip
