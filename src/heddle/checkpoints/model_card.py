"""Model card (Mitchell et al. 2019): the README of an exported model: data, training budget, scores, licence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heddle.checkpoints.store import CHECKPOINTS
from heddle.core import VERSION, HeddleError, brief
from heddle.core.system import read_table

TAGS = {
    "LanguageModel": "text-generation",
    "EncoderDecoder": "text2text-generation",
    "Encoder": "fill-mask",
}  # the hub's pipeline tag for each class of model


@dataclass(frozen=True)
class ModelCard:
    """The facts of a model card."""

    name: str
    kind: str  # the class of the model
    parameters: int
    family: str
    licence: str = "other"  # an identifier of the hub, such as apache-2.0
    data: tuple[str, ...] = ()
    budget: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the card as Markdown, with the YAML front matter that the hub reads."""
        top = ["---", f"license: {json.dumps(self.licence)}", "library_name: transformers", "tags:", "- heddle"]
        top += [f"pipeline_tag: {TAGS[self.kind]}"] if self.kind in TAGS else []
        lines = [*top, "---", "", f"# {self.name}", ""]
        lines += [f"{self.parameters:,} parameters, of the family `{self.family}`; written by heddle {VERSION}.", ""]
        lines += _section("Data", self.data or ("Not recorded.",))
        lines += _section("Budget", [f"{name}: {value}" for name, value in self.budget.items()] or ("Not recorded.",))
        lines += _section("Scores", [f"{name}: {value}" for name, value in self.scores.items()] or ("Not recorded.",))
        lines += _section("Licence", [self.licence if self.licence != "other" else "Not chosen yet: fill it in above."])
        return "\n".join(lines)


def _section(title: str, lines: "tuple[str, ...] | list[str]") -> list[str]:
    return [f"## {title}", "", *(f"- {line}" for line in lines), ""]


# --- facts of a run ---------------------------------------------------------------------------------------------------


def describe_data(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe the data in a run's config."""
    corpora = [settings.get("data"), *(share.get("data") for share in settings.get("mix") or () if share)]
    found: list[str] = []
    for corpus in corpora:
        if not isinstance(corpus, dict):
            continue
        found += [_describe_source(source) for source in corpus.get("sources") or () if isinstance(source, dict)]
    start = settings.get("init")
    return (*found, *((f"started from `{Path(str(start)).name}`",) if start else ()))


def _describe_source(source: Mapping[str, Any]) -> str:
    """Describe a data source: the last part of its path, and how it is read."""
    match source:
        case {"kind": "builtin"}:
            return "the modules of Python's standard library"
        case {"kind": "parallel", "source": str(one), "target": str(other)}:
            return f"`{Path(one).name}` with `{Path(other).name}`, read line by line as pairs"
        case {"kind": "datasets", "name": str(name)}:
            return f"`{Path(name).name if Path(name).is_absolute() else name}`, read as datasets"
        case {"kind": "prepared", "path": str(path)}:
            return f"`{Path(path).name}`, prepared before"
        case {"kind": str(kind), "path": str(path)}:
            return f"`{Path(path).name}`, read as {kind}"
    return f"a source of kind {brief(source.get('kind'))}"


def describe_budget(settings: Mapping[str, Any], step: int, run: Path) -> dict[str, str]:
    """Describe what a run was trained with: steps, batch, seed, tokens, hardware."""
    training = settings.get("training")
    rows = settings.get("rows")
    if not isinstance(training, dict):
        return {}
    budget = {"steps": f"{step:,}", "rows a step": f"{training.get('batch')}", "seed": f"{settings.get('seed')}"}
    if isinstance(rows, dict) and isinstance(rows.get("length"), int) and isinstance(training.get("batch"), int):
        budget["tokens"] = f"{step * training['batch'] * rows['length']:,} at most"
    environment = _read_if_there(run / "environment.json")
    if environment:
        budget["trained on"] = (
            f"{environment.get('chip')}, torch {environment.get('torch')}, {environment.get('dtype')}"
        )
    return budget


def read_scores(run: Path) -> dict[str, str]:
    """Return the last held-out scores of a run."""
    found: dict[str, Any] = {}
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "validation_loss" in row:
            found = row
    names = {
        "validation_loss": "held-out loss, nats a token",
        "perplexity": "perplexity",
        "bits_per_byte": "bits a byte",
    }
    return {name: f"{found[key]:.4f}" for key, name in names.items() if isinstance(found.get(key), int | float)}


def _read_if_there(path: Path) -> dict[str, Any]:
    """Return a JSON table, or an empty one where it cannot be read: a card says less rather than fail."""
    try:
        return read_table(path)
    except HeddleError:
        return {}


def run_folder_of(checkpoint: Path) -> Path:
    """Return the folder of the run that a checkpoint belongs to."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
