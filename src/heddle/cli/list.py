"""heddle list: recipes, presets, runs, tokenizers and data sources."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.cli.options import Json
from heddle.cli.terminal import BOLD, print_message, write

if TYPE_CHECKING:
    from heddle.models.presets import Preset


def list_(json_: Json = False) -> None:
    """List recipes, presets, runs, tokenizers and data sources."""
    found = everything()
    if json_:
        described = {title: {name: line() for name, line in names.items()} for title, names in found.items()}
        write(json.dumps(described, ensure_ascii=False))
        return
    for title, names in found.items():
        print_message(title, BOLD)
        width = max((len(name) for name in names), default=0)
        for name, line in names.items():
            print_message(f"  {name:<{width}}  {line()}".rstrip())
        if not names:
            print_message("  none yet")


def everything() -> dict[str, dict[str, Callable[[], str]]]:
    """Return, by category, every name with a function for its description; counting the parameters takes seconds."""
    from heddle.checkpoints.store import list_runs
    from heddle.core import kinds
    from heddle.data.sources import SourceConfig
    from heddle.models.presets import PRESETS
    from heddle.recipes import RECIPES
    from heddle.text.tokenizers import TokenizerConfig

    return {
        "recipes": {name: partial(_line, recipe) for name, recipe in RECIPES.items()},
        "presets": {name: partial(_preset, preset) for name, preset in PRESETS.items()},
        "runs": {run.name: partial(str, run) for run in reversed(list_runs(Path("runs")))},
        "tokenizers": {name: partial(_line, kind) for name, kind in kinds(TokenizerConfig).items()},
        "sources": {name: partial(_line, kind) for name, kind in kinds(SourceConfig).items()},
    }


def _preset(preset: "Preset") -> str:
    """Describe a preset with its number of parameters; it is built on the meta device."""
    from heddle.models import build_meta, count_parameters

    return f"{count_parameters(build_meta(preset.config())) / 1e6:>9,.1f} M  {preset.description}"


def _line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
