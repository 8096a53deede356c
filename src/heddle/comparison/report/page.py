"""The report of a comparison: one self-contained HTML file that opens offline, light and dark."""

import math
import statistics
from collections.abc import Mapping
from html import escape
from pathlib import Path

from heddle.comparison.arms import RATE, TIME, rate_losses
from heddle.comparison.plan import CONTROL_LESS, CONTROL_SAME, TOKENS
from heddle.comparison.report import figures, paper
from heddle.comparison.report.drawings import draw_all, slug, tokens_per_second
from heddle.comparison.report.style import STYLE, scrolling, standalone
from heddle.comparison.statistics import MARGIN, Comparison, Verdict, detectable_effect
from heddle.comparison.suites import RATES
from heddle.comparison.verdicts import Compared
from heddle.core.system import write_text

REPORT, FIGURES = "report.html", "figures"
SHORT = 90  # characters of a difference that are shown at once
ARMS = {
    TOKENS: "At an equal number of tokens",
    RATE: "At an equal number of tokens, each variant with a learning rate of its own",
    TIME: "In equal time on the device: variants whose steps are notably slower or faster",
}


def write_report(compared: Compared, command: str) -> Path:
    """Write report.html into the folder of a comparison, and each figure as an SVG file; return the page's path."""
    path, drawn = compared.folder / REPORT, draw_all(compared)
    (compared.folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        write_text(compared.folder / FIGURES / f"{name}.svg", standalone(figure))
    write_text(path, render(compared, command, drawn))
    return path


def render(compared: Compared, command: str, drawn: Mapping[str, str]) -> str:
    """Return the page, with these figures."""
    costs = [drawn[name] for name in drawn if name.startswith("loss-by-")]
    sections = [
        _head(compared),
        _section("Verdict", verdict_in_words(compared)),
        _section("Effects", _effects(compared, drawn)),
        _section("Every variant", [_table(compared)]),
        _section("Loss against cost", [*costs, _cost_note()] if costs else []),
        _section("Against the paper", _paper(compared, drawn)),
        _section("Curves", [drawn.get("curves", "")]),
        _section("Learning rates", [drawn.get("rates", ""), _rates(compared)]),
        _section("Failures", _failures(compared)),
        _section("Noise and power", [*_noise(compared), drawn.get("power", "")]),
        _section("How to repeat it", _repeat(compared, command)),
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
    lines += _unfinished(compared)
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


def _unfinished(compared: Compared) -> list[str]:
    """Return what is still to be measured: variants without any run, and those with fewer seeds than planned."""
    losses, seeds = compared.losses(), len(compared.plan.suite.seeds)
    names = [variant.name for variant, _ in compared.plan.variants]
    missing = [name for name in names if name not in losses]
    fewer = [f"{name} ({len(losses[name])})" for name in names if name in losses and len(losses[name]) < seeds]
    lines = []
    if fewer:
        lines.append(f"<p><b>Provisional, with fewer than {seeds} seeds:</b> {escape(', '.join(fewer))}.</p>")
    if missing:
        lines.append(f"<p><b>Not measured yet:</b> {escape(', '.join(missing))}.</p>")
    return lines


def _is_control(one: Comparison) -> bool:
    return one.variant in (CONTROL_SAME, CONTROL_LESS)


def _effects(compared: Compared, drawn: Mapping[str, str]) -> list[str]:
    """Return a forest plot for each arm."""
    parts = []
    for arm in compared.arms:
        if figure := drawn.get(f"effects-{arm}"):
            parts += [f"<h3>{ARMS[arm]}</h3>", figure]
    note = (
        f"<p class='soft'>Difference of log loss from the base with the same seeds; bars are 95 % intervals of each "
        f"variant alone, the band is the equivalence margin of {MARGIN:.1%}, an arrow points to an effect beyond the "
        "plot.</p>"
    )
    return [*parts, note] if parts else []


def _cost_note() -> str:
    return "<p class='soft'>The dashed line joins the variants that no other beats in both (Pareto).</p>"


def _table(compared: Compared) -> str:
    losses, speeds = compared.losses(), tokens_per_second(compared)
    speed_head = ("tokens/s",) if speeds else ()
    head = ("variant", "verdict", "loss", "against base", "p (Holm)", "parameters", *speed_head, "what changed")
    verdicts = {one.variant: one for one in compared.comparisons}
    notes = {run.variant: run.note for run in compared.runs}
    rows = []
    for variant, runs in losses.items():
        one = verdicts.get(variant)
        results = compared.of(variant)
        finite = [loss for loss in runs.values() if math.isfinite(loss)]
        spread = f" ± {statistics.stdev(finite):.4f}" if len(finite) > 1 else ""
        some = f", {len(finite)} of {len(runs)} runs" if len(finite) < len(runs) else ""
        loss = f"{statistics.mean(finite):.4f}{spread}{some}" if finite else "failed"
        kind = figures.CLASSES[one.verdict] if one else ""
        cells = [
            f"<td>{escape(variant)}</td>",
            f"<td class='{kind}'>{one.verdict if one else 'base'}</td>",
            f"<td class='n'>{loss}</td>",
            f"<td class='n'>{f'{one.effect:+.2%}' if one and math.isfinite(one.effect) else ''}</td>",
            f"<td class='n'>{f'{one.p_holm:.3g}' if one else ''}</td>",
            f"<td class='n'>{figures.short(results[0].params)}</td>",
            *([f"<td class='n'>{figures.short(speeds[variant]) if variant in speeds else ''}</td>"] if speeds else []),
            f"<td class='d'>{_diff(results[0].diff, notes.get(variant, ''))}</td>",
        ]
        rows.append(f"<tr data-variant='{escape(variant, quote=True)}'>{''.join(cells)}</tr>")
    titles = "".join(f"<th>{name}</th>" for name in head)
    return scrolling(f"<table id='variants'><tr>{titles}</tr>{''.join(rows)}</table>", "Every variant")


def _diff(text: str, note: str) -> str:
    """Return what a variant is in words, and the printed difference from the base, which opens on a click if long."""
    words = f"{escape(note)} " if note else ""
    if not text or (len(text) <= SHORT and not note):
        return f"{words}<code>{escape(text)}</code>" if text else words
    shown = escape(note) if note else f"<code>{escape(text[:SHORT])} ...</code>"
    lines = "<br>".join(f"<code>{escape(line)}</code>" for line in text.split("; "))
    return f"<details><summary>{shown}</summary>{lines}</details>"


def _paper(compared: Compared, drawn: Mapping[str, str]) -> list[str]:
    """Return how our order of the variants agrees with each column of the publication."""
    parts: list[str] = []
    for column, lines in paper.words(compared).items():
        parts += [*lines, drawn.get(f"ranks-{slug(column)}", "")]
    return parts


def _rates(compared: Compared) -> str:
    rows = []
    for variant, losses in rate_losses(compared.plan, compared.results).items():
        cells = "".join(f"<td class='n'>{f'{loss:.4f}' if math.isfinite(loss) else 'failed'}</td>" for loss in losses)
        rows.append(f"<tr><td>{escape(variant)}</td>{cells}</tr>")
    if not rows:
        return ""
    head = "".join(f"<th>rate x {factor:g}</th>" for factor in RATES)
    titles = f"<tr><th>validation loss at a quarter of the steps</th>{head}</tr>"
    return scrolling(f"<table>{titles}{''.join(rows)}</table>", "Learning rates")


def _repeat(compared: Compared, command: str) -> list[str]:
    """Return the exact command, and what it was run with."""
    data = sorted({f"data {run.data_hash}, held out {run.valid_hash}" for run in compared.results})
    about = sorted({f"commit {run.commit or 'unknown'}, torch {run.torch}, {run.device}" for run in compared.results})
    items = "".join(f"<li>{escape(line)}</li>" for line in [*data, *about])
    return [f"<p><code>{escape(command)}</code></p>", f"<ul class='soft'>{items}</ul>"]


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
