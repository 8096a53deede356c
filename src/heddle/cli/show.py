"""heddle show: a model's tree, shapes, parameters, FLOPs and bytes of state, without its weights."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.cli.options import Json
from heddle.cli.terminal import is_terminal, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.tree import Tree

    from heddle.models import Summary
    from heddle.models.networks import ModelConfig

UNLIMITED = 10_000  # columns, where nobody watches: a line in a pipe is not wrapped
PHASES = {"training": "training", "packed": "packed documents", "decoding": "decoding"}


def show(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL|PRESET", help="A preset, a run, a config, a Hugging Face folder, a GGUF file."),
    ],
    json_: Json = False,
) -> None:
    """Show what a model is made of, and what it costs."""
    from heddle.models import summarize

    config = find_config(model)
    summary = summarize(config)
    if json_:
        write(json.dumps(summary.plain(), ensure_ascii=False))
        return
    from heddle.cli.console import TerminalConsole

    console = TerminalConsole(highlight=False, width=None if is_terminal(sys.stdout) else UNLIMITED)
    console.print(_tree(model, config, summary))
    for name, value in _facts(summary).items():
        console.print(f"{name:<22}{value}")
    for line in _attention(summary.attention_backends):
        console.print(line, markup=False, soft_wrap=True)


def find_config(name: str) -> "ModelConfig":
    """Return the model that a preset, a config file, a run or a checkpoint of others' describes."""
    from heddle.checkpoints import find_source
    from heddle.checkpoints.store import CONFIG, find_run, list_runs
    from heddle.core import UsageError, hint
    from heddle.core.system import read_config
    from heddle.models.presets import PRESETS, PresetConfig

    if name in PRESETS:
        return PresetConfig(name=name)
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json") and not path.is_dir():
        return _decoded(read_config(path), name)
    if path.exists() or name.startswith("package:"):
        source = find_source(name)
        if not source.is_run:
            return source.config()
    try:
        folder = find_run(name)
    except UsageError:
        known = [*PRESETS, *(run.name for run in list_runs(Path("runs")))]
        near = hint(name, known, f"; presets: {', '.join(PRESETS)}")
        raise UsageError(f"no preset, config file or run is called {name!r}{near}") from None
    return _decoded(read_config(folder / CONFIG), str(folder / CONFIG))


def _decoded(data: dict[str, Any], name: str) -> "ModelConfig":
    from heddle.checkpoints.store import load_config
    from heddle.core import decode
    from heddle.models.networks import ModelConfig

    of_run = "model" in data
    if of_run:
        data = load_config(data, Path(name))
    return decode(ModelConfig, data["model"] if of_run else data, "model" if of_run else "")


def _tree(name: str, config: "ModelConfig", summary: "Summary") -> "Tree":
    from rich.markup import escape
    from rich.tree import Tree

    from heddle.models import build_meta, tree

    root = Tree(f"[bold]{escape(name)}[/]  {summary.parameters:,} parameters")
    branches = [root]
    for row in tree(build_meta(config.expand())):
        times = f"  × {row.repeats}" if row.repeats > 1 else ""
        shape = f"  [cyan]{escape(row.shape)}[/]" if row.shape else ""
        line = f"{escape(row.name)}{shape}  [dim]{row.parameters:,}{times}[/]"
        branches = [*branches[: row.depth + 1], branches[row.depth].add(line)]
    return root


def _facts(summary: "Summary") -> dict[str, str]:
    ops = {} if summary.paper_ops is None else {"multiply-adds (Narang)": f"{summary.paper_ops / 1e12:.2f} T"}
    return ops | {
        "parameters": f"{summary.parameters:,}",
        "FLOPs per token": f"{summary.flops_per_token:,} in training, {summary.flops_per_token_forward:,} forward",
        "KV bytes per token": f"{summary.kv_bytes_per_token:,}",
        "context": f"{summary.context:,} tokens",
    }


def _attention(backends: "dict[str, Any]") -> "Iterator[str]":
    """Yield what computes each attention in training and decoding, and why."""
    for layer in backends["layers"]:
        yield f"attention of {layer['first']}  × {layer['count']}, on {backends['device']} in {backends['dtype']}"
        for phase in PHASES:
            if phase in layer:
                yield f"  {PHASES[phase]:<20}{layer[phase]['backend']}: {layer[phase]['reason']}"
