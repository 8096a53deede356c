"""The report of a study of scaling: one self-contained HTML file that opens offline, and its figures as SVG files."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from heddle.comparison.report import scaling_figures as figures
from heddle.comparison.report.figures import short
from heddle.comparison.report.page import REPORT
from heddle.comparison.report.style import STYLE, scrolling, standalone
from heddle.comparison.scaling import ArchitectureLaw, Scaled
from heddle.comparison.statistics import optimum_at
from heddle.core.system import write_text

WIDEST_SEARCH = 1e6  # times the compute, in which a loss is looked for
HALVINGS = 60
NOTHING = 1e-6  # a constant below it is at the edge of the fit: a term that is not there


def write_scaling_report(found: Scaled, command: str) -> Path:
    """Write report.html and the figures into the folder of a study; return the path of the page."""
    drawn = _figures(found)
    for name, figure in drawn.items():
        write_text(found.folder / f"{name}.svg", standalone(figure))
    path = found.folder / REPORT
    write_text(path, render(found, command, drawn))
    return path


def _figures(found: Scaled) -> dict[str, str]:
    unit = found.unit.name
    drawn = {f"profiles-{_slug(law.name)}": figures.profiles(law, unit) for law in found.laws}
    drawn |= {
        "best-size": figures.best_sizes(found.laws),
        "best-tokens": figures.best_sizes(found.laws, tokens=True),
        "loss": figures.frontier(found.laws, tests_of(found), unit),
        "errors": figures.errors(found.laws),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def tests_of(found: Scaled) -> dict[str, dict[str, Any]]:
    """Return the predicted and the measured loss of each larger run."""
    rows: dict[str, dict[str, Any]] = {}
    grades = found.grade["architectures"] if found.grade is not None else {}
    for name, row in (found.prediction or {"architectures": {}})["architectures"].items():
        grade = grades.get(name, {})
        rows[name] = row | {"predicted": row["loss"], "measured": grade.get("loss"), "grade": grade}
    return rows


def render(found: Scaled, command: str, drawn: Mapping[str, str]) -> str:
    """Return the page."""
    names = " and ".join(law.name for law in found.laws)
    title = escape(f"Scaling of {names}")
    device = ", ".join(sorted({one.device for one in found.results if one.device})) or "no device yet"
    facts = (
        f"{len(found.results)} runs done, {found.left} to go; one epoch is {found.grid.text.tokens:,} tokens; {device}"
    )
    sections = [
        f"<h1>{title}</h1><p class='soft'>{escape(facts)}</p>",
        _section("In words", in_words(found)),
        _section("Loss over compute", [drawn.get("loss", "")]),
        _section("Prediction and test", _tests(found)),
        _section("Constants", [_constants(found.laws)]),
        _section("Best size and tokens", [_best(found.laws), drawn.get("best-size", ""), drawn.get("best-tokens", "")]),
        _section("Loss over size at each budget", [drawn.get(f"profiles-{_slug(law.name)}", "") for law in found.laws]),
        _section("How firm the law is", [_stability(found.laws), drawn.get("errors", "")]),
        _section("Learning rates", _rates(found)),
        _section("Every run", [_runs(found)]),
        _section("Left out and failed", _lost(found.laws)),
        _section("How to repeat it", [f"<p><code>{escape(command)}</code></p>"]),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>\n{body}\n</body></html>\n"
    )


def _section(title: str, parts: Sequence[str]) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>" if any(parts) else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td class='n'>{escape(cell)}</td>" for cell in rest)
        lines.append(f"<tr><td>{escape(first)}</td>{cells}</tr>")
    return scrolling(f"<table id='{name}'><tr>{titles}</tr>{''.join(lines)}</table>", name)


def _range(pair: Sequence[float], digits: str = ".4g") -> str:
    low, high = (value if value > NOTHING else 0.0 for value in pair)
    return f"[{low:{digits}}, {high:{digits}}]"


# --- sections ---------------------------------------------------------------------------------------------------------


def in_words(found: Scaled) -> list[str]:
    """Return paragraphs that say what was found, and what these runs cannot say."""
    lines = []
    for law in found.laws:
        if law.fit is None:
            lines.append(f"<p><b>{escape(law.name)}</b>: no law yet: {escape(law.reason)}.</p>")
            continue
        value, edges = law.constants()["exponent"]
        last = next(one for one in law.best if one.flops == law.profile.budgets[-1])
        lines.append(
            f"<p><b>{escape(law.name)}</b>: the best size grows as compute to the power {value:.2f} "
            f"{_range(edges, '.2f')}. At {last.flops:.3g} FLOPs it has {short(last.optimum.parameters)} parameters and "
            f"reads {short(last.optimum.tokens)} tokens: {last.optimum.loss:.4f} {escape(found.unit.name)}.</p>"
        )
    lines += [f"<p>{escape(line)}</p>" for line in worth(found.laws)]
    lines.append(
        "<p class='soft'>The law is about this text, these recipes and fresh tokens, within one epoch. E is what the "
        "fit leaves without bound on size and tokens; it is not the entropy of the text. Dashed lines are "
        "extrapolated.</p>"
    )
    return lines


def worth(laws: Sequence[ArchitectureLaw]) -> list[str]:
    """Say how much compute another architecture needs for the loss of the first at its largest budget."""
    known, lines = [law for law in laws if law.fit is not None], []
    for law in known[1:]:
        first = known[0]
        flops = first.profile.budgets[-1]
        wanted = optimum_at(first.law, flops, first.cost).loss
        ratio = _compute_for(law, wanted, flops)
        if ratio is None:
            lines.append(f"{law.name} never reaches the loss of {first.name} at {flops:.3g} FLOPs, by its law.")
        else:
            few = "less" if ratio < 1 else "more"
            times = 1 / ratio if ratio < 1 else ratio
            lines.append(
                f"For the loss of {first.name} at {flops:.3g} FLOPs, {law.name} needs {times:.3g} times {few} compute."
            )
    return lines


def _compute_for(law: ArchitectureLaw, loss: float, flops: float) -> float | None:
    """Return the compute, as a ratio, at which a law's lowest loss is the wanted one, by bisection."""
    low, high = 1 / WIDEST_SEARCH, WIDEST_SEARCH
    if optimum_at(law.law, flops * high, law.cost).loss > loss:
        return None
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        above = optimum_at(law.law, flops * middle, law.cost).loss > loss
        low, high = (middle, high) if above else (low, middle)
    return high


def _tests(found: Scaled) -> list[str]:
    if found.prediction is None:
        return []
    rows = []
    for name, row in tests_of(found).items():
        grade = row["grade"]
        measured = "" if row["measured"] is None else f"{row['measured']:.4f}"
        error = f"{grade['error']:+.2%}" if row["measured"] is not None else ""
        verdict = "not run yet" if not grade else "inside" if grade["inside_band"] else "outside"
        size = f"{row['layers']}x{row['width']}, {short(row['parameters'])}"
        rows.append([
            name, size, short(row["tokens"]), f"{row['times_largest_budget']:.3g}", f"{row['predicted']:.4f}",
            _range(row["interval"]), _range(row["band"]), measured, error, verdict,
        ])  # fmt: skip
    head = (
        "architecture",
        "size",
        "tokens",
        "x compute",
        "predicted",
        "95 % interval",
        "band",
        "measured",
        "error",
        "band",
    )
    made = (
        f"<p>Written on {escape(found.prediction['made'])}, before the larger run, from {found.prediction['runs']} "
        f"runs (hash {found.prediction['runs_hash'][:12]}, commit {escape(found.prediction['commit'])}). The band is "
        "the interval together with the fits that leave out one budget and the second estimator.</p>"
    )
    return [made, _table(head, rows, "tests")]


def _constants(laws: Sequence[ArchitectureLaw]) -> str:
    rows = []
    for law in laws:
        if law.fit is None or law.projected is None or law.by_stack is None:
            continue
        cells = [f"{_figure(value)} {_range(edges, '.3g')}" for value, edges in law.constants().values()]
        rows.append([law.name, *cells, f"{law.fit.error:.2%}"])
        second = law.projected.law
        rows.append([f"{law.name}, variable projection", *_plain(second), f"{law.projected.error:.2%}"])
        rows.append([f"{law.name}, without embeddings", *_plain(law.by_stack.law), f"{law.by_stack.error:.2%}"])
    head = ("", "E", "A", "B", "alpha", "beta", "a = beta / (alpha + beta)", "error")
    return _table(head, rows, "constants") if rows else ""


def _figure(value: float) -> str:
    return f"{value:.4g}" if value > NOTHING else "0"


def _plain(law: Any) -> list[str]:
    return [_figure(value) for value in (law.E, law.A, law.B, law.alpha, law.beta, law.exponent)]


def _best(laws: Sequence[ArchitectureLaw]) -> str:
    rows = []
    for law in laws:
        for one in law.best:
            size, tokens = one.parameters, one.tokens
            rows.append([
                f"{law.name}{'' if one.inside else ', beyond the grid'}", f"{one.flops:.3g}",
                f"{short(one.optimum.parameters)} [{short(size[0])}, {short(size[1])}]",
                f"{short(one.optimum.tokens)} [{short(tokens[0])}, {short(tokens[1])}]",
                f"{one.optimum.loss:.4f} {_range(one.loss)}", "" if one.parabola is None else short(one.parabola),
            ])  # fmt: skip
    head = ("", "FLOPs", "parameters", "tokens", "loss", "parabola")
    return _table(head, rows, "best") if rows else ""


def _stability(laws: Sequence[ArchitectureLaw]) -> str:
    rows = []
    for law in laws:
        for budget, fit in law.without.items():
            here = [one for one in law.points if one.cell.budget == budget]
            off = [float(fit.law.loss(one.cell.parameters, one.cell.tokens)) / one.loss - 1 for one in here]
            worst = max(off, key=abs)
            rows.append([f"{law.name} without {budget:.3g} FLOPs", *_plain(fit.law), f"{worst:+.2%}"])
    head = ("", "E", "A", "B", "alpha", "beta", "a", "largest error on what was left out")
    return _table(head, rows, "stability") if rows else ""


def _rates(found: Scaled) -> list[str]:
    parts = [f"<p>{escape(law.name)}: {escape(law.rates)}.</p>" for law in found.laws if law.rates]
    searched = sorted(
        (one for one in found.results if one.arm.startswith("rate")), key=lambda one: (one.variant, one.arm)
    )
    rows = [[one.variant, one.arm, "failed" if one.loss_valid is None else f"{one.loss_valid:.4f}"] for one in searched]
    return [*parts, _table(("", "rate", "held-out loss in nats"), rows, "rates")] if rows else parts


def _runs(found: Scaled) -> str:
    rows = []
    for law in found.laws:
        for one in sorted(law.points, key=lambda one: (one.cell.budget, one.cell.parameters, one.seed)):
            cell = one.cell
            rows.append([
                cell.variant, str(one.seed), f"{cell.flops:.3g}", f"{cell.parameters:,}", f"{cell.stack_parameters:,}",
                f"{cell.tokens:,}", f"{cell.flops_token:,}", f"{one.loss:.4f}",
            ])  # fmt: skip
    head = ("", "seed", "FLOPs", "parameters", "without embeddings", "tokens", "FLOPs a token", found.unit.name)
    return _table(head, rows, "runs") if rows else ""


def _lost(laws: Sequence[ArchitectureLaw]) -> list[str]:
    items = [*(line for law in laws for line in law.profile.left_out), *(line for law in laws for line in law.failed)]
    lines = "".join(f"<li>{escape(line)}</li>" for line in items)
    return [f"<ul>{lines}</ul>"] if lines else ["<p>Nothing.</p>"]
