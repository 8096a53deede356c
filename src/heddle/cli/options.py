"""Options that several commands share, loading the model of `-m`, and checking output files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.terminal import DIM, note

if TYPE_CHECKING:
    from heddle.lm import LM

Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A run (folder or name), Hugging Face folder, GGUF file, adapter, package:NAME. Default: newest run.",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="Device: auto, cpu or cuda.")]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="KIND",
        help="Weight format: auto, float32, bfloat16, int8 or int4. int8 and int4 save memory and may cost "
        "quality; `heddle evaluate --weights` measures how much.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that heddle did not write.")]
Best = Annotated[
    bool, typer.Option("--best", help="Of a run, use the checkpoint of lowest held-out loss instead of the newest.")
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Sinks = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Attention sinks: keep the first N tokens and the latest --window, in constant memory, however long a "
        "text is; for positions that are distances, such as rotary ones.",
    ),
]
Words = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as vocab=8192.")]


def open_model(name: str | None, device: str, weights: str = "auto", best: bool = False) -> "LM":
    """Load the model that the user named; report where a model of another library was found."""
    from heddle.lm import load

    lm = load(name, device=device, weights=weights, best=best)
    if not lm.origin.is_heddle:
        note(lm.origin.description, DIM)
    return lm


def check_output(path: Path, is_ours: Callable[[Path], bool], force: bool) -> None:
    """Refuse, before any work is done, an output file that cannot be written, or that holds what heddle did not write.

    `is_ours` tells by its content whether a file is an earlier result; it may raise an error for one that is not.
    """
    from heddle.core import HeddleError, UsageError
    from heddle.core.system import check_writable

    check_writable(path)
    if path.is_dir():
        raise UsageError(f"{path}: want a file, found a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder")
    if force or not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    try:
        ours = path.is_file() and is_ours(path)
    except HeddleError:
        ours = False
    if not ours:
        raise UsageError(f"{path}: exists, and heddle did not write it; want another file, or --force to overwrite it")


def settings_of(words: list[str]) -> dict[str, object]:
    """Return `key=value` arguments as a table."""
    from heddle.core.system import parse_overrides

    return dict(parse_overrides(words))
