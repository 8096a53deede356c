"""The report of benchmarks/distillation.py: scores, what is kept of them raw and corrected for chance, intervals."""

import json
import lzma
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import read_lines
from scipy.stats import t as student_t

from heddle.core.system import write_json

TASKS = ("sst2", "sst5", "trec", "ag", "sick", "ner")
ALIASES = {"teacher": "scratch"}  # what text_tasks.py calls a row by itself
LABELS = ("teacher", "student", "masked", "untrained", "random")
Line = dict[str, Any]


def lines_of(out: Path) -> list[Line]:
    """Return the results of text_tasks.py, of equal runs the newest; its row `scratch` is the teacher's."""
    found: dict[tuple[Any, ...], Line] = {}
    names = {alias: label for label, alias in ALIASES.items()}
    for line in read_lines(out / "results.jsonl"):
        own = line | {"label": names.get(line["label"], line["label"])}
        found[own["label"], own["task"], own["rate"], own["seed"]] = own
    return list(found.values())


def chance(out: Path, task: str) -> float:
    """Return what the most frequent class of the test rows scores; entities have no such floor."""
    if task == "ner":
        return 0.0
    with lzma.open(out / task / "test.jsonl.xz", "rt", encoding="utf-8", newline="\n") as file:
        counts = Counter(json.loads(line)["label"] for line in file)
    return max(counts.values()) / counts.total()


def scores_of(out: Path) -> dict[tuple[str, str, int], float]:
    """Return the test score by label, task and seed: accuracy, or F1 over entities, at the rate of the first seed."""
    return {
        (line["label"], line["task"], line["seed"]): float(next(iter(line["test"].values())))
        for line in lines_of(out)
        if "test" in line and line["label"] in LABELS and line["task"] in TASKS
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean over seeds, by Student's t."""
    half = float(student_t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values) - half, statistics.mean(values) + half


def summarize(out: Path, seeds: Sequence[int]) -> Line:
    """Return all figures; what is not there yet is left out."""
    scores = scores_of(out)
    tasks = [task for task in TASKS if all((label, task, seed) in scores for label in LABELS[:2] for seed in seeds)]
    floors = {task: chance(out, task) for task in tasks}
    macro: dict[str, dict[str, list[float]]] = {"raw": {}, "corrected": {}}
    for label in LABELS:
        if tasks and all((label, task, seed) in scores for task in tasks for seed in seeds):
            rows = [[(scores[label, task, seed], floors[task]) for task in tasks] for seed in seeds]
            macro["raw"][label] = [statistics.mean(score for score, _ in row) for row in rows]
            macro["corrected"][label] = [statistics.mean((s - floor) / (1 - floor) for s, floor in row) for row in rows]
    found: Line = {"tasks": tasks, "seeds": list(seeds), "chance": floors, "macro": macro, "kept": {}, "difference": {}}
    for kind, by_label in macro.items():
        for label in (label for label in LABELS[1:] if label in by_label and all(by_label["teacher"])):
            shares = [own / given for own, given in zip(by_label[label], by_label["teacher"], strict=True)]
            found["kept"][f"{kind}, {label}"] = {"mean": statistics.mean(shares), "each": shares}
        for label in (label for label in LABELS[2:] if label in by_label):
            each = [own - given for own, given in zip(by_label["student"], by_label[label], strict=True)]
            ends = list(interval(each)) if len(each) > 1 else None
            found["difference"][f"{kind}, student - {label}"] = {
                "mean": statistics.mean(each),
                "interval": ends,
                "each": each,
            }
    found["at_chance"] = [
        task for task in tasks if statistics.mean(scores["teacher", task, seed] for seed in seeds) < floors[task] + 0.02
    ]
    return found


def report(out: Path, seeds: Sequence[int]) -> None:
    """Write and print the tables."""
    found, scores = summarize(out, seeds), scores_of(out)
    lines = ["| task | chance | " + " | ".join(LABELS) + " |", "|---|--:|" + "--:|" * len(LABELS)]
    for task in TASKS:
        cells = [_cell([100 * scores[label, task, s] for s in seeds if (label, task, s) in scores]) for label in LABELS]
        floor = f"{100 * found['chance'][task]:.1f}" if task in found["chance"] else ""
        lines.append(f"| {task} | {floor} | " + " | ".join(cells) + " |")
    for kind, by_label in found["macro"].items():
        cells = [_cell([100 * value for value in by_label.get(label, ())]) for label in LABELS]
        lines.append(f"| mean of {len(found['tasks'])}, {kind} | | " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"- kept of the teacher's mean, {name}: {100 * one['mean']:.2f} %" for name, one in found["kept"].items()]
    for name, one in found["difference"].items():
        ends = f" [{100 * one['interval'][0]:.2f}, {100 * one['interval'][1]:.2f}]" if one["interval"] else ""
        lines.append(f"- {name}: {100 * one['mean']:+.2f} points{ends}")
    lines += [f"- the teacher is near chance on {task}, which flatters what is kept" for task in found["at_chance"]]
    lines += _other_figures(out)
    (out / "distillation.md").write_text("\n".join(lines) + "\n")
    write_json(out / "distillation.json", found)
    print("\n".join(lines))


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{statistics.mean(values):.2f}" + (
        f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else " (one seed)"
    )


def _other_figures(out: Path) -> list[str]:
    """Return lines on size, speed and the steps of the control."""
    lines, speed, steps = list[str](), out / "distillation_speed.json", out / "distillation_steps.json"
    for on, one in (json.loads(speed.read_text()) if speed.exists() else {}).items():
        own, given = one["parameters"]["student"], one["parameters"]["teacher"]
        lines.append(f"- {on}, batch {one['batch']}, {one['length']} tokens: {one['times_as_fast']} times as fast; ")
        lines[-1] += f"{own:,} of {given:,} parameters, {100 * (1 - own / given):.1f} % fewer ({one['device']})"
    if steps.exists():
        one = json.loads(steps.read_text())
        lines.append(f"- steps of the masked control: {one['steps']}; seconds a step: {one['seconds_per_step']}")
    return lines
