"""The report of a comparison: one self-contained HTML file that opens offline, light and dark."""

import math
import statistics
from html import escape
from pathlib import Path

from heddle.comparison.plan import CONTROL_LESS, CONTROL_SAME, TOKENS
from heddle.comparison.report import figures
from heddle.comparison.statistics import MARGIN, Comparison, Verdict, detectable_effect, rank_agreement
from heddle.comparison.verdicts import Compared
from heddle.core.system import write_text

REPORT = "report.html"
SHORT = 90  # characters of a difference that are shown at once
ENOUGH = 8  # variants for an interval of a rank correlation to mean anything
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6472; --page: #fff; --line: #d9dee5; --band: #eef2f6;
  --better: #1f7a4d; --worse: #b3402a; --same: #2a6f97; --open: #8a8f98; --failed: #b3402a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #a3abb8; --page: #14181f; --line: #313a46;
  --band: #1f2731; --better: #5cc191; --worse: #ef8a73; --same: #79b8dd; --open: #8f96a1; --failed: #ef8a73; } }
* { box-sizing: border-box; } body { margin: 0 auto; padding: 1.2rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .4rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, li { max-width: 46rem; } .soft { color: var(--soft); }
code { font-family: ui-monospace, monospace; font-size: .9em; }
svg { width: 100%; min-width: 34rem; height: auto; font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); }
.grid { stroke: var(--line); } .band { fill: var(--band); }
.front { fill: none; stroke: var(--soft); stroke-dasharray: 4 3; }
.bar { stroke-width: 2.5; stroke: var(--open); } .dot { fill: var(--open); }
.line { fill: none; stroke-width: 1.8; } .spread { opacity: .18; }
.bar.better { stroke: var(--better); } .dot.better, td.better { fill: var(--better); color: var(--better); }
.bar.worse { stroke: var(--worse); } .dot.worse, td.worse, td.failed { fill: var(--worse); color: var(--worse); }
.bar.same { stroke: var(--same); } .dot.same, td.same { fill: var(--same); color: var(--same); }
.c0 { fill: #2a6f97; stroke: #2a6f97; } .c1 { fill: #c8553d; stroke: #c8553d; } .c2 { fill: #588157; stroke: #588157; }
.c3 { fill: #8d6a9f; stroke: #8d6a9f; } .c4 { fill: #b08900; stroke: #b08900; } .c5 { fill: #5b6770; stroke: #5b6770; }
.c6 { fill: #d36082; stroke: #d36082; } .c7 { fill: #2f9c95; stroke: #2f9c95; } polyline.line { fill: none; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; min-width: 40rem; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { min-width: 9rem; } summary { cursor: pointer; }
"""


def write_report(compared: Compared, command: str) -> Path:
    """Write report.html into the folder of a comparison; return its path."""
    path = compared.folder / REPORT
    write_text(path, render(compared, command))
    return path


def render(compared: Compared, command: str) -> str:
    """Return the page."""
    sections = [
        _head(compared),
        _section("Verdict", verdict_in_words(compared)),
        _section("Effects", [figures.forest(compared.comparisons, MARGIN), _margin_note()]),
        _section("Every variant", [_table(compared)]),
        _section("Loss against cost", _costs(compared)),
        _section("Against the paper", _paper(compared)),
        _section("Curves", [figures.curves(_bands(compared), ("step", "held-out loss in nats"))]),
        _section("Learning rates", _rates(compared)),
        _section("Failures", _failures(compared)),
        _section("Noise and power", _noise(compared)),
        _section("How to repeat it", [f"<p><code>{escape(command)}</code></p>"]),
    ]
    body = "\n".join(section for section in sections if section)
    title = escape(f"{compared.plan.suite.name}: a comparison at equal budget")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>\n{body}\n</body></html>\n"
    )


def _head(compared: Compared) -> str:
    runs, base = compared.results, compared.plan.base
    steps = max((run.config.training.steps for run in compared.runs), default=0)
    tokens = figures.short(steps * compared.plan.tokens_per_step)
    facts = f"{len(runs)} of {len(compared.runs)} runs, {tokens} tokens each, objective {base.objective.kind}"
    device = ", ".join(sorted({run.device for run in runs if run.device})) or "no device yet"
    return f"<h1>{escape(compared.plan.suite.name)}</h1><p class='soft'>{escape(facts)}; {escape(device)}</p>"


def _section(title: str, parts: list[str]) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>" if any(parts) else ""


def verdict_in_words(compared: Compared) -> list[str]:
    """Return paragraphs that say what was found, and what this budget cannot say."""
    if not compared.comparisons:
        return ["<p>Nothing can be said yet: no variant has a run to compare with the base.</p>"]
    groups = {
        verdict: [one.variant for one in compared.comparisons if one.verdict is verdict and not _is_control(one)]
        for verdict in Verdict
    }
    lines = []
    for verdict, text in (
        (Verdict.BETTER, "Better than the base"),
        (Verdict.WORSE, "Worse than the base"),
        (Verdict.EQUIVALENT, f"Equivalent to the base within {MARGIN:.1%}"),
        (Verdict.UNDECIDED, "Undecided at this budget"),
        (Verdict.FAILED, "Failed in at least one run"),
    ):
        if groups[verdict]:
            lines.append(f"<p><b>{text}:</b> {escape(', '.join(groups[verdict]))}.</p>")
    if compared.controls_hold is not None:
        said = "came out right" if compared.controls_hold else "<b>did not come out right: mistrust this table</b>"
        lines.append(
            f"<p class='soft'>The two controls {said}: the base under a second name must not be flagged, the base "
            "with 90 % of the tokens must be worse.</p>"
        )
    lines.append(
        "<p class='soft'>This is a statement about this data, this size and this budget. A longer training may order "
        "the variants otherwise.</p>"
    )
    return lines


def _is_control(one: Comparison) -> bool:
    return one.variant in (CONTROL_SAME, CONTROL_LESS)


def _margin_note() -> str:
    return (
        f"<p class='soft'>Difference of log loss from the base with the same seeds; bars are 95 % intervals of each "
        f"variant alone, the band is the equivalence margin of {MARGIN:.1%}.</p>"
    )


def _table(compared: Compared) -> str:
    head = ("variant", "verdict", "loss", "against base", "p (Holm)", "parameters", "tokens/s", "what changed")
    losses = compared.losses()
    verdicts = {one.variant: one for one in compared.comparisons}
    rows = []
    for variant, runs in losses.items():
        one = verdicts.get(variant)
        results = compared.of(variant)
        finite = [loss for loss in runs.values() if math.isfinite(loss)]
        spread = f" ± {statistics.stdev(finite):.4f}" if len(finite) > 1 else ""
        loss = f"{statistics.mean(finite):.4f}{spread}" if finite else "failed"
        kind = figures.CLASSES[one.verdict] if one else ""
        rates = [r.tokens_s for r in results if r.tokens_s is not None]
        speed = figures.short(statistics.median(rates)) if rates else ""
        cells = [
            f"<td>{escape(variant)}</td>",
            f"<td class='{kind}'>{one.verdict if one else 'base'}</td>",
            f"<td class='n'>{loss}</td>",
            f"<td class='n'>{f'{one.effect:+.2%}' if one and math.isfinite(one.effect) else ''}</td>",
            f"<td class='n'>{f'{one.p_holm:.3g}' if one else ''}</td>",
            f"<td class='n'>{figures.short(results[0].params)}</td>",
            f"<td class='n'>{speed}</td>",
            f"<td>{_diff(results[0].diff)}</td>",
        ]
        rows.append(f"<tr data-variant='{escape(variant, quote=True)}'>{''.join(cells)}</tr>")
    titles = "".join(f"<th>{name}</th>" for name in head)
    return f"<div class='scroll'><table id='variants'><tr>{titles}</tr>{''.join(rows)}</table></div>"


def _diff(text: str) -> str:
    """Return the printed difference from the base; a long one opens on a click."""
    if len(text) <= SHORT:
        return f"<code>{escape(text)}</code>"
    return f"<details><summary><code>{escape(text[:SHORT])} ...</code></summary><code>{escape(text)}</code></details>"


def _means(compared: Compared) -> dict[str, float]:
    means = {}
    for variant, runs in compared.losses().items():
        finite = [loss for loss in runs.values() if math.isfinite(loss)]
        if finite and len(finite) == len(runs):
            means[variant] = statistics.mean(finite)
    return means


def _costs(compared: Compared) -> list[str]:
    means, found = _means(compared), []
    seconds = {variant: _seconds(compared, variant) for variant in means}
    for label, costs in (
        ("parameters", {variant: float(compared.of(variant)[0].params) for variant in means}),
        ("training FLOPs per token", {variant: float(compared.of(variant)[0].flops_token) for variant in means}),
        ("seconds of training, alone on its device", seconds),
    ):
        points = {variant: (cost, means[variant]) for variant, cost in costs.items() if cost is not None}
        if points:
            found.append(figures.scatter(points, (label, "loss"), f"Loss against {label}", pareto=True))
    return found


def _seconds(compared: Compared, variant: str) -> float | None:
    """Return how long a run takes alone: as the pilot timed its steps, or as it was measured; None: not known."""
    runs = [run for run in compared.runs if run.variant == variant and run.arm == TOKENS]
    step = compared.times.find(runs[0].config) if runs else None
    if step is not None:
        return step * runs[0].config.training.steps
    measured = [one.gpu_s for one in compared.of(variant) if one.gpu_s is not None]
    return statistics.mean(measured) if measured else None


def _paper(compared: Compared) -> list[str]:
    """Return how our order of the variants agrees with each column of the publication."""
    means, found = _means(compared), []
    for column, published in compared.plan.suite.paper.items():
        theirs = {name: figure.loss for name, figure in published.items()}
        both = sorted(set(means) & set(theirs))
        if len(both) < ENOUGH:
            continue
        agreement = rank_agreement(means, theirs)
        found.append(
            f"<p>Order by the published {column}, {agreement.variants} variants: Spearman {agreement.spearman:.2f} "
            f"[{agreement.spearman_interval[0]:.2f}, {agreement.spearman_interval[1]:.2f}], Kendall "
            f"{agreement.kendall:.2f} [{agreement.kendall_interval[0]:.2f}, {agreement.kendall_interval[1]:.2f}].</p>"
        )
        points = {name: (theirs[name], means[name]) for name in both}
        title = f"Our losses against the published {column}"
        found.append(figures.scatter(points, (f"published {column}", "our loss"), title, log=False))
    return found


def _bands(compared: Compared) -> dict[str, list[tuple[float, float, float, float]]]:
    bands: dict[str, list[tuple[float, float, float, float]]] = {}
    for variant in compared.losses():
        by_step: dict[int, list[float]] = {}
        for result in compared.of(variant):
            for step, loss in result.curve:
                by_step.setdefault(step, []).append(loss)
        points = [(step, statistics.median(v), min(v), max(v)) for step, v in sorted(by_step.items())]
        if points:
            bands[variant] = [(float(step), middle, low, high) for step, middle, low, high in points]
    return bands


def _rates(compared: Compared) -> list[str]:
    rows = []
    for variant in dict.fromkeys(result.variant for result in compared.results):
        found = {r.arm: r for r in compared.results if r.variant == variant and r.arm.startswith("rate")}
        if found:
            cells = "".join(
                f"<td class='n'>{escape(arm)}: {f'{r.loss:.4f}' if math.isfinite(r.loss) else r.status}</td>"
                for arm, r in sorted(found.items())
            )
            rows.append(f"<tr><td>{escape(variant)}</td>{cells}</tr>")
    return [f"<div class='scroll'><table>{''.join(rows)}</table></div>"] if rows else []


def _failures(compared: Compared) -> list[str]:
    lost = [result for result in compared.results if result.status != "done"]
    items = "".join(
        f"<li>{escape(r.variant)}, seed {r.seed}, {escape(r.arm)}: {r.status}: {escape(r.reason)}</li>" for r in lost
    )
    return [f"<ul>{items}</ul>"] if items else ["<p>None.</p>"]


def _noise(compared: Compared) -> list[str]:
    noise = compared.noise
    if noise is None or not noise.freedom:
        return ["<p>One seed: the noise is unknown, and nothing can be decided.</p>"]
    seeds = max(len(runs) for runs in compared.losses().values())
    effect = detectable_effect(noise.deviation, seeds, len(compared.comparisons))
    return [
        f"<p>Two runs of one variant with the same data order differ by a deviation of {noise.deviation:.3%} of the "
        f"loss each ({noise.freedom} degrees of freedom; equal deviations, Levene's p = {noise.levene:.2f}). With "
        f"{seeds} seeds and {len(compared.comparisons)} variants an effect of {effect:.2%} is found in 80 % of "
        "cases.</p>"
    ]
